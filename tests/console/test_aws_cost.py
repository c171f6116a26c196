"""What looking costs on AWS: a few calls for a page, however many jobs there are, and none for the next viewer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from ecs_gpu_recovery.console.app import Served, serve
from ecs_gpu_recovery.control.aws_backend import AwsBackend
from ecs_gpu_recovery.health.watch.node_metrics import line
from tests.cli.aws_person import Person, a_person
from tests.console.helpers import events, eventually, owners_client

JOBS = 12


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with a_person(nodes=JOBS + 4) as made:
        AwsBackend().discover()
        for number in range(JOBS):
            made.world.submit([f"n{number}"], job_id=f"j{number:02}")
        for node in AwsBackend().nodes():
            number = float(node.name.removeprefix("n"))
            place = {"cluster": node.cluster, "containerInstanceArn": node.instance}
            numbers = {"Memory": 50.0, "GpuUtilization": number, "GpuPower": 100 + number, "Cpu": 5.0}
            made.metrics.add(line(place, "ip-10-0-0-1", [], numbers, time.time() - 60))
        yield made


@pytest.fixture(scope="module")
def served(person: Person, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A console whose moments are ten minutes long, so that a test is within one."""
    made = serve(AwsBackend, port=0, data=tmp_path_factory.mktemp("console"), tick_s=600.0)
    try:
        eventually(lambda: made.server.started, "the console listens")
        yield made
    finally:
        made.stop()


@pytest.fixture
def client(served: Served, person: Person) -> Iterator[httpx.Client]:
    """Nothing is remembered of earlier tests."""
    console = served.server.config.app.state.console  # type: ignore[union-attr]
    console.moved()
    console.snapshots._notices = (float("-inf"), [])
    console.hub._looked_at = float("-inf")
    with owners_client(served.link, timeout=60) as made:
        assert made.get("/api/whoami").json()["backend"] == "aws"
        person.mine.clear()
        yield made
        person.world.wire.fail_all.clear()


#: The most calls for the first viewer of a page, with nobody else looking.
PAGES = {"/": 10, "/jobs": 1, "/jobs/j03": 4, "/jobs/new": 4, "/nodes/n3": 3, "/alerts": 13}
LISTS = {
    "/api/jobs": 1,
    "/api/nodes": 4,
    "/api/jobs/j03": 1,
    "/api/orders": 4,
    "/api/metrics": 8,
    "/api/nodes/n3/metrics": 3,
    "/api/jobs/j03/metrics": 3,
    "/api/audit": 0,
}


@pytest.mark.parametrize(("path", "most"), [*PAGES.items(), *LISTS.items()])
def test_a_page_costs_a_handful_of_calls(client: httpx.Client, person: Person, path: str, most: int) -> None:
    assert client.get(path).status_code == 200
    assert len(person.mine) <= most, Counter(person.mine)
    assert not {call for call in person.mine if "Scan" in call}


@pytest.mark.parametrize("path", PAGES)
def test_the_next_viewers_cost_nothing(client: httpx.Client, person: Person, path: str) -> None:
    client.get(path)
    person.mine.clear()
    assert {client.get(path).status_code for _ in range(10)} == {200}
    assert person.mine == []


def test_a_chart_of_a_node_shows_that_node_whatever_its_host_is_called(client: httpx.Client) -> None:
    """All hosts of this cluster have one name."""
    found = client.get("/api/nodes/n7/metrics").json()
    shown = {
        chart["title"]: [(one["label"], one["values"]) for one in chart["lines"]] for chart in found["charts"]
    }
    assert shown["GPU utilisation"] == [("n7", [7.0])]
    assert shown["Memory"] == [("n7", [50.0])]
    assert shown["Disk in use"] == []
    (busy, power, _) = client.get("/api/jobs/j05/metrics").json()["charts"]
    assert [(one["label"], one["values"]) for one in busy["lines"]] == [("n5", [5.0])]
    assert [one["values"] for one in power["lines"]] == [[105.0]]


def test_who_may_not_read_the_numbers_is_told_where_they_are(client: httpx.Client, person: Person) -> None:
    person.world.wire.fail_all["cloudwatch", "get_metric_data"] = "AccessDenied"
    found = client.get("/api/nodes/n9/metrics").json()
    assert found == {"charts": [], "elsewhere": "CloudWatch: EcsGpuRecovery/Nodes"}
    assert client.get("/jobs/j09").status_code == 200


def test_twenty_streams_cost_as_much_as_one(client: httpx.Client, person: Person) -> None:
    (first,) = events(client, 1)
    assert first["event"] == "snapshot"
    alone = len(person.mine)
    assert 3 <= alone <= 9, Counter(person.mine)
    for _ in range(20):
        events(client, 1)
    assert len(person.mine) == alone


def test_whoever_acts_sees_it_at_once_and_pays_for_it_once(client: httpx.Client, person: Person) -> None:
    client.get("/api/nodes")
    assert client.post("/api/nodes/n14/drain", json={"why": "new cable"}).status_code == 200
    held = {node["name"]: node["hold"] for node in client.get("/api/nodes").json()["nodes"]}
    assert held["n14"]["why"] == "new cable"


def test_who_may_not_read_many_at_once_reads_one_by_one(client: httpx.Client, person: Person) -> None:
    """The viewer's policy of the commands is enough to look, only slower."""
    person.world.wire.fail_all["dynamodb", "batch_get_item"] = "AccessDeniedException"
    for path in PAGES:
        assert client.get(path).status_code == 200, path


def test_what_aws_refuses_is_told_in_words(client: httpx.Client, person: Person) -> None:
    person.world.wire.fail_all["dynamodb", "query"] = "AccessDeniedException"
    reply = client.get("/api/jobs")
    assert reply.status_code == 409
    assert "not allowed" in reply.json()["detail"]
    person.world.wire.fail_all["dynamodb", "query"] = "InternalServerError"
    assert client.get("/api/jobs").status_code == 503


def test_a_stop_that_the_console_may_not_send_is_left_to_the_functions(
    client: httpx.Client, person: Person
) -> None:
    person.world.wire.fail_all["ecs", "stop_task"] = "AccessDeniedException"
    reply = client.post("/api/jobs/j11/stop", json={"why": "enough"})
    assert reply.status_code == 200, reply.text
    assert reply.json()["ending"]["why"].endswith(": enough")

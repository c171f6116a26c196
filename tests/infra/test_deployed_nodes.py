"""Nodes with a life of their own, on the deployed stack: functions under their roles, and nothing but events and the
sweeper. Nobody opens a page, and no job runs but where one is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.control import permits
from ecs_gpu_recovery.core.errors import NotFound
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from testbed.aws.deployment import People
from tests.infra.deployed import Story, complaints, deployed, hasten, kept, strict_aws, sweep

pytestmark = [pytest.mark.ministack, pytest.mark.slow]


@pytest.fixture(scope="module")
def people(ministack_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    settings = {"FREEZE_WITHIN_S": "60", "REPAIR_RUNGS": "reboot,replace"}
    with strict_aws(ministack_python) as server:
        made = deployed(server, tmp_path_factory.mktemp("nodes"), settings)
        yield People(made)
        made.destroy()


def the_node(people: People, name: str) -> Node | None:
    try:
        return people.side.store.node(name)
    except NotFound:
        return None


def join(people: People, *names: str) -> Story:
    """Machines join the cluster, and nobody says so to anybody. Each is recorded, examined, and free."""
    people.join(names)
    story = Story(people, names[0], tuple(names))

    def admitted() -> bool:
        found = [the_node(people, name) for name in names]
        return all(n is not None and n.status is NodeStatus.AVAILABLE and not n.fresh for n in found)

    hasten(people, admitted, lambda: str([the_node(people, name) for name in names]))
    return story


def moves(record: Node) -> list[str]:
    return [entry.after for entry in record.timeline if entry.before != entry.after]


def test_a_machine_that_joins_is_seen_examined_and_free(people: People) -> None:
    join(people, "new-0", "new-1")
    for name in ("new-0", "new-1"):
        record = people.side.store.node(name)
        assert moves(record)[-2:] == ["PENDING_HEALTHCHECK", "AVAILABLE"]
        assert record.passed_at is not None
    assert complaints(people.stack) == []


def test_a_free_node_that_breaks_is_repaired_passes_its_gate_and_is_free_again(people: People) -> None:
    story = join(people, "idle-0")
    people.server.control("health", node="idle-0", verdict=1)
    people.server.control("impair", node="idle-0")

    def cured() -> bool:
        record = people.side.store.node("idle-0")
        return bool(record.condemned) and record.condemned[-1].outcome == "cured" and not record.outbox

    hasten(people, cured, lambda: str(people.side.store.node("idle-0").timeline))
    record = people.side.store.node("idle-0")
    wanted = ["PENDING_HEALTHCHECK", "REBOOTING", "PENDING_HEALTHCHECK", "AVAILABLE"]
    assert moves(record)[-4:] == wanted
    assert story.boots() == [2]
    assert story.told() == []
    assert complaints(people.stack) == []


def test_a_machine_that_no_reboot_cures_goes_and_another_one_of_its_group_is_examined(people: People) -> None:
    story = join(people, "swap-0")
    people.server.control("put_in_group", node="swap-0", group="gpus")
    people.server.control("health", node="swap-0", verdict=2)
    people.server.control("impair", node="swap-0")

    def replaced() -> bool:
        record = people.side.store.node("swap-0")
        return bool(record.replaced_by) and not record.outbox

    hasten(people, replaced, lambda: str(people.side.store.node("swap-0")))
    record = people.side.store.node("swap-0")
    assert moves(record)[-3:] == ["PENDING_HEALTHCHECK", "REBOOTING", "UNKNOWN"]
    assert story.boots() == [1], "it was not rebooted"
    assert len(kept(people, "swap-0")) == 1
    new = record.replaced_by
    hasten(people, lambda: people.side.store.node(new).passed_at, lambda: str(the_node(people, new)))
    assert [one["Subject"] for one in people.told() if "swap-0" in one["Subject"]] == [
        f"Node swap-0 was replaced by {new}"
    ]
    assert complaints(people.stack) == []


def test_four_nodes_at_once_freeze_the_fleet_and_a_person_thaws_it(people: People) -> None:
    names = [f"storm-{number}" for number in range(4)]
    story = join(people, *names)
    people.submit("storm-0", names, check=False)
    story.wait_until_it_runs()
    for name in names:
        people.server.control("health", node=name, verdict=1)
    story.exit(0, 1)
    guard = permits.granted(people.side.runtime.permits)
    story.wait_for(lambda: guard.look().frozen)
    story.wait_for(lambda: all(people.side.store.node(name).held for name in names))
    sweep(people.stack)
    assert story.boots() == [1] * 4
    story.wait_for(lambda: [one for one in people.told() if "is frozen" in one["Subject"]])
    permits.ask(guard, "thaw", "", by="ann", why="each is ill by itself", at=people.now())
    story.complete(attempt=1)
    assert story.end().status is JobStatus.COMPLETE
    assert story.boots() == [2] * 4
    assert len([one for one in people.told() if "is frozen" in one["Subject"]]) == 1
    assert complaints(people.stack) == []

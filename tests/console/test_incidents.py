"""Messages as incidents: open until their cause is gone or a person has seen to them; one subject, one incident."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ecs_gpu_recovery.console.access.database import Database
from ecs_gpu_recovery.console.incidents import Acknowledged, grouped, judged
from ecs_gpu_recovery.core.effects import Notify
from ecs_gpu_recovery.core.messages import job_failed, node_failed
from ecs_gpu_recovery.core.model import Verdict
from ecs_gpu_recovery.local import wiring
from tests.console.helpers import console, csrf_of, still_state
from tests.core.story import some_nodes

HTML = {"accept": "text/html"}


def notice(key: str, node: str = "", at: str = "2026-03-01T02:00:00+00:00") -> dict[str, str]:
    return {"key": key, "node": node, "at": at, "subject": key}


def states(*told: dict[str, str], **about: object) -> list[str]:
    given = {"bad": (), "known": (), "retried": (), "pending": tuple, "acknowledged": {}} | about
    return [message["state"] for message in judged(told, **given)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "about", "state"),
    [
        (notice("j/notify/failed"), {}, "open"),
        (notice("j/notify/failed"), {"retried": {"j"}}, "resolved"),
        (notice("j/notify/failed"), {"acknowledged": {"j/notify/failed": "olga"}}, "acknowledged"),
        (notice("j/notify/failed", "n1"), {"known": {"n1"}, "bad": {"n1"}, "retried": {"j"}}, "open"),
        (notice("j/notify/failed", "n1"), {"known": {"n1"}}, "resolved"),
        (notice("j/0/1/stop/1/stuck"), {"pending": lambda: {"j/0/1/stop/1"}}, "open"),
        (notice("j/0/1/stop/1/stuck"), {}, "resolved"),
        (notice("j/1/0/reboot/permit", "n1"), {"known": {"n1"}, "pending": lambda: {"j/1/0/reboot"}}, "open"),
        (notice("j/1/0/reboot/permit", "n1"), {"known": {"n1"}}, "resolved"),
        (notice("fleet/gpus/frozen/1"), {"frozen": lambda: True}, "open"),
        (notice("fleet/gpus/frozen/1"), {"frozen": lambda: False}, "resolved"),
        (notice("letter/x/discarded"), {}, "open"),
    ],
)
def test_a_message_is_open_until_its_cause_is_gone(
    told: dict[str, str], about: dict[str, object], state: str
) -> None:
    assert states(told, **about) == [state]


def test_messages_about_one_node_are_one_incident_and_open_ones_come_first() -> None:
    told = [notice("done/notify/failed"), notice("j/notify/failed", "n1"), notice("node/n1/notify/3", "n1")]
    found = grouped(
        judged(
            told,
            bad={"n1"},
            known={"n1"},
            retried={"done"},
            pending=tuple,
            acknowledged={told[1]["key"]: "olga"},
        )
    )
    assert [(one.subject, one.state, len(one.messages)) for one in found] == [
        ("node/n1", "open", 2),
        ("job/done", "resolved", 1),
    ]


def test_who_acknowledged_what_is_kept(tmp_path: Path) -> None:
    database = Database(tmp_path / "console.db")
    Acknowledged(database).add(["a", "b"], "olga")
    Acknowledged(database).add(["b"], "vic")
    assert Acknowledged(database).of(["a", "b", "c"]) == {"a": "olga", "b": "olga"}
    assert Acknowledged(database).of([]) == {}
    database.close()


def told_of(state: Path, *messages: Notify) -> None:
    parts = wiring.build(state)
    for message in messages:
        parts.notifier.notify(message)
    parts.close()


def test_an_incident_is_acknowledged_on_the_page_and_the_overview_turns_green(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    told_of(state, job_failed("train", 0, "rank 1 died", ()))
    with console(state) as client:
        assert "Messages that nobody has acknowledged: 1." in client.get("/", headers=HTML).text
        page = client.get("/alerts", headers=HTML).text
        assert 'action="/alerts/acknowledge"' in page
        form = {"csrf": csrf_of(client), "key": "train/notify/failed"}
        assert client.post("/alerts/acknowledge", data=form).status_code == 303
        (alert,) = client.get("/api/alerts").json()["alerts"]
        assert (alert["state"], alert["job"]) == ("acknowledged", "train")
        assert alert["by"]
        assert "nobody has acknowledged" not in client.get("/", headers=HTML).text
        assert "Acknowledged by" in client.get("/alerts", headers=HTML).text
        assert client.get("/api/audit").json()["audit"][0]["action"] == "acknowledge"


def test_a_message_about_a_node_that_is_well_again_is_resolved(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    told_of(
        state,
        node_failed(replace(some_nodes(1)[0], name="node-1", verdict=Verdict.REPLACE, errands=1), "it broke"),
    )
    with console(state) as client:
        (alert,) = client.get("/api/alerts").json()["alerts"]
        assert alert["state"] == "resolved"
        assert "No open messages." in client.get("/", headers=HTML).text
        acknowledged = client.post("/api/alerts/acknowledge", json={"keys": [alert["key"]]})
        assert acknowledged.json() == {"keys": [alert["key"]]}
        assert client.post("/api/alerts/acknowledge", json={"keys": []}).status_code == 422

"""Dead letters on a console of AWS: everybody sees them, an operator sends them again, and it is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from ecs_gpu_recovery.control.aws_backend import AwsBackend
from ecs_gpu_recovery.control.remote_backend import PASSWORD_VARIABLE, USER_VARIABLE
from tests.aws.event_builders import TRAIN, stopped
from tests.aws.letter_queue import HANDLER, of_rule
from tests.cli.aws_person import Person, a_person
from tests.cli.conftest import Result, run_command
from tests.console.helpers import PASSWORD, USERS, served, sign_in

SECRET = "hunter2"
ENDED = stopped(env={**TRAIN, "WANDB_API_KEY": SECRET})


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with a_person(nodes=1) as made:
        yield made


@pytest.fixture
def guarded(person: Person, tmp_path: Path) -> Iterator[httpx.Client]:
    """A console with nothing remembered, and one letter in the queue."""
    person.queue.kept.clear()
    person.functions.given.clear()
    person.functions.failing.clear()
    person.queue.put(of_rule(ENDED), id="letter-1")
    with served(AwsBackend, tmp_path / "console", users=USERS, tick_s=600.0) as made:
        yield made


def test_an_operator_sends_a_letter_again_and_it_is_written_down(
    guarded: httpx.Client, person: Person
) -> None:
    token = sign_in(guarded, "olga")
    page = guarded.get("/alerts").text
    assert "Dead letters" in page
    assert "NO_PERMISSIONS" in page
    assert 'action="/letters/again"' in page
    assert SECRET not in page
    sent = guarded.post("/letters/again", data={"csrf": token, "id": "letter-1"})
    assert sent.status_code == 303, sent.text
    assert (person.functions.given, person.queue.kept) == ([(HANDLER, ENDED)], {})
    deed = guarded.get("/api/audit").json()["audit"][0]
    expected = ("olga", "send again", "letter/letter-1", "done")
    assert (deed["who"], deed["action"], deed["subject"], deed["outcome"]) == expected
    assert "Every event was handled." in guarded.get("/alerts").text


def test_an_operator_puts_a_letter_away_with_a_reason(guarded: httpx.Client, person: Person) -> None:
    token = sign_in(guarded, "olga")
    assert 'action="/letters/discard"' in guarded.get("/alerts").text
    form = {"csrf": token, "id": "letter-1"}
    refused = guarded.post("/letters/discard", data=form | {"why": " "})
    assert (refused.status_code, list(person.queue.kept)) == (409, ["letter-1"])
    assert "give a reason" in refused.text
    assert guarded.post("/letters/discard", data=form | {"why": "a test event"}).status_code == 303
    assert (person.functions.given, person.queue.kept) == ([], {})
    assert guarded.get("/api/audit").json()["audit"][0]["why"] == "a test event"


def test_a_letter_that_fails_again_is_refused_and_stays(guarded: httpx.Client, person: Person) -> None:
    token = sign_in(guarded, "olga")
    person.functions.failing.add(HANDLER)
    reply = guarded.post("/api/letters/again", json={"id": "letter-1"}, headers={"x-csrf-token": token})
    assert reply.status_code == 409, reply.text
    assert "failed again" in reply.json()["detail"]
    assert "letter-1" in person.queue.kept
    assert guarded.get("/api/audit").json()["audit"][0]["outcome"].startswith("refused: ")


def test_a_viewer_sees_the_letters_and_sends_none(guarded: httpx.Client, person: Person) -> None:
    token = sign_in(guarded, "vic")
    page = guarded.get("/alerts").text
    assert "letter-1" in page
    assert "/letters/again" not in page
    reply = guarded.post("/letters/again", data={"csrf": token, "id": "letter-1"})
    assert (reply.status_code, person.functions.given) == (403, [])


def test_without_the_token_of_the_page_nothing_is_sent(guarded: httpx.Client, person: Person) -> None:
    sign_in(guarded, "olga")
    assert guarded.post("/letters/again", data={"id": "letter-1"}).status_code == 403
    assert guarded.post("/api/letters/again", json={"id": "letter-1"}).status_code == 403
    assert person.functions.given == []


def test_the_api_lists_them_without_the_event(guarded: httpx.Client, person: Person) -> None:
    sign_in(guarded, "vic")
    found = guarded.get("/api/letters").json()
    assert ([one["id"] for one in found["letters"]], found["more"]) == (["letter-1"], 0)
    assert "event" not in found["letters"][0]
    person.mine.clear()
    assert guarded.get("/api/letters").json() == found
    assert person.mine == [], "a look is good for a minute"


def test_an_operator_puts_a_letter_away_with_a_reason_that_is_kept(
    guarded: httpx.Client, person: Person
) -> None:
    token = sign_in(guarded, "olga")
    for wrong, status in (({}, 422), ({"why": " "}, 409)):
        asked = {"id": "letter-1", **wrong}
        refused = guarded.post("/api/letters/discard", json=asked, headers={"x-csrf-token": token})
        assert (refused.status_code, list(person.queue.kept)) == (status, ["letter-1"])
    body = {"id": "letter-1", "why": "the job is over"}
    reply = guarded.post("/api/letters/discard", json=body, headers={"x-csrf-token": token})
    assert (reply.status_code, reply.json()["id"], person.queue.kept) == (200, "letter-1", {})
    assert SECRET not in reply.text
    deed = guarded.get("/api/audit").json()["audit"][0]
    assert (deed["who"], deed["action"], deed["why"]) == ("olga", "discard", "the job is over")
    assert "olga put the dead letter letter-1 away" in person.world.messages()[-1]


@pytest.fixture
def remote(guarded: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`gpu-recovery letters ... --backend http://HOST`, as an operator."""
    monkeypatch.setenv(USER_VARIABLE, "olga")
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    return lambda *args: run_command("letters", *args, "--backend", str(guarded.base_url).rstrip("/"))


def test_the_command_lists_letters_of_a_console_and_sends_them_again(
    remote: Callable[..., Result], person: Person
) -> None:
    person.queue.put(of_rule(ENDED), id="letter-2")
    (first, second) = remote("--json").data["letters"]
    assert (first["id"], second["id"], first["function"], first["event"]) == (
        "letter-1",
        "letter-2",
        HANDLER,
        None,
    )
    listed = remote()
    assert "NO_PERMISSIONS" in listed.out
    assert "resend ID --backend http://" in listed.out
    person.functions.failing.add(HANDLER)
    failed = remote("resend", "letter-1")
    assert (failed.code, len(person.queue.kept)) == (1, 2)
    assert "kept: the letter stays in the queue" in failed.out
    person.functions.failing.clear()
    sent = remote("resend", "--all", "--json")
    assert (sent.code, [one["done"] for one in sent.data["sent"]]) == (0, [True, True])
    assert person.queue.kept == {}
    assert remote().out == "No dead letters: every event was handled.\n"


def test_the_command_puts_a_letter_of_a_console_away(remote: Callable[..., Result], person: Person) -> None:
    gone = remote("discard", "letter", "--why", "the job is over", "--json")
    assert gone.code == 0, gone
    assert (gone.data["discarded"]["id"], gone.data["by"], person.queue.kept) == ("letter-1", "olga", {})
    assert remote("discard", "letter", "--why", "again").code == 3


def test_a_viewer_is_told_that_they_may_not(
    remote: Callable[..., Result], person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(USER_VARIABLE, "vic")
    for args in (("resend", "--all"), ("discard", "letter-1", "--why", "x")):
        told = remote(*args)
        assert (told.code, "viewer" in told.err, list(person.queue.kept)) == (4, True, ["letter-1"])


def test_in_chinese_too(guarded: httpx.Client) -> None:
    sign_in(guarded, "vic")
    assert "死信" in guarded.get("/alerts", headers={"cookie": f"lang=zh; {_cookies(guarded)}"}).text


def _cookies(client: httpx.Client) -> str:
    return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


def test_a_queue_that_may_not_be_read_leaves_the_page_standing(guarded: httpx.Client, person: Person) -> None:
    sign_in(guarded, "vic")
    person.world.wire.fail_all["sqs", "receive_message"] = "AccessDenied"
    try:
        page = guarded.get("/alerts")
        told = guarded.get("/api/letters")
    finally:
        person.world.wire.fail_all.clear()
    assert page.status_code == 200
    assert "not allowed" in page.text
    assert (told.status_code, "not allowed" in told.json()["detail"]) == (409, True)


def test_an_embedded_control_plane_has_none(client: httpx.Client) -> None:
    assert client.get("/api/letters").json() == {"letters": [], "more": 0}
    assert (
        '<section id="letters" class="panel maybe" aria-label="Dead letters"></section>'
        in client.get("/alerts").text
    )
    assert client.post("/api/letters/again", json={"id": "x"}).status_code == 404

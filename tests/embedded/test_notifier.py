"""Messages to people: kept here first, then sent to a webhook, again and again until it takes them."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import Archive, Notify
from ecs_gpu_recovery.core.errors import Refused, Transient
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.engine.webhook import FORMS, form_of, payload
from ecs_gpu_recovery.local.notify import LocalNotifier
from ecs_gpu_recovery.local.reads import SqliteReads
from ecs_gpu_recovery.local.store import SqliteStore
from ecs_gpu_recovery.local.wiring import now
from tests.answering import Answer, answering
from tests.console.test_fleet import a_storm
from tests.embedded.helpers import eventually, live_controller

MESSAGE = Notify(
    key="j/notify/failed", subject="s", happened="h", evidence="e", done="d", next="n", node="node-1"
)


class Hook:
    """A webhook that answers with these codes, one after the other, and then with 200."""

    def __init__(self, codes: list[int]) -> None:
        self.codes, self.url = codes, ""
        self.got: list[dict[str, str]] = []

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        code = self.codes.pop(0) if self.codes else 200
        if code == 200:
            self.got.append(json.loads(body))
        return code, b""


@contextmanager
def webhook(*codes: int) -> Iterator[Hook]:
    hook = Hook(list(codes))
    with answering(hook.take) as address:
        hook.url = f"{address}/hook"
        yield hook


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "recovery.db")
    yield made
    made.close()


def test_a_message_is_kept_once_however_often_it_is_sent(store: SqliteStore) -> None:
    with webhook() as hook:
        notifier = LocalNotifier(store, now, hook.url)
        notifier.notify(MESSAGE)
        notifier.notify(MESSAGE)
        assert len(hook.got) == 2, "twice only if the process died right after the first"
        assert [message["key"] for message in SqliteReads(store).notices(10)] == [MESSAGE.key]
        assert hook.got[0]["happened"] == "h"
        assert (hook.got[0]["job"], hook.got[0]["thread"]) == ("j", "job/j")


@pytest.mark.parametrize(
    ("address", "chosen", "form"),
    [
        ("https://hooks.slack.com/services/T/B/x", "", "slack"),
        ("https://prod-1.westeurope.logic.azure.com/workflows/x", "", "teams"),
        ("https://acme.webhook.office.com/webhookb2/x", "", "teams"),
        ("https://example.org/slack.com", "", "plain"),
        ("https://example.org/x", "slack", "slack"),
        ("http://[half", "", "plain"),
    ],
)
def test_a_webhook_gets_the_form_that_its_address_takes(address: str, chosen: str, form: str) -> None:
    assert form_of(address, chosen) == form


def test_a_form_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refused, match="use one of plain, slack, teams"):
        form_of("https://example.org", "irc")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_subject_the_link_and_the_thread(form: str) -> None:
    sent = json.dumps(payload(MESSAGE, form, "https://console.example/"))
    assert '"https://console.example/jobs/j"' in sent
    assert "job/j" in sent
    assert '"s"' in sent
    assert "https://" not in json.dumps(payload(MESSAGE, form)).replace("https://adaptive", "")


def test_slack_gets_blocks_it_takes_whatever_a_message_says() -> None:
    long = replace(MESSAGE, subject="x" * 200, evidence="<@everyone> & " + "y" * 5000)
    sent = payload(long, "slack")
    assert set(sent) == {"text", "blocks"}
    texts = [block["text"]["text"] for block in sent["blocks"] if "text" in block]
    assert len(texts[0]) == 150
    assert max(map(len, texts)) <= 3000
    assert "*Evidence:* &lt;@everyone&gt; &amp; y" in texts[2]


def test_teams_gets_a_card() -> None:
    sent = payload(MESSAGE, "teams", "https://c")
    card = sent["attachments"][0]["content"]
    assert (sent["type"], card["type"]) == ("message", "AdaptiveCard")
    assert card["actions"][0]["url"] == "https://c/jobs/j"
    assert {"title": "Next", "value": "n"} in card["body"][2]["facts"]


def test_a_message_is_kept_though_the_webhook_is_down(store: SqliteStore) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        notifier = LocalNotifier(store, now, url)
        with pytest.raises(Transient, match="the webhook did not take the message"):
            notifier.notify(MESSAGE)
    assert [message["subject"] for message in SqliteReads(store).notices(10)] == ["s"]


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n", b""]
)
def test_whatever_a_webhook_answers_is_no_crash(store: SqliteStore, answer: bytes) -> None:
    with socket.socket() as odd:
        odd.bind(("127.0.0.1", 0))
        odd.listen(1)

        def serve() -> None:
            peer, _ = odd.accept()
            peer.recv(65536)
            peer.sendall(answer)
            peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        notifier = LocalNotifier(store, now, f"http://127.0.0.1:{odd.getsockname()[1]}/")
        with pytest.raises(Transient):
            notifier.notify(MESSAGE)
        thread.join()


@pytest.mark.parametrize("url", ["http://", "http://[half", "http://exa mple/", "http://x:port/"])
def test_an_address_that_makes_no_sense_is_no_crash(store: SqliteStore, url: str) -> None:
    with pytest.raises(Transient):
        LocalNotifier(store, now, url).notify(MESSAGE)


def test_a_failed_job_is_told_to_a_webhook_that_refused_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook(503, 500) as hook:
        monkeypatch.setenv("GPU_RECOVERY_WEBHOOK", hook.url)
        with live_controller(tmp_path) as live:
            live.submit("job", (sys.executable, "-c", "raise SystemExit(9)"))
            live.ends("job", JobStatus.FAILED)
            eventually(lambda: hook.got, "the message arrives")
            assert [message["key"] for message in hook.got] == ["job/notify/failed"]
            assert [message["key"] for message in live.side.notices(10)] == ["job/notify/failed"]


def test_a_pager_hears_that_a_frozen_fleet_was_thawed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as hook:
        monkeypatch.setenv("GPU_RECOVERY_WEBHOOK", hook.url)
        with closing(LocalBackend(a_storm(tmp_path))) as side:
            side.ask_fleet("thaw", why="each by itself", by="ann")
        (told,) = hook.got
        assert (told["key"], told["status"]) == (keys.frozen("embedded", 1), "resolved")


def test_old_lines_of_a_timeline_are_kept_in_order_and_once(store: SqliteStore) -> None:
    notifier = LocalNotifier(store, now)
    for key, lines in (("a/1", ("one", "two")), ("a/2", ("three",)), ("a/1", ("one", "two"))):
        notifier.archive("a", Archive(key=key, lines=lines))
    kept = store.read("SELECT seq, line FROM timeline WHERE record='a' ORDER BY seq")
    assert kept == [(1, "one"), (2, "two"), (3, "three")]

"""Every page speaks English and Chinese, and says the same in both."""

from __future__ import annotations

import re
from gettext import NullTranslations
from pathlib import Path
from string import Formatter

import httpx
import polib
import pytest

from ecs_gpu_recovery import ledger, standing, status_text
from ecs_gpu_recovery.console import app, headlines, pulses
from ecs_gpu_recovery.console.access.auth import ROLES
from ecs_gpu_recovery.console.api import charts
from ecs_gpu_recovery.console.forms import TEMPLATES
from ecs_gpu_recovery.console.pages import labels, routes
from ecs_gpu_recovery.console.pages.language import CATALOGUES, translations
from ecs_gpu_recovery.console.pages.render import environment
from ecs_gpu_recovery.core.edges import JOB
from ecs_gpu_recovery.core.model import Exit
from ecs_gpu_recovery.jobkeys import KEYS
from ecs_gpu_recovery.report import EARLIER, FIRST_CHECK, LEFT, NEXT, PHASES, RUNS
from tests.console.helpers import console, csrf_of, still_state, submitted

ZH = {entry.msgid: entry.msgstr for entry in polib.pofile(str(CATALOGUES / "zh.po"))}


def test_pages_speak_the_language_of_the_browser_or_the_chosen_one(shared: httpx.Client) -> None:
    assert "What the system is doing now" in shared.get("/", headers={"accept-language": "fr, en;q=0.5"}).text
    assert "系统正在做什么" in shared.get("/", headers={"accept-language": "zh-CN,zh;q=0.9"}).text
    assert shared.get("/lang/zh?next=/jobs").headers["location"] == "/jobs"
    assert '<html lang="zh-Hans"' in shared.get("/").text
    assert shared.get("/lang/en?next=//evil.example").headers["location"] == "/"


def test_every_text_of_the_pages_has_its_chinese() -> None:
    said: set[str | None] = {template.label for template in TEMPLATES}
    said |= set(labels.JOB_LABELS.values()) | set(labels.NODE_LABELS.values())
    for key in KEYS.values():
        said |= set(key.kind.choices.values()) | (
            {key.input.label, key.input.hint or None} if key.input else set()
        )
    said.add(routes.NO_FORM)
    said |= {*labels.STANDINGS.values(), *standing.TEXTS, *headlines.News}
    said |= {*pulses.MEANINGS, *pulses.MEANINGS.values()}
    said |= set(labels.VERDICTS.values()) | set(labels.ORDERS.values())
    said |= (
        {chart.key for chart in charts.CHARTS} | set(map(str, Exit)) | {*status_text.Said, *RUNS, *LEFT, NEXT}
    )
    said |= {edge.why for edge in JOB.values()} | set(PHASES.values()) | {FIRST_CHECK, EARLIER} | set(ROLES)
    said |= {*ledger.KINDS, *(cause for _, cause in ledger._CAUSES), "other"}
    for template in Path(app.__file__).with_name("templates").glob("*.html"):
        text = template.read_text()
        said |= {message for _, _, message in environment("en").extract_translations(text)}
        said |= set(re.findall(r'(?:field|lines)\("\w+", "([^"]+)"', text))
        said |= set(re.findall(r'(?:field|lines)\("\w+", "[^"]+", "([^"]+)"', text))
    said.discard(None)  # what is called with a name, not with a text
    assert len(said) > 250
    assert said - set(ZH) == set()


def test_the_catalogue_is_whole_and_fills_the_same_blanks() -> None:
    for english, chinese in ZH.items():
        assert chinese, english
        blanks = [{name for _, name, _, _ in Formatter().parse(text)} for text in (english, chinese)]
        assert blanks[0] | {None} == blanks[1] | {None}, english


def test_no_page_in_chinese_says_anything_that_is_not_translated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: set[str] = set()

    class Missing(NullTranslations):
        def gettext(self, message: str) -> str:
            missing.add(message)
            return message

    monkeypatch.setattr(translations("zh"), "_fallback", Missing())
    with console(still_state(tmp_path)) as client:
        job = submitted(client)["id"]
        client.post("/api/nodes/node-4/drain", json={"why": "new cable"})
        zh = {"accept": "text/html", "accept-language": "zh"}
        for path in (
            "/",
            "/jobs",
            "/jobs/new",
            f"/jobs/{job}",
            "/nodes/node-4",
            "/alerts",
            "/report",
            "/nothing",
        ):
            assert "ECS GPU 自愈" in client.get(path, headers=zh).text
        form = {"csrf": csrf_of(client), "where": "any", "any_nodes": "2", "command": "true", "image": "x"}
        assert "任务定义" in client.post("/jobs/new/preview", data=form, headers=zh).text
        client.post(f"/api/jobs/{job}/stop", json={})
        client.get(f"/jobs/{job}", headers=zh)
    assert missing == set()

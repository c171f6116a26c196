"""Every page names what is there: links, headings, commands with their options, targets, tools and files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from ecs_gpu_recovery.main import app
from tools.project import ROOT

PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if page.name not in {"0000-template.md", "CHANGELOG.md"}
)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a reader can jump to, spelled as GitHub does."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@each_page
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", text_of(page)):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), f"{target}#{anchor}"


def test_every_decision_has_a_number_of_its_own_and_says_it() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [page.name[:4] for page in decisions] == [f"{number:04}" for number in range(len(decisions))]
    for page in decisions[1:]:
        assert page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]}: "), page.name


@each_page
def test_every_picture_is_there(page: Path) -> None:
    for target in re.findall(r'(?:src|srcset)="([^"]+)"', text_of(page)):
        assert (page.parent / target).exists(), target


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The words after `program`, wherever a line of code or an inline piece of code begins with it."""
    joined = text_of(page).replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", joined, re.M | re.S))
    indented = "\n".join(re.findall(r"^ {4}.*", joined, re.M))
    code = re.findall(rf"^ *(?:[A-Z_]+=\S+ )*(?:\$ |time )?({program} .*)$", f"{fenced}\n{indented}", re.M)
    for line in (*code, *re.findall(rf"`({program} [^`]+)`", joined)):
        yield shlex.split(re.split(r" [|>&#]| {2}\(|\.\.\.|;", line)[0])[1:]


@cache
def root() -> Any:
    return typer.main.get_command(app)


@each_page
def test_every_command_exists_with_its_options(page: Path) -> None:
    for words in commands(page, "gpu-recovery"):
        command = root()
        rest = list(words)
        while rest and hasattr(command, "commands") and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        told = " ".join(["gpu-recovery", *words])
        assert not hasattr(command, "commands") or not rest or rest[0] == "COMMAND" or rest[0][0] == "-", told
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        before_program = rest[: rest.index("--")] if "--" in rest else rest
        asked = {word.split("=")[0] for word in before_program if re.fullmatch(r"--?[a-z].*", word)}
        assert asked <= options, told


@each_page
def test_every_target_of_make_exists(page: Path) -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    asked = {words[0] for words in commands(page, "make") if re.fullmatch(r"[a-z][a-z-]+", words[0])}
    assert asked <= made


@each_page
def test_every_tool_and_file_of_the_project_exists(page: Path) -> None:
    for module in re.findall(r"-m ((?:testbed|tools|ecs_gpu_recovery)[\w.]*\w)", text_of(page)):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), module
    for name in re.findall(
        r"`((?:\w[\w-]*/)*[\w-]+\.py|(?:docs|tests|testbed|tools|docker|ecs_gpu_recovery)/[\w./-]+)`",
        text_of(page),
    ):
        assert any(f"/{file}/".endswith(f"/{name.rstrip('/')}/") for file in files()), name


@cache
def files() -> frozenset[str]:
    """Every file and folder that belongs to the project, from its root."""
    found = {
        path
        for top in ("docs", "docker", "testbed", "tests", "tools", "ecs_gpu_recovery")
        for path in (ROOT / top).rglob("*")
    }
    return frozenset(str(path.relative_to(ROOT)) for path in (*found, *ROOT.glob("*")))


#: Carried by tasks from one part of the system to another, or names of DCGM's errors; nobody sets them.
INTERNAL = {
    f"GPU_RECOVERY_{name}"
    for name in ("CHECK_TRY", "CONTAINER", "KIND", "RESET", "REBOOT", "DRAIN_RESET", "SCRIPT")
}


def test_every_test_that_holds_a_promise_about_security_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8")))
    assert len(named) > 10
    there = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(name for name in named if f"def {name}(" not in there) == []


def test_every_variable_that_people_may_set_is_on_a_page() -> None:
    pages = text_of(ROOT / "docs/settings.md") + text_of(ROOT / "docs/environment.md")
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "ecs_gpu_recovery").rglob("*.py"))
    read = set(re.findall(r'"(GPU_RECOVERY_[A-Z_]+)"', code)) - INTERNAL
    assert len(read) > 10
    assert {name for name in read if f"`{name}`" not in pages} == set()

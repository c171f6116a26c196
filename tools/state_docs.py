"""Makes docs/states.md: the state diagrams and the reason of each move, from the tables that the code itself runs on.

python -m tools.state_docs            write it
python -m tools.state_docs --check    exit 1 if it is not what the tables say
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.core import edges
from ecs_gpu_recovery.core.edges import Edge
from ecs_gpu_recovery.core.job.joint import JOINT
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus
from tools.project import ROOT

TARGET = ROOT / "docs" / "states.md"
#: So many words of what a rule says are on the page, if its first sentence has no more.
SHORT = 19
MADE = "<!-- Made by `make docs`. Change the code, not this page. -->\n"
INTRO = """
# States

A job, its tasks and its nodes each have a state. The diagrams show every move that exists; any other raises an error.
Dashed arrows are ours: they close gaps that the original state graphs leave open. Below each state stands from which
states one comes there, and why (`core/edges.py`).

Lists say *free* (AVAILABLE, without a job), *busy* (held by a job, examined, repaired, or waiting for a permit),
*drained* (a person keeps it back, or it is to be taken away), *bad* (FAILED, UNKNOWN, or with a fault).

What is done with each fact, in each state: the rules in `core/job/table.py` and `core/node/table.py`. While a job holds
a node, the job's record is the truth and the node's row follows it; else the node's own record decides.
"""
JOINT_WORDS = """
A fact is only *recorded* by its rule. Then the joint rule of the job's state *concludes* from where all ranks stand,
until nothing moves. So the order in which facts arrive makes no difference.

"""


def page() -> str:
    """The whole page. The same tables always give the same text."""
    parts = [
        MADE,
        INTRO,
        _section("Jobs", "job", edges.JOB, JobStatus),
        _section("Tasks", "task", edges.TASK, TaskStatus),
        _section("Nodes", "node", edges.NODE, NodeStatus),
        "\n## What a job concludes\n",
        JOINT_WORDS,
        _joint(),
    ]
    return "".join(parts)


def _section(title: str, noun: str, table: dict[tuple[str, str], Edge], states: type[StrEnum]) -> str:
    said = comments(states)
    parts = [f"\n## {title}\n\n", diagram(noun, table, states)]
    for state in states:
        parts.append(f"\n**`{state.value}`**: {said[state.name]}.\n\n")
        parts += [f"- {before}: {why}\n" for before, why in _ways_into(state, table)]
    return "".join(parts)


def _ways_into(state: StrEnum, table: dict[tuple[str, str], Edge]) -> list[tuple[str, str]]:
    """Each reason once, with all states from which it leads there."""
    found: dict[str, list[str]] = {}
    for (before, after), edge in table.items():
        if after == state.value:
            found.setdefault(edge.why, []).append(f"`{before}`" if before else "new")
    return [(", ".join(before), why) for why, before in found.items()]


def diagram(noun: str, table: dict[tuple[str, str], Edge], states: type[StrEnum]) -> str:
    """The graph as text that GitHub draws."""
    leaving = {before for before, _ in table}
    lines = ["```mermaid", "flowchart LR"]
    if edges.NEW in leaving:
        lines.append(f'    new(("new {noun}"))')
    lines += [f"    {state.value}([{state.value}])" for state in states if state.value not in leaving]
    found: dict[tuple[str, str], list[str]] = {}
    for (before, after), edge in table.items():
        found.setdefault((before or "new", "-.->" if edge.ours else "-->"), []).append(after)
    lines += [f"    {before} {arrow} {' & '.join(after)}" for (before, arrow), after in found.items()]
    return "\n".join([*lines, "```", ""])


def _joint() -> str:
    return "".join(
        f"- `{status.value}`: {sentence(rule).removeprefix(f'{status}: ')}\n"
        for status, rule in JOINT.items()
        if not status.final
    )


def sentence(rule: Callable[..., Any]) -> str:
    """What a rule says about itself first, in few words; the rest stands in the code."""
    first, *others = re.split(r"(?<=\.) ", " ".join((inspect.getdoc(rule) or "").split()))
    for other in others:
        if len(f"{first} {other}".split()) > SHORT:
            break
        first = f"{first} {other}"
    said = first.removesuffix(".")
    return said[:1].upper() + said[1:]


def comments(states: type[StrEnum]) -> dict[str, str]:
    """The sentence that stands beside each member of an enumeration."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.getsource(states).splitlines():
        begins = line.strip().partition(" = ")[0]
        name = begins if begins in states.__members__ else name
        said = line.partition("#:")[2].strip()
        if name and said:
            found.setdefault(name, said)
    return found


def main(arguments: list[str], target: Path = TARGET) -> int:
    text = page()
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in arguments:
        print(
            f"{target.name} is not what the tables say any more. Run: python -m tools.state_docs",
            file=sys.stderr,
        )
        return 1
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

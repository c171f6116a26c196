"""Makes docs/states.md: the state diagrams and tables, from the tables that the code itself runs on.

python -m tools.state_docs            write it
python -m tools.state_docs --check    exit 1 if it is not what the tables say
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.core import edges, events
from ecs_gpu_recovery.core.edges import Edge
from ecs_gpu_recovery.core.job.joint import JOINT
from ecs_gpu_recovery.core.job.table import TABLE
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus
from ecs_gpu_recovery.core.node import table as nodes
from tools.project import ROOT

TARGET = ROOT / "docs" / "states.md"
#: Answered by the same rules for jobs and nodes.
ORDERS = (events.OrderSent, events.OrderFailed, events.OrdersClaimed)
#: So many words of what a rule says are on the page, if its first sentence has no more.
SHORT = 19
MADE = "<!-- Made by `make docs`. Change the code, not this page. -->\n"
INTRO = """
# States

A job, its tasks and its nodes each have a state. Every move that exists is below, with its reason; any other raises
an error. Moves with a dashed arrow (⇢) are ours: they close gaps that the original state graphs leave open.

A job in `PENDING_HEALTHCHECK` waits for the checks of its nodes, in `PENDING_RESTART` for a reboot or a lost node;
`FAILED` waits for a person. A fact that is not listed for a state is ignored there. `core/edges.py`,
`core/job/table.py`, `core/job/joint.py` and `core/node/table.py`, from which this page is made, say more of each rule.
"""
JOB_WORDS = """
The rule of a fact *records* it; then the joint rule of the state *concludes* from where all ranks stand, until nothing
moves. So the order in which facts arrive makes no difference.
"""
NODE_WORDS = """
While a job holds a node (`held`), the job's record is the truth and the node's row follows it. A node that no job
holds, or that was handed over, answers for itself. Facts about orders are answered as by a job.

"""


def page() -> str:
    """The whole page. The same tables always give the same text."""
    parts = [
        MADE,
        INTRO,
        _section("Jobs", "job", edges.JOB, JobStatus),
        _section("Tasks", "task", edges.TASK, TaskStatus),
        _section("Nodes", "node", edges.NODE, NodeStatus),
        "\n## What a job does with each fact\n",
        JOB_WORDS,
        _joint(),
        "\n",
        _answers(events.JOB_EVENTS, {status.value: TABLE[status] for status in JobStatus}),
        "\n## What a node does with each fact\n",
        NODE_WORDS,
        _answers(
            [fact for fact in events.NODE_EVENTS if fact not in ORDERS],
            {status.value: nodes.TABLE[status] for status in NodeStatus} | {"held": nodes.HELD},
        ),
    ]
    return "".join(parts)


def _section(title: str, noun: str, table: dict[tuple[str, str], Edge], states: type[StrEnum]) -> str:
    said = comments(states)
    rows = ((f"`{state.value}`", said[state.name]) for state in states)
    return "".join(
        [
            f"\n## {title}\n\n",
            _table(("state", f"the {noun}"), rows),
            "\n",
            diagram(noun, table, states),
            "\n",
            _table(("move", "because"), _moves(table)),
        ]
    )


def _moves(table: dict[tuple[str, str], Edge]) -> list[tuple[str, str]]:
    """Each reason once, with all moves to one state that it leads to."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for (before, after), edge in table.items():
        found.setdefault(("⇢" if edge.ours else "→", after, edge.why), []).append(before)
    return [
        (f"{', '.join(f'`{one}`' if one else 'new' for one in before)} {arrow} `{after}`", why)
        for (arrow, after, why), before in found.items()
    ]


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
    rows = (
        (f"`{status.value}`", sentence(rule).removeprefix(f"{status}: "))
        for status, rule in JOINT.items()
        if not status.final
    )
    return "\n" + _table(("state", "what is concluded"), rows)


Row = Mapping[type[events.Fact], Callable[..., Any]]


def _answers(facts: Iterable[type[events.Fact]], table: Mapping[str, Row]) -> str:
    """Each answer once, with the facts it is given to, below the states in which it is given."""
    found: dict[str, dict[str, list[str]]] = {}
    for fact in facts:
        for state, row in table.items():
            if row[fact].__name__ != "ignore":
                found.setdefault(sentence(row[fact]), {}).setdefault(fact.__name__, []).append(state)
    lists: dict[str, list[str]] = {}
    for said, given in found.items():
        for states in dict.fromkeys(map(tuple, given.values())):
            some = ", ".join(fact for fact, where in given.items() if tuple(where) == states)
            lists.setdefault(_where(states, list(table)), []).append(f"- {some}: {said}")
    return "\n".join("\n".join([f"In {where}:", "", *lines, ""]) for where, lines in lists.items())


def _where(states: Sequence[str], known: Sequence[str]) -> str:
    """The shorter way to say it. `final` stands for the three states in which a job is over."""
    some, most = _shortened(states), _shortened(known)
    others = [state for state in most if state not in some]
    if not others:
        return "any state"
    if len(others) < len(some):
        return "all but " + ", ".join(f"`{state}`" for state in others)
    return ", ".join(f"`{state}`" for state in some)


def _shortened(states: Sequence[str]) -> list[str]:
    final = [status.value for status in JobStatus if status.final]
    if not set(final) <= set(states):
        return list(states)
    return [*(state for state in states if state not in final), "final"]


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


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


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

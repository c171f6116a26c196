"""The pages about the tables name every attribute that is written, with its type, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ecs_gpu_recovery.aws.tables import TABLES, Table
from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus
from tests.stories.plots import gpu_fault
from tests.stories.world import World, a_world
from tools import schema_docs
from tools.schema_words import INDEX_ZH, STATUS_ZH

PARTS = {part.table.name: part for part in schema_docs.PARTS}
#: What the published schema has, and what others rely on.
SCHEMA = {
    "ecs_task": 16,
    "ecs_job": 11,
    "ecs_node": 9,
}


@pytest.fixture(scope="module")
def written() -> Iterator[dict[str, dict[str, set[str]]]]:
    """Every attribute of every table with its types, as a night with a fault and a person's doings wrote them."""
    found: dict[str, dict[str, set[str]]] = {name: {} for name in PARTS}
    with a_world() as world:
        world.wire.after.append(lambda *_: note(world, found))
        world.begin(2)
        gpu_fault(world)
        world.run()
        asked = NodeAsked(at=world.now(), node="n0", ask="check", by="ann", why="", level="quick")
        world.side.runtime.handle_node("n0", [asked])
        for record in (("job", "j1"), ("node", "n0")):
            world.side.store.tell_once(*record, "nonsense", lambda: None)
        world.side.store.forget_node(world.side.store.node("n0"), world.now())
        yield found


def note(world: World, found: dict[str, dict[str, set[str]]]) -> None:
    db: Any = world.account.client("dynamodb")
    for name, attributes in found.items():
        for row in db.rows(name).values():
            for attribute, value in row.items():
                attributes.setdefault(attribute, set()).update(value)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_attribute_that_is_written_is_described_with_its_type(
    written: dict[str, dict[str, set[str]]], table: Table
) -> None:
    described = {a.name: {a.kind} for a in PARTS[table.name].attributes}
    seen = {name: kinds - {"B"} for name, kinds in written[table.name].items()}
    assert seen == described


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_published_schema_is_whole(table: Table) -> None:
    attributes = PARTS[table.name].attributes
    assert len([a for a in attributes if a.seed]) == SCHEMA[table.name]
    assert table.key in {a.name for a in attributes if a.seed}
    assert all(a.kind in ("S", "L") for a in attributes if a.seed), "all texts, or lists of texts"


def test_every_index_and_every_state_has_chinese_words() -> None:
    assert set(INDEX_ZH) == {(table.name, index.name) for table in TABLES for index in table.indexes}
    for name, states in (("job", JobStatus), ("task", TaskStatus), ("node", NodeStatus)):
        assert list(STATUS_ZH[name]) == [state.value for state in states]


@pytest.mark.parametrize("name", list(schema_docs.PAGES))
def test_the_page_is_what_the_code_says(name: str) -> None:
    from tools.docs import DOCS

    assert (DOCS / name).read_text(encoding="utf-8") == schema_docs.PAGES[name](), "run: make docs"

"""Keys and tokens: orders and tasks of the last release are recognised by them, so their spelling never changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.keys import Key
from ecs_gpu_recovery.core.model import Rank
from ecs_gpu_recovery.core.node_record import Node

from .story import T0

RANK = Rank(index=2, node="n2", task_attempt=1, start_try=3, check_try=4)
NODE = Node(name="n0", cluster="c", created_at=T0, updated_at=T0, check_try=5)

SPELLINGS = [
    (keys.start("j", RANK), "j/1/2/start/3", Key(kind="start", job="j", attempt=1, rank=2, last="3")),
    (keys.stop("j", RANK), "j/1/2/stop/3", Key(kind="stop", job="j", attempt=1, rank=2, last="3")),
    (keys.ghost_stop("j", "t9"), "j/ghost/t9", Key(kind="ghost", job="j", last="t9")),
    (keys.check("j", RANK), "j/2/check/4", Key(kind="check", job="j", rank=2, last="4")),
    (
        keys.check_stop(keys.check("j", RANK)),
        "j/2/check/4/stop",
        Key(kind="check", job="j", rank=2, last="4", then="stop"),
    ),
    (keys.reboot("j", 1, 2), "j/1/2/reboot", Key(kind="reboot", job="j", attempt=1, rank=2)),
    (keys.archive("j", 7), "j/archive/7", Key(kind="archive", job="j", last="7")),
    (keys.job_failed("j"), "j/notify/failed", Key(kind="notify", job="j", last="failed")),
    (keys.nodes_unresponsive("j"), "j/notify/unresponsive", Key(kind="notify", job="j", last="unresponsive")),
    (
        keys.stuck(keys.reboot("j", 1, 2)),
        "j/1/2/reboot/stuck",
        Key(kind="reboot", job="j", attempt=1, rank=2, then="stuck"),
    ),
    (keys.node_check(NODE), "node/n0/check/5", Key(kind="check", node="n0", last="5")),
    (keys.node_reboot("n0", 6), "node/n0/reboot/6", Key(kind="reboot", node="n0", last="6")),
    (keys.node_failed("n0", 6), "node/n0/notify/6", Key(kind="notify", node="n0", last="6")),
    (
        keys.archive(keys.record_of_node("n0"), 8),
        "node/n0/archive/8",
        Key(kind="archive", node="n0", last="8"),
    ),
]


@pytest.mark.parametrize(("made", "spelling", "meaning"), SPELLINGS, ids=[row[1] for row in SPELLINGS])
def test_a_key_is_spelled_as_ever_and_read_as_it_was_meant(made: str, spelling: str, meaning: Key) -> None:
    assert made == spelling
    assert keys.parse(spelling) == meaning


def test_the_token_of_a_task_is_the_digest_that_older_releases_have_put_on_theirs() -> None:
    assert keys.start_token("j", RANK) == keys.token("j/1/2/train/3") == "gr-7501cc02a8462225b8537f5d33a7e8f7"
    assert keys.agents_token("arn:aws:ecs:eu-west-1:1:cluster/c", "f") == keys.token("metrics-agent/c/f")


@given(st.text(min_size=1).filter(lambda name: name != "node"))
def test_a_job_of_any_name_is_found_again_in_the_key_of_its_reboot(name: str) -> None:
    key = keys.parse(keys.reboot(name, 1, 0))
    assert key is not None
    assert (key.job, key.attempt, key.rank) == (name, 1, 0)


@pytest.mark.parametrize("text", ["", "j", "j/1/2/reboots", "/1/2/reboot", "j/one/2/reboot", "a" * 64])
def test_what_is_no_key_is_not_read_as_one(text: str) -> None:
    assert keys.parse(text) is None

"""A job that neither trains nor dies: what two witnesses do, what one does, and when none is heard."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.core import witness
from ecs_gpu_recovery.core.effects import CheckNode, Notify, StopTask
from ecs_gpu_recovery.core.events import GangStalled, NodePulse, ProgressSeen
from ecs_gpu_recovery.core.model import ANOTHER_TOOL, Budget, JobStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import WHOLE_JOB, Node, Wrote
from ecs_gpu_recovery.core.policy import Policy
from tests.core.story import MINUTE, POLICY, T0, Story, a_new_job, a_running_job, like, some_nodes

LATER = T0 + 11 * MINUTE


def stalled(**about: Any) -> GangStalled:
    """Both witnesses, eleven minutes after both began."""
    given = {"at": LATER, "attempt": 0, "still_since": T0, "silent_since": T0, "spinning": True, **about}
    given.setdefault("still_until", given["at"] if given["still_since"] else None)
    return GangStalled(**given)


def test_two_witnesses_stop_the_gang_and_its_nodes_are_examined() -> None:
    job = a_running_job(nodes=3).hears(stalled(odd=("n1",), what="n1: 8 idle"))
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.orders == [like(StopTask, rank=i) for i in range(3)]
    assert all("the gang hangs" in order.reason for order in job.orders if isinstance(order, StopTask))
    move = next(entry for entry in job.job.timeline if entry.after == "PENDING_HEALTHCHECK")
    assert move.why == "rank 1 on n1 hung"
    assert move.evidence == (
        "no GPU has worked since 02:00:00 and no rank has written since 02:00:00; the others wait for it"
    )
    assert any(entry.evidence == "n1: 8 idle" for entry in job.job.timeline)


def test_the_odd_node_is_examined_one_level_deeper() -> None:
    job = a_running_job(nodes=2).hears(stalled(odd=("n1",))).stops(0)
    assert job.orders == [like(CheckNode, rank=0, level="2")]
    assert job.stops(1).orders == [like(CheckNode, rank=1, level="3")]


def test_where_no_rank_stands_out_all_are_suspect() -> None:
    job = a_running_job(nodes=2).hears(stalled()).stops(0, 1).check_says(Verdict.HEALTHY, 0, 1)
    assert job.status is JobStatus.FAILED
    assert job.job.outcome == "the whole gang hung; no GPU fault found"
    (told,) = (order for order in job.orders if isinstance(order, Notify))
    assert "Where its ranks stood: gpu-recovery evidence j." in told.next


@pytest.mark.parametrize("spinning", [True, False])
def test_who_is_told_of_a_hang_is_told_what_was_kept_of_it(spinning: bool) -> None:
    """Where all GPUs rest nobody has looked: it may be anything."""
    late = {"silent_since": None} if spinning else {"spinning": False}
    (told,) = a_running_job(nodes=2).hears(stalled(**late)).orders
    assert isinstance(told, Notify)
    assert ("gpu-recovery evidence j" in told.next) is spinning


def test_a_fault_behind_the_hang_is_repaired_and_the_hang_forgotten() -> None:
    job = a_running_job(nodes=2).hears(stalled(odd=("n1",))).stops(0, 1)
    job.check_says(Verdict.HEALTHY, 0).check_says(Verdict.REBOOT, 1)
    assert (job.status, job.job.attempt) == (JobStatus.PENDING_RESTART, 1)
    job.reboots(1)
    assert not any(rank.hung for rank in job.job.ranks)


#: What is missing for two witnesses, and whether a person is told instead.
ONE_WITNESS: dict[str, tuple[dict[str, Any], bool]] = {
    "not long enough": ({"at": T0 + 9 * MINUTE}, False),
    "a node spoke last after nine minutes": ({"still_until": T0 + 9 * MINUTE}, False),
    "somebody writes": ({"silent_since": None}, True),
    "silent for a shorter time": ({"silent_since": LATER - 3 * MINUTE}, False),
    "silent for a shorter time, and spinning for long": (
        {"silent_since": T0 + 13 * MINUTE, "at": T0 + 16 * MINUTE},
        True,
    ),
    "it was silent for as long before, and worked": ({"patience": timedelta(minutes=20)}, False),
    "all GPUs rest": ({"spinning": False}, True),
    "all GPUs rest, and somebody writes": ({"spinning": False, "silent_since": None}, False),
    "it has never trained": ({"trained": False}, False),
    "it has not trained for half an hour": ({"trained": False, "at": T0 + 31 * MINUTE}, True),
    "a node does not say": ({"still_since": None}, False),
    "a node does not say, for long": ({"still_since": None, "at": T0 + 31 * MINUTE}, True),
    "another attempt": ({"attempt": 1}, False),
}


@pytest.mark.parametrize("what", ONE_WITNESS)
def test_less_than_two_witnesses_stop_nothing(what: str) -> None:
    about, told = ONE_WITNESS[what]
    job = a_running_job(nodes=2).hears(stalled(**about))
    assert job.status is JobStatus.IN_PROGRESS
    assert job.orders == ([like(Notify, key="j/0/notify/hang")] if told else [])
    assert job.hears(stalled(**about)).orders == [], "people were told twice"


def test_nobody_is_stopped_where_people_only_want_to_be_told() -> None:
    for story in (a_running_job(nodes=2, policy=replace(POLICY, on_hang="notify")), adopted()):
        assert story.hears(stalled()).orders == [like(Notify)]
        assert story.status is JobStatus.IN_PROGRESS


def test_a_gang_without_a_permit_runs_on_and_people_are_told_once() -> None:
    job = a_running_job(nodes=2).hears(stalled(withheld="waits for a person's yes"))
    assert (job.status, job.orders) == (JobStatus.IN_PROGRESS, [like(Notify)])
    assert job.hears(stalled(withheld="waits for a person's yes")).orders == []
    assert job.hears(stalled()).status is JobStatus.PENDING_HEALTHCHECK


def test_a_job_that_trains_again_is_said_to_once_and_only_where_people_were_alarmed() -> None:
    works = stalled(still_since=None, silent_since=None, spinning=False, works=True)
    calm = a_running_job(nodes=2)
    assert calm.hears(works).orders == []
    alarmed = a_running_job(nodes=2).hears(stalled(silent_since=None))
    assert alarmed.orders == [like(Notify, subject="Job j may hang: no GPU has worked since 02:00:00")]
    assert alarmed.hears(works).orders == [like(Notify, subject="Job j trains again")]
    assert alarmed.job.timeline[-1].why == "the job trains again"
    assert alarmed.hears(works).orders == []


def test_progress_too_says_that_a_job_trains_again() -> None:
    job = a_running_job(nodes=2).hears(stalled(silent_since=None))
    job.hears(ProgressSeen(at=LATER + MINUTE, step=7))
    assert job.orders == [like(Notify, evidence="it came to step 7")]


def adopted() -> Story:
    story = a_running_job(nodes=2)
    story.job = replace(story.job, spec=replace(story.job.spec, submitted_by=ANOTHER_TOOL))
    return story


@pytest.mark.parametrize("spinning", [True, False])
def test_where_some_have_finished_those_that_still_run_are_the_gang(spinning: bool) -> None:
    """One that is seen to run, and stands still, is not waited for for ever."""
    job = a_running_job(nodes=2).finishes(0)
    for _ in range(4):
        job.after(POLICY.start_timeout - MINUTE).starts(1)
    assert job.status is JobStatus.IN_PROGRESS
    job.hears(stalled(at=job.now, spinning=spinning))
    if spinning:
        assert job.status is JobStatus.PENDING_HEALTHCHECK
        assert job.orders == [like(CheckNode, rank=0), like(StopTask, rank=1)]
        assert [rank.hung for rank in job.job.ranks] == [False, True]
    else:
        assert (job.status, job.orders) == (JobStatus.IN_PROGRESS, [like(Notify, key="j/0/notify/hang")])


def test_a_job_that_starts_ends_or_misses_a_node_is_left_to_others() -> None:
    for story in (
        a_new_job(nodes=2),
        a_running_job(nodes=2).person_stops_it(),
        a_running_job(nodes=2).finishes(0).is_seen(1, connected=False),
        a_running_job(nodes=2).is_seen(1, connected=False),
    ):
        assert story.hears(stalled()).orders == []


# -- the witnesses themselves ------------------------------------------------------------------------------------


def node(
    i: int, state: str, *, since: int = 0, at: int = 10, trained: bool = True, wrote: tuple[Wrote, ...] = ()
) -> Node:
    pulse = NodePulse(
        at=T0 + at * MINUTE,
        node=f"n{i}",
        state=state,
        since=T0 + since * MINUTE,
        trained=trained,
        what=state,
        wrote=wrote,
    )
    return decide_node(some_nodes(8, job_id="j", rank=i)[i], pulse, POLICY, T0 + at * MINUTE).node


def test_a_gang_stands_still_since_the_last_of_its_nodes_does() -> None:
    found = witness.gang([node(0, "flat", since=1), node(1, "idle", since=3), node(2, "flat")], LATER, POLICY)
    assert found is not None
    assert (found.since, found.until) == (T0 + 3 * MINUTE, T0 + 10 * MINUTE)
    assert (found.spinning, found.odd) == (True, ("n1",))
    assert found.what == "n0: flat; n1: idle; n2: flat"


@pytest.mark.parametrize(
    ("states", "odd"),
    [
        (["flat", "flat"], ()),
        (["idle", "idle"], ()),
        (["idle", "flat"], ("n0",)),
        (["idle", "idle", "flat"], ()),
    ],
)
def test_the_odd_ones_are_few(states: list[str], odd: tuple[str, ...]) -> None:
    found = witness.gang([node(i, state) for i, state in enumerate(states)], LATER, POLICY)
    assert found is not None
    assert found.odd == odd


@pytest.mark.parametrize(
    ("began", "since"),
    [(None, 3), (0, 3), (3, 3), (5, 5), (10, None), (11, None)],
    ids=["never", "before", "just then", "meanwhile", "when it was last said", "later"],
)
def test_what_was_said_of_an_attempt_is_not_held_against_the_next(
    began: int | None, since: int | None
) -> None:
    said = witness.gang([node(0, "flat", since=3), node(1, "flat", since=2)], LATER, POLICY)
    found = witness.of_attempt(said, None if began is None else T0 + began * MINUTE)
    assert (found and found.since) == (None if since is None else T0 + since * MINUTE)


def test_a_gang_works_again_where_that_is_the_last_word_of_every_node() -> None:
    alarmed = T0 + 9 * MINUTE
    assert witness.works([node(0, "moving"), node(1, "moving", at=1)], alarmed)
    for other in (node(1, "flat"), node(1, "idle"), replace(node(1, "moving"), pulse=None)):
        assert not witness.works([node(0, "moving"), other], alarmed)
    assert not witness.works([node(0, "moving", at=1), node(1, "moving", at=1)], alarmed)


def test_a_node_that_works_is_silent_or_spoke_long_ago_is_no_witness() -> None:
    still = node(0, "flat")
    for other in (node(1, "moving"), some_nodes(2)[1], node(1, "flat", at=7)):
        assert witness.gang([still, other], LATER, POLICY) is None
    assert witness.gang([still, node(1, "flat", at=8)], LATER, POLICY) is not None


def test_the_newest_word_of_a_node_counts_and_its_clock_does_not() -> None:
    said = node(0, "flat")
    older = NodePulse(at=T0 + 9 * MINUTE, node="n0", state="moving", since=T0)
    assert decide_node(said, older, POLICY, LATER).node is said
    ahead = NodePulse(
        at=LATER + timedelta(days=3), node="n0", state="idle", since=LATER + timedelta(days=3) - 2 * MINUTE
    )
    pulse = decide_node(said, ahead, POLICY, LATER).node.pulse
    assert pulse is not None
    assert (pulse.at, pulse.since) == (LATER, LATER - 2 * MINUTE)


def wrote(minute: float, rank: int = 0, *, job: str = "j", pause_s: int = 60) -> Wrote:
    return Wrote(job=job, rank=rank, at=T0 + minute * MINUTE, pause_s=pause_s)


#: What the watches of two nodes say, the first ten minutes after T0, and since when both are silent, if all is said.
TOLD: dict[str, tuple[tuple[Wrote, ...], tuple[Wrote, ...], int, float | None]] = {
    "each of its own rank": ((wrote(1),), (wrote(2, 1),), 10, 2),
    "one sees the progress file of the job": ((wrote(1), wrote(3, WHOLE_JOB)), (wrote(2, 1),), 10, 3),
    "one does not say": ((wrote(1),), (), 10, None),
    "one spoke long ago": ((wrote(1),), (wrote(2, 1),), 7, None),
    "one speaks for the rank of the other": ((wrote(1),), (wrote(2, 0),), 10, None),
    "one speaks of another job": ((wrote(1),), (wrote(2, 1, job="k"),), 10, None),
    "one has not written in this attempt": ((wrote(1),), (wrote(-1, 1),), 10, None),
}


@pytest.mark.parametrize("what", TOLD)
def test_a_gang_is_silent_since_the_last_of_its_ranks_wrote_where_every_watch_says_so(what: str) -> None:
    first, second, at, since = TOLD[what]
    job = replace(a_running_job(nodes=2).job, budget=Budget(started=T0))
    nodes = {"n0": node(0, "flat", wrote=first), "n1": node(1, "flat", at=at, wrote=second)}
    found = witness.silence(job, job.ranks, nodes, LATER, POLICY)
    assert (found and found.since) == (None if since is None else T0 + since * MINUTE)
    assert witness.silence(job, job.ranks, {"n0": nodes["n0"]}, LATER, POLICY) is None


def test_the_patience_with_silent_ranks_is_that_with_the_most_talkative_and_what_nobody_has_heard() -> None:
    job = a_running_job(nodes=2).job
    said = (wrote(1, pause_s=300), wrote(2, 1, pause_s=60))
    nodes = {f"n{i}": node(i, "flat", at=9 + i, wrote=said) for i in (0, 1)}
    found = witness.silence(job, job.ranks, nodes, LATER, POLICY)
    assert found is not None
    assert found.patience == 5 * MINUTE + 2 * MINUTE
    assert found.what == "rank 0 last wrote at 02:01:00, rank 1 last wrote at 02:02:00"


@pytest.mark.parametrize(
    ("rank", "kept"), [(0, [0, WHOLE_JOB]), (8, [WHOLE_JOB, 8]), (None, [0, WHOLE_JOB, 1, 2])]
)
def test_a_node_keeps_what_is_said_of_its_own_rank_by_our_clock(rank: int | None, kept: list[int]) -> None:
    ahead = timedelta(days=3)
    said = [wrote(8, job="k"), wrote(8), wrote(8, WHOLE_JOB), *(wrote(8, i) for i in range(1, 99))]
    said = [replace(one, at=LATER + ahead - MINUTE) for one in said]
    pulse = NodePulse(at=LATER + ahead, node="n0", state="flat", since=LATER, wrote=tuple(said))
    found = decide_node(replace(node(0, "flat"), rank=rank), pulse, POLICY, LATER).node.pulse
    assert found is not None
    assert [one.rank for one in found.wrote] == kept
    assert {(one.job, one.at) for one in found.wrote} == {("j", LATER - MINUTE)}


def test_eight_ranks_that_write_into_one_shared_folder_are_silent_since_the_last_of_them_wrote() -> None:
    job = a_running_job(nodes=8).job
    shared = tuple(wrote(8 - i, i) for i in range(8))
    nodes = {f"n{i}": node(i, "flat", wrote=shared) for i in range(8)}
    found = witness.silence(job, job.ranks, nodes, LATER, POLICY)
    assert found is not None
    assert found.since == T0 + 8 * MINUTE


def test_the_patience_of_witnesses_follows_that_of_people() -> None:
    assert (POLICY.silent_after, POLICY.witness_age) == (5 * MINUTE, 3 * MINUTE)
    assert Policy(hang_after=timedelta(seconds=10)).silent_after == timedelta(seconds=5)

"""What other tools read follows from the job record, and an older record never speaks over a newer one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.effects import Archive
from ecs_gpu_recovery.core.model import Entry, Job, JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.rows import changes, claimed_node, held_node, job_row, node_row, task_row
from tests.core.story import (
    POLICY,
    T0,
    Story,
    a_job_awaiting_reboot,
    a_job_under_test,
    a_new_job,
    a_running_job,
    some_nodes,
)


def held_by(job: Job, rank: int = 0) -> Node:
    """The node's row as the job's claim left it."""
    return replace(some_nodes(rank + 1)[rank], job_id=job.id, status=NodeStatus.ASSIGNED)


def test_the_job_row_has_the_schemas_names_and_types() -> None:
    row = job_row(a_running_job(nodes=2).job)
    assert row["job_status"] == "IN_PROGRESS"
    assert (row["retry"], row["num_nodes"]) == ("0", "2"), "digits as strings"
    assert row["submitted_ecs_task_ids"] == ["t0.0.1", "t1.0.1"]


def test_a_rank_without_a_task_has_no_task_row() -> None:
    job = a_new_job(nodes=1).job
    assert task_row(job, job.ranks[0]) is None


def test_a_task_row_keeps_the_attempt_of_its_task_while_the_next_one_is_prepared() -> None:
    job = a_job_awaiting_reboot(nodes=2).job
    row = task_row(job, job.ranks[0])
    assert row is not None
    assert (job.attempt, row["retry"], row["task_status"], row["exit_code"]) == (1, "0", "TERMINATED", "1")
    assert all(isinstance(value, str) for value in row.values())


def test_a_held_node_shows_what_its_job_says() -> None:
    job = a_running_job(nodes=1).job
    node = held_node(held_by(job), job)
    assert node is not None
    assert (node.status, node.job_id, node.job_version) == (NodeStatus.IN_PROGRESS, "j", job.version)
    assert node_row(node)["node_status"] == "IN_PROGRESS"


def test_an_older_record_does_not_overwrite_a_newer_one() -> None:
    story = a_new_job(nodes=1)
    old = story.job
    new = story.starts().job
    node = held_node(held_by(old), new)
    assert node is not None
    assert held_node(node, old) is None
    assert held_node(node, new) is None, "nor does the same one, twice"


def test_a_job_says_nothing_about_a_node_it_does_not_hold() -> None:
    job = a_running_job(nodes=1).job
    assert held_node(replace(held_by(job), job_id="other"), job) is None
    assert held_node(replace(held_by(job), name="n9"), job) is None


def test_a_job_that_ended_gives_its_nodes_back() -> None:
    job = a_running_job(nodes=1).finishes().job
    node = held_node(held_by(job), job)
    assert node is not None
    assert (node.job_id, node.status, node.claimable) == ("", NodeStatus.AVAILABLE, True)


def test_a_failed_node_is_given_back_with_its_verdict() -> None:
    job = a_job_under_test(nodes=1).check_says(Verdict.REPLACE, findings="SRAM").job
    node = held_node(held_by(job), job)
    assert node is not None
    assert (node.status, node.verdict, node.findings, node.claimable) == (
        NodeStatus.FAILED,
        Verdict.REPLACE,
        "SRAM",
        False,
    )


def test_an_unfinished_reboot_goes_on_as_the_nodes_own_errand() -> None:
    story = a_job_awaiting_reboot(nodes=1)
    before = story.node(0)
    node = held_node(before, story.person_stops_it().job)
    assert node is not None
    assert (node.job_id, node.status, node.reboot_key, node.deadline, node.outbox) == (
        "",
        NodeStatus.REBOOTING,
        "j/1/0/reboot",
        before.deadline,
        before.outbox,
    )
    assert not node.claimable


def test_a_claimed_node_is_assigned_and_has_a_clean_slate() -> None:
    job = a_new_job(nodes=1).job
    node = claimed_node(replace(some_nodes(1)[0], findings="old", verdict=Verdict.HEALTHY), job)
    assert (node.status, node.job_id, node.findings, node.verdict) == (NodeStatus.ASSIGNED, "j", "", None)
    assert node.refusal == "in use by job j"
    assert (node.updated_at, node.rank) == (T0, 0)


def test_a_step_changes_the_rows_of_those_it_concerns() -> None:
    story = a_running_job(nodes=3)
    before = story.job
    after = story.is_seen(1, connected=False).job
    assert not changes(before, after).ranks, "no row shows it"
    after = story.fails(2).job
    step = changes(before, after)
    assert [(row["ecs_task_id"], row["task_status"]) for row in step.tasks] == [("t2.0.1", "TERMINATED")]
    assert [(rank.node, rank.node_status) for rank, _ in step.nodes] == [
        (name, NodeStatus.PENDING) for name in ("n0", "n1", "n2")
    ]
    assert not step.opens


def test_a_node_tells_what_happened_to_it_in_the_hands_of_its_job() -> None:
    """Whichever way its row was written, and however often it was tried."""
    story = a_new_job(nodes=1)
    before, node = story.job, claimed_node(some_nodes(1)[0], story.job)
    for job in (story.starts().job, story.fails(0).job):
        step = changes(before, job)
        alone = held_node(node, job)
        node = held_node(node, job, step.nodes[0][1]) or node
        assert alone == node, "the record alone tells the same"
        assert held_node(node, job) is None
        before = job
    assert [(e.before, e.after, e.job) for e in node.timeline] == [
        ("AVAILABLE", "ASSIGNED", "j"),
        ("ASSIGNED", "IN_PROGRESS", "j"),
        ("IN_PROGRESS", "PENDING", "j"),
    ]
    assert node.timeline[-1].why == "its job failed"


def test_a_node_whose_job_has_dropped_the_line_says_why_the_job_moved() -> None:
    job = a_running_job(nodes=1).fails(0).job
    bare = replace(job, timeline=tuple(entry for entry in job.timeline if entry.subject == "job"))
    node = held_node(held_by(job), bare)
    assert node is not None
    assert (node.timeline[-1].after, node.timeline[-1].why) == ("PENDING", bare.timeline[-1].why)


def test_a_story_that_becomes_too_long_is_archived_and_not_cut() -> None:
    job = a_running_job(nodes=1).job
    old = tuple(Entry(at=T0, subject="n0", before="", after="", why=f"line {i}") for i in range(50))
    node = held_node(replace(held_by(job), timeline=old), job)
    assert node is not None
    (order,) = node.outbox
    assert isinstance(order.effect, Archive)
    assert len(order.effect.lines) + len(node.timeline) == 50 + 1
    assert node.timeline[-1].after == "IN_PROGRESS"


@pytest.mark.parametrize(
    ("check", "answered", "new"),
    [(True, False, True), (True, True, False), (False, False, False)],
    ids=["stopped before its check has answered", "examined", "used"],
)
def test_a_node_is_new_until_a_job_has_examined_or_used_it(check: bool, answered: bool, new: bool) -> None:
    story = Story(nodes=1, fresh=True, policy=replace(POLICY, admission_check=check))
    if answered:
        story.check_starts(0).check_says(Verdict.HEALTHY, 0)
    elif not check:
        story.starts(0)
    story.person_stops_it().stops(*([] if story.status.final else [0]))
    assert story.status is JobStatus.USER_STOPPED
    assert (story.node(0).job_id, story.node(0).fresh) == ("", new)

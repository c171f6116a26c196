"""Four plain words for a node, and an overview that is green only when nothing is known to be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.console import pulses, views
from ecs_gpu_recovery.console.headlines import AMBER, GREEN, RED, Seen, headlines
from ecs_gpu_recovery.console.pages import svg
from ecs_gpu_recovery.console.pages.render import Renderer
from ecs_gpu_recovery.core.effects import Order, RebootNode
from ecs_gpu_recovery.core.events import FAULT, PROGRAM_FAULT
from ecs_gpu_recovery.core.job.hang import NOTED, SEEN
from ecs_gpu_recovery.core.model import Entry, Job, NodeStatus, Verdict
from ecs_gpu_recovery.core.node_record import Condemnation, Hold, Node, Pulse
from ecs_gpu_recovery.standing import standing
from tests.core.story import POLICY, T0, a_job_awaiting_reboot, a_running_job, some_nodes

XID = "Xid 79 on GPU 0000:01:00 (fallen off the bus) | NVRM: Xid 79"
HOLD = Hold(by="olga", why="new cable", at=T0)


def node(**about: Any) -> Node:
    return replace(some_nodes(1)[0], **about)


def entry(why: str, before: str = "AVAILABLE", after: str = "AVAILABLE", minutes: int = 0) -> Entry:
    at = T0 + timedelta(minutes=minutes)
    return Entry(at=at, subject="n0", before=before, after=after, why=why, evidence=XID)


FAULTY = (entry(FAULT),)
REPLACING = (Condemnation(at=T0, verdict=Verdict.REPLACE, findings="Xid 48", repair="replace"),)
REPLACED = (replace(REPLACING[0], outcome="replaced by i-2"),)
EXAMINED = (*FAULTY, entry("the check found no GPU fault", "PENDING_HEALTHCHECK"))


@pytest.mark.parametrize(
    ("about", "word", "why"),
    [
        ({}, "free", ""),
        (
            {"verdict": Verdict.INCONCLUSIVE, "findings": "DCGM is absent"},
            "free",
            "not tested: DCGM is absent",
        ),
        ({"spare": True}, "free", "kept as a spare"),
        (
            {"spare": True, "verdict": Verdict.INCONCLUSIVE, "findings": "DCGM is absent"},
            "free",
            "kept as a spare; not tested: DCGM is absent",
        ),
        ({"hold": HOLD}, "drained", "by olga: new cable"),
        ({"job_id": "j"}, "busy", "waiting for the rest of its job"),
        ({"job_id": "j", "status": NodeStatus.IN_PROGRESS, "hold": HOLD}, "busy", "running"),
        ({"status": NodeStatus.REBOOTING}, "busy", "rebooting"),
        ({"status": NodeStatus.FAILED, "findings": "Xid 48"}, "bad", "Xid 48"),
        ({"status": NodeStatus.FAILED}, "bad", "a person must look at it"),
        ({"status": NodeStatus.UNKNOWN}, "bad", "not heard from"),
        ({"status": NodeStatus.REBOOTING, "condemned": REPLACING}, "busy", "its machine is being replaced"),
        ({"status": NodeStatus.UNKNOWN, "condemned": REPLACING}, "busy", "its machine is being replaced"),
        (
            {"status": NodeStatus.UNKNOWN, "gone": True, "condemned": REPLACED},
            "drained",
            "its machine is gone; i-2 has come for it",
        ),
        ({"gpus_seen": 7}, "bad", "only 7 of 8 GPUs are there"),
        ({"timeline": FAULTY}, "bad", "Xid 79 on GPU 0000:01:00 (fallen off the bus)"),
        ({"timeline": EXAMINED}, "free", ""),
        ({"timeline": (entry(PROGRAM_FAULT),)}, "free", ""),
    ],
)
def test_a_node_is_free_busy_drained_or_bad(about: dict[str, Any], word: str, why: str) -> None:
    said = standing(node(**about))
    assert (said.word, said.why) == (word, why)


def told(live: int, jobs: list[Job], *nodes: Node) -> list[tuple[str, str]]:
    seen = Seen(live, jobs, [views.node_view(node) for node in nodes])
    return [(line.status, line.said.key.format(**line.said.values)) for line in headlines(seen)]


def test_a_machine_that_is_replaced_is_nobodys_trouble() -> None:
    lost = node(name="n1", status=NodeStatus.UNKNOWN)
    going, gone = (
        node(status=NodeStatus.UNKNOWN, gone=True, condemned=each) for each in (REPLACING, REPLACED)
    )
    assert told(0, [], going, gone, node()) == [(GREEN, "All is well. No job is active.")]
    assert told(0, [], gone, lost) == [(AMBER, "Not heard from: n1.")]


@pytest.mark.parametrize(
    ("language", "said", "label"),
    [
        ("en", "its machine is gone; i-2 has come for it", "Replaced by"),
        ("zh", "其机器已移除，由 i-2 接替", "接替者"),
    ],
)
def test_the_page_of_a_replaced_node_leads_to_the_machine_that_came(
    language: str, said: str, label: str
) -> None:
    gone = views.node_view(node(status=NodeStatus.FAILED, gone=True, condemned=REPLACED))
    renderer = Renderer(language, None)
    page = renderer.render("_node_head.html", node=gone, slow=(), waits=())
    assert f'<dt>{label}</dt><dd><a href="/nodes/i-2">i-2</a></dd>' in page
    assert 'class="todo"' not in page, "nobody has to do anything"
    assert renderer.node_why(gone) == said


def test_the_overview_is_green_only_when_nothing_is_known_to_be_wrong() -> None:
    fine, running, healing = node(), a_running_job(nodes=2).job, a_job_awaiting_reboot(nodes=2).job
    assert told(0, [], fine) == [(GREEN, "All is well. No job is active.")]
    assert told(3, [running], fine) == [(GREEN, "All is well. Active jobs: 3.")]
    assert told(0, []) == [(AMBER, "There are no nodes yet.")]
    gone = [node(name="a", status=bad, gone=True) for bad in (NodeStatus.FAILED, NodeStatus.UNKNOWN)]
    assert told(0, [], fine, *gone) == [(GREEN, "All is well. No job is active.")]
    assert told(1, [healing], fine) == [("PENDING_RESTART", "j is recovering by itself.")]
    assert told(
        2,
        [healing, healing],
        fine,
        node(name="broken", status=NodeStatus.FAILED),
        node(name="silent", status=NodeStatus.UNKNOWN),
        node(name="faulty", timeline=FAULTY),
    ) == [
        (RED, "Needs repair: broken."),
        (AMBER, "Not heard from: silent."),
        (AMBER, "A fault was reported, and no job has met it yet: faulty."),
        ("RESTARTING", "2 jobs are recovering by themselves."),
    ]


def test_an_order_that_keeps_failing_is_no_good_news() -> None:
    job = a_running_job(nodes=2).fails(0).job
    failing = tuple(replace(order, tries=6, error="AccessDenied") for order in job.outbox)
    assert (AMBER, "An order of j keeps failing: AccessDenied") in told(
        1, [replace(job, outbox=failing)], node()
    )


def test_a_reboot_that_waits_for_a_permit_is_no_good_news() -> None:
    order = Order(effect=RebootNode(key="k", node="n0"), due=T0)
    waiting = node(status=NodeStatus.PENDING_HEALTHCHECK, reboot_key="k", outbox=(order,))
    assert told(0, [], node(name="n1"), waiting) == [(AMBER, "A repair waits for a permit: n0.")]


def still(state: str = "flat", *, since: int = 20, said: int = 0) -> Pulse:
    """What a node says of its GPUs: how they are, for how many minutes, and how long ago it said so."""
    return Pulse(state=state, since=NOW - timedelta(minutes=since), at=NOW - timedelta(minutes=said))


NOW = T0 + timedelta(hours=1)


@pytest.mark.parametrize(
    ("gang", "words", "wrong"),
    [
        ((None, None), [], False),
        ((still("moving"), still()), ["moving", "flat"], False),
        ((still(), still()), ["flat", "flat"], True),
        ((still(), still("idle")), ["flat", "idle"], True),
        ((still("idle"), still("idle")), ["idle", "idle"], False),  # a pause of all may be anything
        ((still(since=2), still()), ["flat", "flat"], False),  # it may be over in a moment
        ((still(said=9), still()), ["silent", "flat"], False),  # an agent that died proves nothing
    ],
)
def test_a_gang_that_spins_for_long_is_no_good_news(
    gang: Sequence[Pulse | None], words: list[str], wrong: bool
) -> None:
    job = a_running_job(nodes=2).job
    nodes = [
        views.node_view(node(name=f"n{i}", job_id="j", status=NodeStatus.IN_PROGRESS, pulse=pulse))
        for i, pulse in enumerate(gang)
    ]
    assert [pulse.word for pulse in pulses.of_ranks(job, nodes, POLICY, NOW).values()] == words
    since = pulses.still_since(job, nodes, POLICY, NOW)
    assert (since is not None) == wrong
    found = headlines(Seen(1, [job], nodes, still={} if since is None else {"j": since}))
    text = f"No GPU of j has worked since {NOW - timedelta(minutes=20):%H:%M:%S} UTC."
    assert [(line.status, Renderer("en", None).sentence(line.said)) for line in found] == [
        (AMBER, text) if wrong else (GREEN, "All is well. Active jobs: 1.")
    ]


def test_a_rank_that_is_frozen_after_a_fault_is_no_good_news() -> None:
    job = a_running_job(nodes=2).job
    frozen = replace(job.ranks[1], frozen_at=NOW)
    stuck = replace(job, ranks=(job.ranks[0], frozen))
    assert told(1, [stuck], node()) == [
        (AMBER, "No sign of life from a rank of j since a fatal GPU fault: n1.")
    ]


def test_the_chart_of_a_rank_shows_its_power_and_when_the_hang_was_seen() -> None:
    shown = (NOW - timedelta(minutes=10), NOW)
    points = {(NOW - timedelta(minutes=m)).timestamp(): watts for m, watts in ((10, 400.0), (5, 200.0))}
    picture = svg.power_picture(
        points, 400.0, shown, (NOW - timedelta(minutes=5), NOW), [NOW - timedelta(minutes=1)], "n<1>"
    )
    assert 'points="0.0,2.0 50.0,12.0"' in picture
    assert '<rect class="still" x="50.0" width="50.0"' in picture
    assert '<line class="seen" x1="90.0"' in picture
    assert "n&lt;1&gt;" in picture
    said = [Entry(at=NOW, subject="job", before="", after="", why=why) for why in (NOTED, f"{SEEN}x", "no")]
    assert pulses.hangs_seen(said) == [NOW, NOW]


def test_a_headline_leads_to_the_node() -> None:
    seen = Seen(0, [], [views.node_view(node(name="bad node", status=NodeStatus.FAILED))])
    assert headlines(seen)[0].href == "/nodes/bad%20node"


def test_many_nodes_are_shown_by_word_those_in_trouble_first() -> None:
    nodes = [
        node(),
        node(job_id="j", status=NodeStatus.IN_PROGRESS),
        node(status=NodeStatus.FAILED),
        node(hold=HOLD),
        node(job_id="j"),
        node(timeline=FAULTY),
    ]
    groups = Renderer("en", None).by_word([views.node_view(node) for node in nodes])
    assert [(word, len(some)) for word, some in groups] == [
        ("Bad", 2),
        ("Drained", 1),
        ("Busy · running", 1),
        ("Busy · waiting for the rest of its job", 1),
        ("Free", 1),
    ]


def test_the_fleet_says_who_is_repaired_who_waits_for_a_yes_and_who_for_a_person() -> None:
    fault = Condemnation(at=T0, verdict=Verdict.REBOOT)
    reboot = Order(effect=RebootNode(key="k", node="held"), due=T0)
    nodes = [
        node(name="free"),
        node(name="used", job_id="j", status=NodeStatus.IN_PROGRESS),
        node(name="reboots", status=NodeStatus.REBOOTING),
        node(name="gate", status=NodeStatus.PENDING_HEALTHCHECK, condemned=(fault,)),
        node(name="checked", status=NodeStatus.PENDING_HEALTHCHECK),
        node(name="held", status=NodeStatus.PENDING_HEALTHCHECK, reboot_key="k", outbox=(reboot,)),
        node(name="broken", status=NodeStatus.FAILED),
        node(name="silent", status=NodeStatus.UNKNOWN),
        node(name="drained", status=NodeStatus.REBOOTING, hold=HOLD),
        node(name="replaced", status=NodeStatus.UNKNOWN, gone=True, condemned=REPLACING),
        node(name="left", status=NodeStatus.UNKNOWN, gone=True, condemned=REPLACED),
    ]
    shown = [views.node_view(one) for one in nodes]
    assert [names for _, _, names in views.care(shown)] == [
        ["reboots", "gate", "drained", "replaced"],
        ["held"],
        ["broken", "silent"],
    ]
    assert views.in_care(shown) == ["reboots", "gate", "checked", "held", "replaced"], "no job has them"


def test_a_frozen_fleet_is_not_green() -> None:
    (line,) = headlines(Seen(0, [], [views.node_view(node())], frozen="new driver"))
    assert (line.status, line.href) == ("PENDING", "#h-fleet")
    assert "frozen" in line.said.key

"""Looking after nodes: lists, drain, release, check, reboot, and breaking them on purpose."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from ecs_gpu_recovery.local import gpus
from tests.cli.conftest import WHAT_THERE_IS, Command
from tests.embedded.helpers import LiveController, eventually

SLEEP = (sys.executable, "-c", "import time; time.sleep(3600)")
pytestmark = pytest.mark.usefixtures("free_nodes")


def test_nodes_are_listed_in_words_and_as_json(here: Command) -> None:
    told = here("nodes")
    assert told.code == 0
    assert all(f"node-{i}" in told.out for i in (1, 2, 3))
    assert told.out.count("free") == 3
    nodes = here("nodes", "--json").data["nodes"]
    assert [node["name"] for node in nodes] == ["node-1", "node-2", "node-3"]
    for node in nodes:
        assert {"status", "gpus", "job_id", "hold", "connected", "free", "refusal", "boot_id"} <= set(node)
        assert (node["status"], node["free"], node["connected"], node["gpus"]) == ("AVAILABLE", True, True, 2)


def test_a_drained_node_gets_no_job_until_it_is_released(here: Command, live: LiveController) -> None:
    assert here("node", "drain", "node-2", "--why", "new [fans] [/]").code == 0
    assert re.search(r"drained +by \S+: new \[fans\] \[/\]", here("nodes").out)
    assert "new [fans] [/]" in here("nodes").out, "brackets are text, not style"
    here("submit", "--nodes", "node-1,node-2", "--check", "none", "--", *SLEEP).refused("node-2: drained by")
    assert live.side.node("node-1").claimable, "all nodes or none"
    here("submit", "--any", 3, "--check", "none", "--", *SLEEP).refused("wants 3 free nodes, and there are 2")
    data = here("node", "show", "node-2", "--json").data
    assert (data["free"], data["hold"]["why"]) == (False, "new [fans] [/]")
    released = here("node", "release", "node-2", "--why", "fans are in")
    assert released.code == 0
    assert live.side.node("node-2").claimable
    here("node", "show", "node-2").tells("drained by", "released by", "fans are in")


def test_a_job_on_a_drained_node_is_left_alone(here: Command, live: LiveController) -> None:
    job_id = here("submit", "--nodes", "node-1", "--check", "none", "--", *SLEEP).out.split()[1]
    live.started(job_id)
    assert here("node", "drain", "node-1", "--why", "later").code == 0
    assert live.job(job_id).status is JobStatus.IN_PROGRESS
    for what in (("check", "node-1"), ("reboot", "node-1", "--why", "now")):
        here("node", *what).refused(f"in use by job {job_id}")
    assert here("stop", job_id, "--wait").code == 0
    assert not live.side.node("node-1").claimable
    assert here("node", "release", "node-1", "--why", "done").code == 0


def test_a_node_in_use_and_not_drained_has_nothing_to_release(here: Command, live: LiveController) -> None:
    job_id = here("submit", "--nodes", "node-1", "--check", "none", "--", *SLEEP).out.split()[1]
    here("node", "release", "node-1", "--why", "I want it").refused("nothing to release")
    assert here("stop", job_id, "--wait").code == 0


def test_a_healthy_node_passes_its_check(here: Command) -> None:
    here("node", "check", "node-3", "--wait").tells("AVAILABLE", "the check found no GPU fault")
    again = here("node", "check", "node-3", "--wait").out
    assert again.count("the check found no GPU fault") == 1, "what is new, not its whole life"


def test_a_fault_on_a_free_node_is_examined_and_repaired_by_itself(
    here: Command, live: LiveController
) -> None:
    boot = live.cluster.node("node-3").boot_id
    broken = here("node", "inject", "node-3", "off-bus", "--gpu", 1)
    assert (broken.code, broken.out) == (0, "node-3: off-bus done\n")
    eventually(lambda: live.cluster.node("node-3").boot_id != boot, "node-3 is rebooted")
    live.node_is("node-3", NodeStatus.AVAILABLE)
    told = here("node", "show", "node-3").out
    steps = (
        "a fault was seen on it",
        "the check found a GPU fault that a reboot may cure",
        "rebooted; examined once more",
    )
    assert sorted(steps, key=told.index) == list(steps), told
    assert here("node", "check", "node-3", "--wait").code == 0


def test_a_check_that_a_person_asks_for_stays_until_the_node_is_repaired(
    here: Command, live: LiveController
) -> None:
    assert here("node", "drain", "node-3", "--why", "I examine it myself").code == 0
    boot = live.cluster.node("node-3").boot_id
    here("node", "inject", "node-3", "off-bus", "--gpu", 1)
    here("node", "check", "node-3", "--wait", "--why", "it looks odd").tells(
        "it looks odd", "rebooted; examined once more"
    )
    assert live.cluster.node("node-3").boot_id != boot
    refused = here("submit", "--nodes", "node-3", "--", *SLEEP)
    assert refused.code == 4
    assert "node-3: drained by" in refused.err, "a repair lifts no drain"
    assert here("node", "release", "node-3", "--why", "it is well").code == 0
    assert live.side.node("node-3").claimable


def test_a_node_that_no_reboot_cures_is_refused_and_may_be_rebooted_by_a_person(
    here: Command, live: LiveController
) -> None:
    here("node", "inject", "node-3", "permanent")
    live.node_is("node-3", NodeStatus.FAILED)
    assert "the check says replace" in here("node", "show", "node-3").out
    here("submit", "--nodes", "node-3", "--", *SLEEP).refused("node-3: is FAILED")
    here("node", "inject", "node-3", "clear")
    boot = live.cluster.node("node-3").boot_id
    here("node", "reboot", "node-3", "--why", "the GPU is new", "--wait").tells(
        "rebooted; examined once more"
    )
    assert live.cluster.node("node-3").boot_id != boot
    assert here("node", "check", "node-3", "--wait").code == 0


def test_whoever_does_what_the_message_says_gets_the_job_through(
    here: Command, live: LiveController, tmp_path: Path
) -> None:
    once = "import pathlib, sys, time; p = pathlib.Path(sys.argv[1]); p.exists() or (p.touch(), time.sleep(3600))"
    train = (sys.executable, "-c", once, tmp_path / "ran")
    job = ("--nodes", "node-3", "--id", "unlucky", "--max-retries", 0)
    assert here("submit", *job, "--", *train).code == 0
    eventually((tmp_path / "ran").exists, "it trains")
    here("node", "inject", "node-3", "off-bus")
    live.ends("unlucky", JobStatus.FAILED)
    told = here("notices", "--json").data["notices"]
    (message,) = (one for one in told if one["key"] == "unlucky/notify/failed")
    steps = re.findall(r"gpu-recovery ((?:node|retry) .+?)\.(?: |$)", message["next"].replace("'...'", "'x'"))
    assert [step.split()[:2] for step in steps] == [
        ["node", "reboot"],
        ["node", "check"],
        ["retry", "unlucky"],
    ], message
    for step in steps:
        done = here(*shlex.split(step))
        assert done.code == 0, done
    eventually(
        lambda: here("jobs", "--json").data["jobs"][0]["status"] == "COMPLETE", "the second run is through"
    )


def test_a_node_that_needs_a_new_gpu_stays_out_until_a_person_releases_it(
    here: Command, live: LiveController
) -> None:
    here("node", "inject", "node-2", "permanent")
    live.node_is("node-2", NodeStatus.FAILED)
    assert here("node", "check", "node-2", "--wait").code == 1
    messages = here("notices", "--json").data["notices"]
    assert any("node-2" in message["subject"] for message in messages)
    assert here("node", "inject", "node-2", "clear").code == 0
    assert here("node", "release", "node-2", "--why", "new GPU").code == 0
    assert live.side.node("node-2").claimable


def test_a_lost_node_is_missed_and_heard_from_again(here: Command, live: LiveController) -> None:
    assert here("node", "inject", "node-1", "lost").code == 0
    eventually(lambda: not live.side.node("node-1").connected, "node-1 is away")
    assert here("node", "inject", "node-1", "power-on").code == 0
    eventually(lambda: live.side.node("node-1").connected, "node-1 is back")


def test_a_check_that_cannot_run_takes_no_node_out_of_use(here: Command, live: LiveController) -> None:
    here("node", "inject", "node-1", "check-broken")
    here("node", "check", "node-1", "--wait").tells("nothing is proven against it")
    assert here("node", "inject", "node-1", "clear", "--json").data == {"node": "node-1", "done": "clear"}


def test_the_faults_are_listed_with_a_word_about_each(here: Command) -> None:
    for args in (("node-1",), ("node-1", "list")):
        told = here("node", "inject", *args)
        assert told.code == 0
        assert [line.split()[0] for line in told.out.splitlines()] == [
            *gpus.FAULTS,
            "clear",
            "power-on",
        ]
        assert all(len(line.split()) > 3 for line in told.out.splitlines())
    assert here("node", "inject", "node-1", "--json").data["faults"] == gpus.FAULTS


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("node-1", "fire"), 2, "unknown fault 'fire'"),
        (("node-1", "ecc", "--gpu", 7), 2, "no GPU 7"),
        (("node-9", "ecc"), 3, "no node node-9"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(
    here: Command, args: tuple[object, ...], code: int, words: str
) -> None:
    told = here("node", "inject", *args)
    assert told.code == code
    assert words in told.err


@pytest.mark.parametrize("ask", ["show", "check", "drain", "release", "reboot"])
def test_a_node_that_is_not_there_is_code_3(here: Command, ask: str) -> None:
    why = () if ask == "show" else ("--why", "because")
    told = here("node", ask, "nowhere", *why)
    assert (told.code, told.err) == (3, f"gpu-recovery: no node nowhere{WHAT_THERE_IS}")


def test_an_xid_of_ones_choice_is_injected(here: Command, live: LiveController) -> None:
    assert here("node", "inject", "node-1", "xid", "--xid", 63).code == 0
    assert "Xid (PCI:0000:01:00): 63" in (live.cluster.node("node-1").folder / "kmsg").read_text()
    here("node", "inject", "node-1", "clear")


def test_a_spare_is_seen_and_a_job_that_lacks_it_is_told_so(here: Command) -> None:
    nodes = {node["name"]: node for node in here("nodes", "--json").data["nodes"]}
    free = [name for name, node in nodes.items() if node["free"]]
    kept = next(name for name in free if nodes[name]["standing"]["word"] == "free")
    for told in ("kept as a spare", "a spare already"):
        assert told in here("node", "spare", kept, "--why", "kept back").out
    said = here("node", "show", kept, "--json").data["standing"]
    assert (said["word"], said["why"]) == ("free", "kept as a spare")
    refused = here("submit", "--any", 99, "--", "true").err
    assert f"and there are {len(free) - 1}, not counting 1 kept as a spare." in refused
    for told in ("no longer a spare", "no spare already"):
        assert told in here("node", "spare", kept, "--off", "--why", "done").out
    assert "free already" in here("node", "release", kept, "--why", "sure").out

"""Several local processes as the nodes of a job: all well, one slow, one dead, one frozen, one absent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Container, Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.health.collective import pairs, transfer
from ecs_gpu_recovery.health.collective.pairs import PairResult
from tests.programs import eventually

from .conftest import BUSY_MACHINE_S, ROOT

QUICK = ("--mib", "1", "--repeats", "2", "--deadline", "60", "--join-deadline", "60", "--json")


def free_port() -> int:
    with transfer.listen() as listener:
        return int(listener.getsockname()[1])


class Gang:
    """Nodes that are started one by one; none outlives the test."""

    def __init__(self, world: int) -> None:
        self.world, self.port = world, free_port()
        self.running: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, *more: str, wrapper: str = "", **env: str) -> None:
        given = {
            "NNODES": str(self.world),
            "NODE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "JOB_ID": "job-1",
            "GPU_RECOVERY_NODE": f"node-{rank}",
        }
        program = ["-c", wrapper] if wrapper else ["-m", "ecs_gpu_recovery.health"]
        self.running[rank] = subprocess.Popen(
            [sys.executable, "-W", "error", *program, "collective", *QUICK, *more],
            cwd=ROOT,
            env={**os.environ, **given, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_and_hear_it_knock(self, rank: int, *more: str, **env: str) -> None:
        """It looks for a rank 0 that is not there yet, and will go on doing so."""
        with transfer.listen(self.port) as listener:
            listener.settimeout(BUSY_MACHINE_S)
            self.start(rank, *more, **env)
            listener.accept()[0].close()

    def start_all(self, *more: str, **wrapped: str) -> None:
        """`rank_2="..."`: a node that behaves in a way of its own."""
        for rank in range(self.world):
            self.start(rank, *more, wrapper=wrapped.get(f"rank_{rank}", ""))

    def end(self, rank: int) -> tuple[int, dict[str, Any], str]:
        out, err = self.running[rank].communicate(timeout=BUSY_MACHINE_S)
        return self.running[rank].returncode, json.loads(out) if out else {}, err

    def names(self, rank: int = 0) -> tuple[int, list[tuple[str, list[int]]]]:
        """The exit code of a node, and whom its report names."""
        code, report, _ = self.end(rank)
        return code, named(report)

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def gang() -> Iterator[Gang]:
    made = Gang(4)
    yield made
    made.close()


def named(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(f["kind"], f["ranks"]) for f in report["findings"]]


#: A node that behaves until its first test between two, and then does something else.
MISBEHAVES = """
import os, signal, sys
from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.collective import transfer
def instead(*args):
    {act}
transfer.ring = instead
sys.exit(main.run(sys.argv[1:]))
"""


def test_healthy_nodes_all_tell_the_same(gang: Gang) -> None:
    gang.start_all("--slow-share", "0.001")
    ended = [gang.end(rank) for rank in range(4)]
    assert [code for code, _, _ in ended] == [0, 0, 0, 0], ended
    assert all(report == ended[0][1] for _, report, _ in ended)
    report = ended[0][1]
    assert report["schema"] == "gpu-health-collective/1"
    assert report["all_nodes"]["status"] == "ok"
    assert report["all_nodes"]["gbit_s"] > 0
    assert len(report["pairs"]) == 4
    assert [node["name"] for node in report["nodes"]] == [f"node-{rank}" for rank in range(4)]
    assert all(err == "" for _, _, err in ended)


@pytest.mark.slow
def test_a_slow_node_is_named(gang: Gang, tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text(json.dumps({"network_mbit": 8}))
    for rank in (0, 1, 3):  # a busy machine varies a lot, so the limit is far below what it can do
        gang.start(rank, "--min-gbit", "0.012")
    gang.start(2, GPU_HEALTH_SIMULATED=str(tmp_path))
    code, report, _ = gang.end(0)
    assert (code, named(report)) == (4, [("node-slow", [2])])
    assert report["findings"][0]["nodes"] == ["node-2"]
    assert gang.end(3)[0] == 4


#: Only what it sends to one of the others is slow, however fast it is with the rest.
SLOW_TO = """
import sys
from dataclasses import replace
from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.collective import transfer
both = transfer._both
def slowly(place, links, data, names, step):
    return both(replace(place, bytes_per_s=1_000_000) if names[1] == {other} else place, links, data, names, step)
transfer._both = slowly
sys.exit(main.run(sys.argv[1:]))
"""

#: No connection to one of the others comes about, in either direction.
CUT_OFF_FROM = """
import sys
from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.collective import transfer
connect, accept = transfer._connect, transfer._accept
def unless_cut(way):
    def instead(place, other, step):
        if other == {other}:
            raise transfer.LinkError("rank {other} cannot be reached: No route to host")
        return way(place, other, step)
    return instead
transfer._connect, transfer._accept = unless_cut(connect), unless_cut(accept)
sys.exit(main.run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_slow_link_is_named_and_neither_of_its_nodes(gang: Gang) -> None:
    gang.start_all("--min-gbit", "0.012", rank_2=SLOW_TO.format(other=3), rank_3=SLOW_TO.format(other=2))
    assert gang.names() == (4, [("link-slow", [2, 3])])
    assert {gang.end(rank)[0] for rank in (1, 2, 3)} == {4}


def test_a_broken_link_is_named_and_neither_of_its_nodes(gang: Gang) -> None:
    cut = {"rank_2": CUT_OFF_FROM.format(other=3), "rank_3": CUT_OFF_FROM.format(other=2)}
    gang.start_all("--slow-share", "0.001", **cut)
    code, found = gang.names()
    assert code == 4
    assert ("link-broken", [2, 3]) in found
    assert not [ranks for kind, ranks in found if kind.startswith("node-")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "kind"),
    [("os._exit(9)", "node-died"), ("os.kill(os.getpid(), signal.SIGSTOP)", "node-silent")],
    ids=["dies", "freezes"],
)
def test_a_node_that_goes_in_the_middle_is_named_and_the_others_are_tested(
    gang: Gang, act: str, kind: str
) -> None:
    """It costs the deadline: who is not its neighbour waits for those who are."""
    gang.start_all("--slow-share", "0.001", "--deadline", "10", rank_2=MISBEHAVES.format(act=act))
    code, report, _ = gang.end(0)
    assert (code, named(report)) == (4, [(kind, [2])])
    assert report["all_nodes"]["status"] == "failed"
    assert {(p["a"], p["b"]) for p in report["pairs"]} == {(0, 1), (0, 3), (1, 3)}
    assert all(p["gbit_s"] for p in report["pairs"])
    assert gang.end(1)[0] == gang.end(3)[0] == 4


def test_a_node_that_never_comes_is_named_and_the_others_are_tested(gang: Gang) -> None:
    for rank in (1, 3):
        gang.start_and_hear_it_knock(rank, "--slow-share", "0.001")
    gang.start(0, "--slow-share", "0.001", "--join-deadline", "4")
    code, report, _ = gang.end(0)
    assert code == 4
    assert ("node-absent", [2]) in named(report)
    assert report["all_nodes"]["status"] == "left_out"
    assert gang.end(1)[0] == 4


def test_without_rank_0_nothing_is_tested(gang: Gang) -> None:
    gang.start(1, "--join-deadline", "1")
    code, report, _ = gang.end(1)
    assert (code, report["result"]) == (3, "not_tested")
    assert "rank 0 was not reached" in report["why"]


def test_rank_0_dying_is_noticed_by_the_others(gang: Gang) -> None:
    gang.start(1)
    with transfer.listen(gang.port) as listener:
        listener.settimeout(BUSY_MACHINE_S)
        link, _ = listener.accept()
        link.recv(1 << 16)
        link.sendall(b'{"do": "welcome"}\n')
        link.close()
    assert gang.names(1) == (4, [("node-died", [0])])


def test_a_node_of_another_job_is_turned_away(gang: Gang) -> None:
    gang.world = 2
    gang.start_and_hear_it_knock(1, JOB_ID="another")
    gang.start(0, "--join-deadline", "4")
    code, report, _ = gang.end(1)
    assert (code, "another job" in report["why"]) == (3, True)
    _, report, _ = gang.end(0)
    assert named(report) == [("node-absent", [1])]
    assert report["strangers"]


def test_garbage_on_the_port_disturbs_nobody(gang: Gang) -> None:
    gang.world = 2
    gang.start(0, "--slow-share", "0.001")

    def disturbed() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", gang.port), timeout=1) as link:
                link.sendall(b"GET / HTTP/1.1\r\n\r\n\x00\xff\n")
        except OSError:
            return False
        return True

    eventually(disturbed, "rank 0 listens")
    gang.start(1)
    assert gang.end(0)[0] == 0


def test_too_slow_for_a_given_limit_names_the_link(gang: Gang) -> None:
    gang.world = 2
    gang.start_all("--min-gbit", "100000")
    code, report, _ = gang.end(0)
    assert (code, named(report)) == (4, [("link-slow", [0, 1])])
    assert report["all_nodes"]["status"] == "slow"


def test_a_single_node_has_nothing_to_test_with_tcp(gang: Gang) -> None:
    gang.world = 1
    gang.start(0, "--backend", "tcp")
    code, report, _ = gang.end(0)
    assert (code, report["result"]) == (3, "not_tested")


def test_a_port_in_use_and_wrong_arguments_are_not_tested(gang: Gang) -> None:
    with transfer.listen(gang.port):
        gang.start(0)
        code, report, _ = gang.end(0)
    assert code == 3
    assert "cannot be listened on" in report["why"]
    gang.start(1, "--node-rank", "9")
    assert gang.end(1)[0] == 3


def test_no_process_of_ours_reads_as_a_gpu_fault(gang: Gang) -> None:
    """1 and 2 would reboot or replace a node; even a killed test ends otherwise."""
    gang.start_and_hear_it_knock(1)
    gang.running[1].send_signal(signal.SIGTERM)
    assert gang.end(1)[0] not in (1, 2)


# -- rounds of pairs, and who is named by them ------------------------------------------------------------------


def blamed(
    count: int, slow: Container[int] = (), link: tuple[int, int] | None = None, most_rounds: int = 64
) -> list[tuple[int, ...]]:
    """Whom the rounds that a conductor would run name, where some nodes or a link are slow."""
    results: list[PairResult] = []
    rounds = pairs.schedule(range(count))
    for number, a_round in enumerate(rounds, start=1):
        for a, b in a_round:
            bad = a in slow or b in slow or (a, b) == link
            results.append(PairResult(round=number, a=a, b=b, gbit_s=1.0 if bad else 100.0))
        if pairs.enough(rounds, results, pairs.limit_of(results, None)):
            break
    assert number <= most_rounds
    return [one.ranks for one in pairs.blame(results, pairs.limit_of(results, None))]


@pytest.mark.parametrize("count", [2, 5, 8, 11])
def test_over_all_rounds_every_pair_meets_once_and_nobody_has_two_partners_in_one(count: int) -> None:
    rounds = pairs.schedule(range(count))
    assert sorted(chain(*rounds)) == list(combinations(range(count), 2))
    for a_round in rounds:
        ranks = list(chain(*a_round))
        assert len(ranks) == len(set(ranks))


@given(count=st.integers(4, 64), data=st.data())
def test_one_slow_node_is_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    assert blamed(count, {bad}, most_rounds=3) == [(bad,)]


@given(count=st.integers(6, 32), data=st.data())
def test_two_slow_nodes_are_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=2))
    assert set(blamed(count, bad)) == {(rank,) for rank in bad}


@given(count=st.integers(4, 32), data=st.data())
def test_a_slow_link_is_named_without_its_nodes(count: int, data: st.DataObject) -> None:
    link = data.draw(st.sampled_from(pairs.schedule(range(count))[0]))
    assert blamed(count, link=link) == [link]


@given(count=st.integers(2, 64))
def test_equal_nodes_are_never_named(count: int) -> None:
    assert blamed(count) == []


def test_of_three_nodes_the_slow_one_does_not_move_the_measure() -> None:
    assert blamed(3, {2}) == [(2,)]


def test_two_nodes_are_a_link_and_need_a_given_limit() -> None:
    results = [PairResult(round=1, a=0, b=1, gbit_s=1.0)]
    assert pairs.blame(results, pairs.limit_of(results, None)) == []
    (named,) = pairs.blame(results, pairs.limit_of(results, 10.0))
    assert (named.ranks, named.broken) == ((0, 1), False)


def test_a_pair_that_does_not_get_through_is_broken() -> None:
    results = [PairResult(round=1, a=0, b=1, problem="no answer")]
    (named,) = pairs.blame(results, None)
    assert named.broken

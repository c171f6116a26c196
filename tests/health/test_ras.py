"""NCCL's own answer: recorded from NCCL 2.28.9 on an H200, in both of its forms, and over a real socket."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.collective import ras

SAMPLES = Path(__file__).parent / "ras"
#: What happened to rank 1, and what is said of it.
RECORDED = {
    "training": "no rank stands out",
    "stopped": "rank 1 (process 498 on 127.0.0.1) does not answer",
    "killed": "rank 1 (process 563 on 127.0.0.1) does not answer",
    "asleep": "rank 1 (process 636 on 127.0.0.1) is 8 collectives behind",
    "other-collective": "rank 1 (process 701 on 127.0.0.1) is 7 collectives behind",
    "endless": "no rank stands out",
}


@pytest.mark.parametrize("form", ["json", "txt"])
@pytest.mark.parametrize("what", RECORDED)
def test_a_recorded_answer_names_the_odd_rank(what: str, form: str) -> None:
    assert ras.parse((SAMPLES / f"{what}.{form}").read_text()).sentence() == RECORDED[what]


def test_an_error_that_nccl_reports_is_kept_beside_it() -> None:
    assert ras.parse((SAMPLES / "killed.txt").read_text()).errors == ("rank 0 reports Remote process error",)


#: As NVIDIA's guide shows it: most ranks are only counted.
GUIDE = """NCCL version 2.24.3 compiled with CUDA 12.4
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different {kind} operation counts
"""
ON = "-- GPU {} managed by process {} on node 172.16.64.{}"


SIX = (0, 2, 3, 4, 5, 7)


@pytest.mark.parametrize(
    ("lines", "named", "odd"),
    [
        (
            ["26 ranks have launched up to operation 6650", "6 ranks have launched up to operation 6649"],
            SIX,
            1,
        ),
        (
            ["30 ranks have launched up to operation 64", "2 ranks have not launched any operations"],
            (8, 9),
            64,
        ),
        (["31 ranks have launched up to operation 64"], (), 4),
    ],
    ids=["some are behind", "some have not begun", "one is behind"],
)
@pytest.mark.parametrize("kind", ["collective", "AllReduce"])
def test_ranks_that_are_only_counted_are_those_that_wait(
    kind: str, lines: list[str], named: tuple[int, ...], odd: int
) -> None:
    """Several that stand out are counted, and listed below; one alone has its own line."""
    below = [f"Rank {rank} {ON.format(rank, 483072 + rank, 210)}" for rank in named]
    alone = [f"Rank 7 has launched up to operation 60 {ON.format(3, 9, 211)}"] if not named else []
    found = ras.parse(
        GUIDE.format(kind=kind) + "".join(f"  {line}\n" for line in (*lines, *below, *alone))
    ).odd
    assert {o.rank: o.why for o in found} == dict.fromkeys(named or (7,), f"is {odd} collectives behind")
    assert {o.of for o in found} == {32}


def test_ranks_in_another_state_are_not_missing() -> None:
    text = GUIDE.format(kind="x").replace("x operation counts", "status")
    text += f"  31 ranks have status RUNNING\n  Rank 3 has status FINALIZE {ON.format(0, 1, 1)}\n"
    text += f"  2 ranks have status INIT\n  Rank 4 {ON.format(0, 1, 1)}\n  Rank 5 {ON.format(0, 1, 1)}\n"
    assert ras.parse(text).odd == ()


def comm(*counts: int) -> dict[str, object]:
    ranks = [
        {"rank": i, "host": f"10.0.0.{i}", "pid": 100 + i, "collective_counts": {"AllReduce": count}}
        for i, count in enumerate(counts)
    ]
    return {"ranks": ranks, "missing_ranks": []}


@pytest.mark.parametrize(
    ("comms", "odd"),
    [
        ([comm(10, 10, 9, 10)], [2]),
        ([comm(10, 11, 10, 10)], [1]),
        ([comm(9, 9, 10, 10)], [0, 1]),
        ([comm(4, 5), comm(10, 10, 10)], [0]),
        ([comm(5, 4), comm(10, 10, 9)], [2]),
        ([], []),
    ],
)
def test_the_rank_that_most_others_wait_for_is_named(comms: list[object], odd: list[int]) -> None:
    assert [o.rank for o in ras.parse(json.dumps({"communicators": comms})).odd] == odd


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"communicators": 3}', '{"communicators": [{"ranks": [{}]}]}', "hello"]
)
def test_what_is_no_answer_of_nccl_is_refused(text: str) -> None:
    with pytest.raises(ras.NotToldError):
        ras.parse(text)


class Server(threading.Thread):
    """One that speaks as NCCL does: each line is answered, the last with everything."""

    def __init__(self, hello: str, answer: str) -> None:
        super().__init__(daemon=True)
        self._hello, self._answer = hello, answer
        self.heard: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        peer, _ = self._socket.accept()
        with self._socket, peer, peer.makefile("rwb") as lines:
            for line in lines:
                self.heard.append(line.decode().strip())
                last = self.heard[-1].endswith("STATUS")
                first = len(self.heard) == 1
                lines.write((self._answer if last else f"{self._hello if first else 'OK'}\n").encode())
                lines.flush()
                if last:
                    return


def test_it_is_asked_over_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("SERVER PROTOCOL 2", (SAMPLES / "asleep.json").read_text())
    assert main.run(["ras", "--address", server.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["odd"][0]["rank"] == 1
    assert server.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 20", "SET FORMAT json", "VERBOSE STATUS"]


def test_another_program_on_the_port_and_none_at_all_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("HTTP/1.1 400", "")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main.run(["ras", "--address", server.address, "--address", f"127.0.0.1:{port}"]) == ras.NOT_TOLD
    said = capsys.readouterr().out
    assert "is not NCCL" in said
    assert "refused" in said

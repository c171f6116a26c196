"""What a host tells of a task that stands still, whatever else hangs. Shell, NCCL's talk and sending are real."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ecs_gpu_recovery.aws import hang_document
from ecs_gpu_recovery.core.witness import Named
from ecs_gpu_recovery.health.collective import ras
from ecs_gpu_recovery.waited_for import named
from testbed.aws.documents import Documents
from testbed.aws.requests import ApiError
from tests.aws.shell_host import BUCKET, Host
from tests.aws.test_reboot_script import Bucket, bucket  # noqa: F401 (a fixture)
from tests.core.story import a_running_job

RANKS = a_running_job(nodes=2).job.ranks
DOCUMENT, TASK = hang_document.name("Stack"), "0123456789abcdef0123456789abcdef"
IMAGE = f"sha256:{'0a' * 32}"
#: What runs in a container or from an image is run, with the files and the programs of that.
DOCKER = f"""case "$*" in
  "ps -q --no-trunc") echo theirs; echo ours; echo watch;;
  "ps "*"--filter label=com.amazonaws.ecs.task-definition-family=Stack-watch") if [ -d "$image" ]; then echo watch; fi;;
  "inspect ours") echo '"com.amazonaws.ecs.task-arn": "arn:aws:ecs:x:1:task/gpus/{TASK}"';;
  "inspect watch") printf '        "Image": "%s",\n  "Image": "example.org/health:1",\n' {IMAGE};;
  "top ours"*) echo PID; echo "  {os.getpid()}";;
  "exec ours"*) shift 2; exec env TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$tmp/pipe_" \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$tmp/rank_" "$@";;
  "run --rm --pid host --network none "*" --cap-add SYS_PTRACE --entrypoint timeout {IMAGE} "*)
    while [ "$1" != {IMAGE} ]; do shift; done; shift; PATH=$image:$PATH; exec timeout "$@";;
  *) echo '[]';;
esac"""
PY_SPY = 'echo "at all_reduce: $*"'
#: The network of the task is this machine's, and its port is that of the one who speaks for NCCL.
NSENTER = 'shift 3; exec "$@"'


class Nccl:
    """Speaks as the RAS thread of NCCL does: an answer to each line, then the status and the end."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.says = (Path(__file__).parents[1] / "health" / "ras" / "stopped.txt").read_text()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]

    def serve(self) -> None:
        try:
            peer, _ = self.server.accept()
        except OSError:
            return  # nobody asked
        with peer, peer.makefile("rwb") as line:
            for answer in (b"SERVER PROTOCOL 2\n", b"OK\n", self.says.encode()):
                self.heard.append(line.readline().decode().strip())
                line.write(answer)
                line.flush()


@pytest.fixture
def nccl() -> Iterator[Nccl]:
    made = Nccl()
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield made
    made.server.shutdown(socket.SHUT_RDWR)
    made.server.close()
    thread.join()


def script(evidence: str, *, task: str = TASK, key: str = "j1/0/0/hang") -> str:
    documents = Documents()
    documents.put(DOCUMENT, hang_document.content(BUCKET, "Stack-watch"))
    return documents.script(DOCUMENT, hang_document.arguments(DOCUMENT, key, task, evidence)).text


def a_host(folder: Path, nccl: Nccl, **commands: str) -> Host:
    """With a py-spy, unless it is given none; the image has one where the test has made it."""
    docker = f"tmp={folder}/tmp image={folder}/image; {DOCKER}"
    host = Host(folder, {"docker": docker, "nsenter": NSENTER, "py-spy": PY_SPY, **commands})
    (folder / "tmp").mkdir()
    (folder / "tmp" / "rank_0").write_text("last collective: 7\n")
    threads = host.folder / "proc" / str(os.getpid()) / "task" / "1"
    threads.mkdir(parents=True)
    (threads / "comm").write_text("python\n")
    (threads / "stat").write_text("1 (python (x)) T 0 0")
    (threads / "wchan").write_text("do_signal_stop")
    process = threads.parent.parent
    (process / "cmdline").write_bytes(b"python\0train.py\0")
    (process / "environ").write_bytes(f"A=1\0NCCL_RAS_ADDR=localhost:{nccl.port}\0".encode())
    return host


def test_where_a_task_waits_and_what_its_nccl_says_is_sent_away(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    nccl: Nccl,
) -> None:
    host = a_host(tmp_path, nccl)
    code, said = host.shell(script(bucket.address))
    assert (code, said.splitlines()[-1]) == (0, f"looked at task {TASK}")
    assert named(said, RANKS) == Named(odd=("n1",), what=f"NCCL: {ras.parse(nccl.says).sentence()}")
    files = bucket.files()
    assert set(files) == {"stacks.txt", "ras.txt", "flight-recorder"}
    assert f"process {os.getpid()}: python train.py" in files["stacks.txt"]
    assert "python: T in do_signal_stop" in files["stacks.txt"]
    assert f"at all_reduce: dump --nonblocking --pid {os.getpid()}" in files["stacks.txt"]
    assert files["ras.txt"] == nccl.says
    assert files["flight-recorder"] == "last collective: 7\n"
    assert nccl.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 15", "VERBOSE STATUS"]
    bucket.kept.clear()
    assert host.shell(script(bucket.address)) == (0, "looked at before")
    assert not bucket.kept
    assert not list(tmp_path.glob("tmp.*")), "nothing is left on the host"


def test_a_host_without_py_spy_takes_it_from_the_image_of_its_watch_if_it_has_one(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    nccl: Nccl,
) -> None:
    """That of a task's own container may be anything, and would run as root."""
    host = a_host(tmp_path, nccl, nsenter="exit 1")
    (tmp_path / "bin" / "py-spy").unlink()
    said = f"== process {os.getpid()}, in Python\nat all_reduce: dump --nonblocking --pid {os.getpid()}\n"
    for key, has in (("without", False), ("with", True)):
        if has:
            (tmp_path / "image").mkdir()
            (tmp_path / "image" / "py-spy").write_text(f"#!/bin/sh\n{PY_SPY}\n")
            (tmp_path / "image" / "py-spy").chmod(0o755)
        assert host.shell(script(bucket.address, key=key))[0] == 0
        stacks = bucket.files()["stacks.txt"]
        assert "do_signal_stop" in stacks
        assert stacks.endswith(said) == has, stacks
        bucket.kept.clear()


def test_the_flight_recorder_is_asked_and_a_pipe_that_nobody_reads_holds_up_nothing(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    nccl: Nccl,
) -> None:
    """PyTorch would write by itself only when its own timeout is over."""
    host = a_host(tmp_path, nccl)
    for name in ("pipe_0.pipe", "pipe_1.pipe", "rank_1"):  # the last is none of PyTorch's, and is not read
        os.mkfifo(tmp_path / "tmp" / name)
    reading = os.open(tmp_path / "tmp" / "pipe_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    ended = threading.Event()

    def rank() -> None:
        while not ended.wait(0.05):
            with suppress(BlockingIOError):
                if os.read(reading, 128):
                    (tmp_path / "tmp" / "rank_0").write_text("last collective: 8\n")

    thread = threading.Thread(target=rank)
    thread.start()
    try:
        assert host.shell(script(bucket.address).replace("sleep 8", "sleep 1"))[0] == 0
    finally:
        ended.set()
        thread.join()
        os.close(reading)
    assert bucket.files()["flight-recorder"] == "last collective: 8\n"


def test_of_a_long_answer_as_much_is_printed_as_ssm_lists(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    nccl: Nccl,
) -> None:
    gone = "  Rank {} -- GPU 0 managed by process 498 on node 127.0.0.1"
    nccl.says = nccl.says.replace(gone.format(1), "\n".join(gone.format(rank) for rank in range(100, 200)))
    nccl.says = nccl.says.replace("         2         1   RUNNING", "       200       100   RUNNING")
    _, said = a_host(tmp_path, nccl).shell(script(bucket.address))
    assert 2000 < len(said) < 2500
    found = named(said, RANKS)
    assert found is not None
    assert found.odd == ("n1",), "of the second half of the ranks"


@pytest.mark.parametrize(
    ("size", "rank", "odd"),
    [(2, 0, ("n0",)), (16, 7, ("n0",)), (16, 8, ("n1",)), (3, 1, ()), (2, 5, ()), (0, 1, ())],
)
def test_a_rank_is_on_the_node_that_its_number_says_where_the_whole_gang_is_numbered(
    nccl: Nccl, size: int, rank: int, odd: tuple[str, ...]
) -> None:
    said = nccl.says.replace("         2         1   RUNNING", f"{size:10}         1   RUNNING")
    found = named(said.replace("Rank 1 --", f"Rank {rank} --"), RANKS)
    assert found is not None
    assert found.odd == odd


def test_what_hangs_or_is_missing_costs_its_own_answer_only(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    nccl: Nccl,
) -> None:
    host = a_host(tmp_path, nccl, **{"py-spy": "exec sleep 60", "nsenter": "exit 1"})
    text = script(bucket.address).replace("for_at_most 8 py-spy", "for_at_most 1 py-spy")
    assert host.shell(text) == (0, f"looked at task {TASK}")
    assert "do_signal_stop" in bucket.files()["stacks.txt"]
    assert bucket.files()["ras.txt"] == ""


@pytest.mark.parametrize(
    ("task", "evidence"),
    [
        ("x'; reboot; '", f"https://{BUCKET}.s3.eu-west-1.amazonaws.com/evidence/n1/a.tar.gz"),
        (TASK, "https://elsewhere.example/evidence/n1/a.tar.gz"),
        (TASK, f"https://{BUCKET}.s3.eu-west-1.amazonaws.com/evidence/n1/a';reboot;'"),
        (TASK, ""),
    ],
)
def test_a_sender_can_put_no_command_and_no_other_place_into_it(task: str, evidence: str) -> None:
    with pytest.raises(ApiError):
        script(evidence, task=task)

"""What a node kept before its reboot: listed and fetched, on this machine and through a console."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the console needs the extra [console]")
from ecs_gpu_recovery.control.backend import Backend
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.control.remote_backend import TOKEN_VARIABLE, RemoteBackend
from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.errors import NotFound
from ecs_gpu_recovery.core.events import FAULT
from ecs_gpu_recovery.core.model import Entry, Verdict
from ecs_gpu_recovery.core.node_record import Condemnation, Node
from ecs_gpu_recovery.local import evidence
from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.ticket import ticket
from tests.cli.conftest import run_command
from tests.cli.test_remote import KEPT, TOKEN
from tests.console.helpers import USERS, console, eventually, still_state

NAME = keys.evidence("j1/1/0/reboot")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = still_state(tmp_path)
    cluster = Cluster(made)
    cluster.create("node-1", gpus_expected=8)
    evidence.keep(cluster.node("node-1"), "j1/1/0/reboot")
    return made


@pytest.fixture(params=["local", "remote"])
def side(request: pytest.FixtureRequest, state: Path) -> Iterator[Backend]:
    if request.param == "local":
        here = LocalBackend(state)
        yield here
        here.close()
        return
    with console(state, users=f"{USERS}ci:operator:{KEPT}\n") as client:
        yield RemoteBackend(str(client.base_url), {TOKEN_VARIABLE: TOKEN})


def test_an_archive_is_listed_and_fetched_on_both_sides(side: Backend, tmp_path: Path) -> None:
    (kept,) = side.evidence("node-1")
    assert (kept.node, kept.name) == ("node-1", NAME)
    data = side.fetch_evidence("node-1", kept.name)
    assert len(data) == kept.size
    (tmp_path / "copy").write_bytes(data)
    with tarfile.open(tmp_path / "copy") as archive:
        assert "kernel.log" in archive.getnames()
    assert side.evidence("node-2") == []


@pytest.mark.parametrize("name", ["nothing.tar.gz", "../../recovery.db", "..", NAME + "x"])
def test_nothing_else_can_be_fetched(side: Backend, name: str) -> None:
    with pytest.raises(NotFound):
        side.fetch_evidence("node-1", name)
    with pytest.raises(NotFound):
        side.evidence("no-such-node")


def test_the_command_lists_and_brings_archives(state: Path, tmp_path: Path) -> None:
    told = run_command("evidence", "node-1", "--state", str(state))
    assert NAME in told.out
    assert "--fetch FOLDER" in told.out, "it says what to do next"
    folder = tmp_path / "here"
    told = run_command("evidence", "node-1", "--state", str(state), "--fetch", str(folder), "--json")
    assert [one["name"] for one in json.loads(told.out)["evidence"]] == [NAME]
    assert (folder / NAME).stat().st_size > 0


def test_the_command_says_when_nothing_was_kept_and_when_there_is_no_such_thing(state: Path) -> None:
    assert "nothing was kept of node-2" in run_command("evidence", "node-2", "--state", str(state)).out
    nobody = run_command("evidence", "nobody", "--state", str(state))
    assert (nobody.code, "no node nobody, and no job nobody" in nobody.err) == (3, True)


def test_the_page_of_a_node_that_was_rebooted_links_to_it(state: Path) -> None:
    with console(state, users="") as client:
        assert NAME not in client.get("/nodes/node-1").text, "nothing is asked for before its first reboot"
        here = LocalBackend(state)
        here.ask_node("node-1", "reboot", why="a test")
        here.close()
        link = f"/api/nodes/node-1/evidence/{NAME}"
        eventually(lambda: link in client.get("/nodes/node-1").text, "the page shows what was kept")


SMI = """Driver Version                            : 570.86.15
CUDA Version                              : 12.8
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H200
    Serial Number                         : 1654923000123
    GPU UUID                              : GPU-1111
GPU 00000000:86:00.0
    Product Name                          : NVIDIA H200
    Serial Number                         : 1654923000456
"""


def test_a_ticket_has_the_machine_its_gpus_its_faults_and_what_was_tried() -> None:
    files = {
        "./nvidia-smi.txt": SMI,
        "./kernel.txt": "usb 1-1: reset\n[ 1.0] NVRM: Xid (PCI:0000:3b:00): 79, fell\n",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    at = datetime(2026, 3, 1, 2, tzinfo=UTC)
    found = Condemnation(
        at=at, verdict=Verdict.REBOOT, findings="Xid 79 [GPU-1111]", repair="reboot", outcome="no"
    )
    seen = Entry(at=at, subject="n", before="", after="", why=FAULT, evidence="Xid 79 | NVRM: Xid")
    node = Node(
        name="n",
        cluster="c",
        created_at=at,
        updated_at=at,
        host="i-0123",
        gpus=8,
        condemned=(found,),
        timeline=(seen,),
    )
    text = ticket(node, at, ["a.tar.gz"], packed.getvalue())
    for line in (
        "machine: i-0123",
        "Driver Version: 570.86.15, CUDA Version: 12.8",
        "00000000:3B:00.0, Product Name: NVIDIA H200, Serial Number: 1654923000123, GPU UUID: GPU-1111",
        "2026-03-01 02:00:00 reboot: Xid 79 [GPU-1111]; reboot: no",
        "2026-03-01 02:00:00 Xid 79 | NVRM: Xid",
        "[ 1.0] NVRM: Xid (PCI:0000:3b:00): 79, fell",
        "a.tar.gz  (gpu-recovery evidence n --fetch FOLDER)",
    ):
        assert f"  {line}\n" in text
    assert "usb" not in text
    assert "Driver Version" not in ticket(node, at, ["a.tar.gz"], b"damaged")


def test_a_ticket_is_written_by_a_command_from_what_was_kept_before_a_repair(state: Path) -> None:
    """A look at a hang is newer, and on AWS it has no kernel log."""
    (state / "nodes" / "node-1" / "kmsg").write_text("NVRM: a line after the repair\n")
    evidence.keep(Cluster(state).node("node-1"), keys.hang_look("j1", 1, "node-1", last=False))
    done = run_command("ticket", "node-1", "--state", str(state))
    assert done.code == 0
    assert done.out.startswith("GPU node node-1 (")
    assert f"  {NAME}  (gpu-recovery evidence node-1 --fetch FOLDER)\n" in done.out
    assert "after the repair" not in done.out

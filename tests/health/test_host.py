"""The machine around the GPUs, one check at a time."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.policy import Limits, Policy
from ecs_gpu_recovery.health.sources import commands, host


class Heard(list[dict[str, object]]):
    """What a check sent up."""

    def __call__(self, message: Mapping[str, object]) -> None:
        self.append(dict(message))

    @property
    def facts(self) -> list[object]:
        return [message["fact"] for message in self if "fact" in message]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def limits() -> Limits:
    return replace(policy.load().limits, min_free_percent=0.0, min_free_gib=0.0)


def test_a_disk_with_room_is_fine_and_one_without_is_told(heard: Heard, tmp_path: Path) -> None:
    host.disk([str(tmp_path), str(tmp_path / "missing")], limits(), heard)
    assert (heard.facts, heard[-1]["detail"]) == ([], "1 file system(s) looked at")
    host.disk([str(tmp_path)], replace(limits(), min_free_percent=101), heard)
    assert "disk-full" in heard.facts


def test_a_shared_directory_is_written_read_and_left_clean_and_a_missing_one_is_told(
    heard: Heard, tmp_path: Path
) -> None:
    host.shared_dir(str(tmp_path), heard)
    assert (heard.facts, list(tmp_path.iterdir())) == ([], [])
    host.shared_dir(str(tmp_path / "missing"), heard)
    assert heard.facts == ["shared-dir-unusable"]


def test_peers_are_reached_or_told(heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_peer = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as other:
            closed_peer = f"127.0.0.1:{other.getsockname()[1]}"
        host.network([open_peer, closed_peer], heard)
    assert heard.facts == ["peer-unreachable"]
    assert heard[-1]["detail"] == "1 of 2 peer(s) reached"


def test_a_peer_is_host_and_port_and_anything_else_is_refused() -> None:
    good = {"a:80": ("a", 80), "[::1]:80": ("::1", 80), "10.0.0.1:1": ("10.0.0.1", 1)}
    assert {peer: host.split_peer(peer) for peer in good} == good
    for peer in ("", "host", ":80", "host:", "host:0", "host:99999", "host:http"):
        with pytest.raises(ValueError, match="host:port"):
            host.split_peer(peer)


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "_NICS", tmp_path)
    return tmp_path


def a_port(sysfs: Path, device: str, state: str, physical: str) -> None:
    folder = sysfs / device / "ports" / "1"
    folder.mkdir(parents=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "phys_state").write_text(f"{physical}\n")


def test_active_ports_are_counted(heard: Heard, sysfs: Path) -> None:
    for device in ("mlx5_0", "rdmap16s27"):
        a_port(sysfs, device, "4: ACTIVE", "5: LinkUp")
    host.nics(2, heard)
    assert (heard.facts, heard[-1]["detail"]) == ([], "2 active port(s)")


@pytest.mark.parametrize(
    ("state", "physical", "expected", "facts"),
    [
        ("1: DOWN", "3: Disabled", None, ["nic-port-idle"]),
        ("1: DOWN", "2: Polling", 1, ["nic-port-down", "nics-missing"]),
        ("2: INIT", "5: LinkUp", None, ["nic-port-down"]),
    ],
)
def test_ports_that_are_not_active(
    heard: Heard, sysfs: Path, state: str, physical: str, expected: int | None, facts: list[str]
) -> None:
    a_port(sysfs, "mlx5_0", state, physical)
    host.nics(expected, heard)
    assert heard.facts == facts


def test_a_machine_without_fast_network_is_not_tested_unless_ports_are_expected(
    heard: Heard, sysfs: Path
) -> None:
    host.nics(None, heard)
    assert (heard.facts, "problem" in heard[-1]) == ([], True)
    host.nics(8, heard)
    assert heard.facts == ["nics-missing"]


def test_gpus_on_the_bus_are_counted_without_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x8086", "0x030000"), ("0x10de", "0x030000")]
    for number, (vendor, kind) in enumerate(devices):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(host, "_PCI", tmp_path)
    assert host.pci_gpus() == 2


CHRONY = "A9FEA97B,169.254.169.123,4,1763173000.1,{offset},0.0,0.0,-1.2,0.0,0.1,0.0,0.0,16.2,Normal\n"


@pytest.mark.parametrize(("offset", "facts"), [("0.000002", []), ("-3.5", ["clock-off"])])
def test_chrony_knows_how_far_the_clock_is_off(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, offset: str, facts: list[str]
) -> None:
    monkeypatch.setattr(host, "output_of", lambda argv: commands.Ran(0, CHRONY.format(offset=offset)))
    host.clock(limits(), heard)
    assert heard.facts == facts


@pytest.mark.parametrize(
    ("kernel", "facts"),
    [((0, 0.001), []), ((0, 7.0), ["clock-off"]), ((0x40, 16.0), ["clock-unsynchronised"]), (None, [])],
)
def test_without_chrony_the_kernel_is_asked(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, kernel: tuple[int, float] | None, facts: list[str]
) -> None:
    monkeypatch.setattr(host, "output_of", lambda argv: None)
    monkeypatch.setattr(host, "_kernel_clock", lambda: kernel)
    host.clock(limits(), heard)
    assert heard.facts == facts
    assert "problem" in heard[-1] or kernel is not None


def test_this_kernel_answers_or_stays_silent() -> None:
    state = host._kernel_clock()
    assert state is None or (state[0] >= 0 and state[1] >= 0)


def test_every_host_problem_is_the_hosts(rules: Policy) -> None:
    conditions = ("disk-full", "shared-dir-hang", "peer-unreachable", "clock-off", "nics-missing", "anything")
    assert {rules.rule("host", condition).action.value for condition in conditions} == {"host"}


def test_a_program_that_is_not_installed_gives_nothing() -> None:
    assert commands.output_of(["no-such-program-anywhere"]) is None
    ran = commands.output_of(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert ran == commands.Ran(3, "out\n", "err\n")
    assert os.environ.get("LC_ALL") is None or ran is not None

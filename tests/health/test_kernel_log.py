"""Lines of the kernel log, whatever wrapped them."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime

import pytest

from ecs_gpu_recovery.health.sources import kernel_log

from .conftest import Explain

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
MESSAGE = "NVRM: Xid (PCI:0000:4f:00): 79, pid=77, name=python3, GPU has fallen off the bus."

WRAPPED = {
    "bare": (MESSAGE, None),
    "seconds since boot": (f"[  916.096726] {MESSAGE}", None),
    "ctime": (f"[Sun Nov 15 03:04:05 2026] {MESSAGE}", "2026-11-15T03:04:05+00:00"),
    "ctime, one digit day": (f"[Thu Nov  5 03:04:05 2026] {MESSAGE}", "2026-11-05T03:04:05+00:00"),
    "decoded, iso with comma": (
        f"kern  :warn  : 2026-11-15T03:04:05,284345+00:00 {MESSAGE}",
        "2026-11-15T03:04:05.284345+00:00",
    ),
    "iso": (f"2026-11-15T03:04:05.000001+01:00 kernel: {MESSAGE}", "2026-11-15T02:04:05.000001+00:00"),
    "journal short-iso": (f"2026-11-15T03:04:05+0000 node7 kernel: {MESSAGE}", "2026-11-15T03:04:05+00:00"),
    "syslog": (f"Nov 15 03:04:05 node7 kernel: [94558.085] {MESSAGE}", "2026-11-15T03:04:05+00:00"),
    "syslog of last year": (f"Dec 24 03:04:05 node7 kernel: {MESSAGE}", "2025-12-24T03:04:05+00:00"),
    "syslog on a day that is none": (f"Feb 30 03:04:05 node7 kernel: {MESSAGE}", None),
    "journal without time": (f"kernel: {MESSAGE}", None),
    "raw kmsg": (f"3,3970,206764321,-;{MESSAGE}", None),
    "printk level": (f"<3>[6085126.134786] {MESSAGE}", None),
    "another checker's words": (f"node7 | ERROR: check_gpu: found: [ 3606.832215] {MESSAGE}", None),
    "carriage return": (f"{MESSAGE}\r", None),
    "junk around it": (f"\ufffd\u2028\x01 {MESSAGE} \u00e9\ufffd", None),
}


@pytest.mark.parametrize(("line", "at"), WRAPPED.values(), ids=WRAPPED)
def test_the_message_is_found_in_every_wrapping(line: str, at: str | None) -> None:
    event = kernel_log.parse_line(line, NOW)
    assert event is not None
    assert (event.kind, event.code, event.device) == ("xid", 79, "0000:4f:00")
    assert event.text.startswith("GPU has fallen off the bus")
    assert event.at == (datetime.fromisoformat(at) if at else None)


@pytest.mark.parametrize(
    "text",
    [
        "00000000:4F:00.0",
        "PCI:0000:4f:00",
        "0000:4f:00.0",
        "0000:4F:00",
        "pci:0000:4f:00.0",
        "4f:00.0",
        " 0000:4f:00 ",
    ],
)
def test_every_spelling_of_a_pci_id_becomes_one(text: str) -> None:
    assert kernel_log.bus_id(text) == "0000:4f:00"


@pytest.mark.parametrize("text", ["", "x", "GPU-1", "1:2:3:4", "zz:00.0", "0000:fff:00", "1" * 40])
def test_what_is_no_pci_id_has_none(text: str) -> None:
    assert kernel_log.bus_id(text) is None


def test_a_domain_other_than_zero_is_kept() -> None:
    assert kernel_log.bus_id("PCI:0018:01:00") == "0018:01:00"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:b3:00.0): INVALID, pid=1234",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): 79abc",
        "NVRM: Xid (somewhere): 79",
        "NVRM: Xid (PCI:0000:66:00): 99999999999999999999999999",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
        "NVRM: GPU Board Serial Number: 1650423013443",
        "## fallen off the bus, both the NVRM line and the Xid",
        "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
        "",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert kernel_log.parse_line(line, NOW) is None


@pytest.mark.parametrize(
    ("line", "kind", "device"),
    [
        ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "off-bus", "0000:91:00"),
        (
            "NVRM: The NVIDIA GPU 0000:91:00.0 (PCI ID: 10de:2330) installed in this has fallen off the bus",
            "off-bus",
            "0000:91:00",
        ),
        ("NVRM: GPU 0000:91:00.0: RmInitAdapter failed! (0x26:0xffff:1290)", "init-failed", "0000:91:00"),
        ("NVRM: rm_init_adapter failed, device minor number 3", "init-failed", None),
    ],
)
def test_lines_without_a_number_are_understood(line: str, kind: str, device: str | None) -> None:
    event = kernel_log.parse_line(line, NOW)
    assert event is not None
    assert (event.kind, event.device) == (kind, device)


def test_seconds_since_boot_become_a_time_when_the_boot_is_known() -> None:
    boot = datetime(2026, 11, 15, 11, 0, tzinfo=UTC)
    event = kernel_log.parse_line(f"3,1,60000000,-;{MESSAGE}", NOW, boot)
    assert event is not None
    assert event.at == datetime(2026, 11, 15, 11, 1, tzinfo=UTC)


def test_older_lines_are_left_out_and_undated_ones_are_kept() -> None:
    lines = [
        f"2026-11-15T01:00:00+00:00 kernel: {MESSAGE}",
        f"2026-11-15T03:00:00+00:00 kernel: {MESSAGE}",
        MESSAGE,
    ]
    since = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)
    assert [event.line for event in kernel_log.parse(lines, NOW, since)] == lines[1:]


@pytest.mark.parametrize("text", ["2026-11-15T02:00:00Z", "2026-11-15 02:00:00", "2026-11-15T03:00:00+01:00"])
def test_a_time_without_a_zone_is_utc(text: str) -> None:
    assert kernel_log.parse_time(text) == datetime(2026, 11, 15, 2, 0, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-11-15"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert kernel_log.parse_time(text) is None


def test_the_journals_own_time_counts(explain: Explain) -> None:
    line = '{"__REALTIME_TIMESTAMP":"1763172000000000","_TRANSPORT":"kernel","MESSAGE":"' + MESSAGE + '"}'
    assert explain("--since", "2025-11-15T01:00:00Z", kernel_log=line)["verdict"] == "reboot"
    assert explain("--since", "2025-11-15T03:00:00Z", kernel_log=line)["verdict"] == "healthy"


def test_a_compressed_log_is_read_whole_cut_or_in_pieces(explain: Explain) -> None:
    packed = gzip.compress(f"[  1.0] {MESSAGE}\n".encode() * 500)
    quiet = gzip.compress(b"[  0.1] usb 1-1: new device\n")
    for data in (packed, packed[: len(packed) // 2], quiet + packed):
        assert explain(kernel_log=data)["verdict"] == "reboot"
    assert explain(kernel_log=quiet)["verdict"] == "healthy"
    assert explain(kernel_log=packed[:4] + b"no such thing")["verdict"] == "inconclusive"


@pytest.mark.parametrize("line", ["NVRM: Xid 79: GPU is gone", "NVRM: Xid 79 (PCI:0000:4f:00): GPU is gone"])
def test_an_xid_written_down_by_people_is_one(line: str) -> None:
    event = kernel_log.parse_line(line, NOW)
    assert event is not None
    assert (event.kind, event.code) == ("xid", 79)


@pytest.mark.parametrize(
    ("line", "kernel"),
    [
        ("[    1.0] usb 1-1: new device", True),
        ("[  +0.000844] usb 1-1: new device", True),
        ("2026-11-15T03:04:05,284345+00:00 usb 1-1: new device", True),
        ("10.0.0.7: kern: warning: [2026-11-15T03:04:05.29Z]: usb 1-1: new device", True),
        ("Nov 15 03:04:05 node7 kernel: usb 1-1: new device", True),
        ("dmesg: read kernel buffer failed: Operation not permitted", False),
        ("2026-11-15 03:04:05,284 INFO step 3 loss 2.1", False),
        ("| NVIDIA-SMI 580.00     Driver Version: 580.00     CUDA Version: 13.0 |", False),
        ('{"warning": "run nvidia-smi -i 0 -pm 1 as root"}', False),
    ],
)
def test_a_kernel_log_is_told_from_other_texts(line: str, kernel: bool) -> None:
    assert kernel_log.looks_like_kernel_log(line) is kernel

"""Lines of the kernel log, whatever wrapped them."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.health.sources import kernel_log

from .conftest import ROOT, Explain
from .test_other_samples import judged

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
MESSAGE = "NVRM: Xid (PCI:0000:4f:00): 79, pid=77, name=python3, GPU has fallen off the bus."


def rows(name: str) -> list[tuple[str, str]]:
    """What is wanted, and the line it is wanted of."""
    text = (ROOT / "tests" / "health" / "lines" / name).read_text(encoding="utf-8")
    cut = [line.partition("|") for line in text.splitlines() if line and not line.startswith("#")]
    return [
        (wanted.strip(), line.removeprefix(" ").replace(r"\x1b", "\x1b").replace(r"\r", "\r"))
        for wanted, _, line in cut
    ]


@pytest.mark.parametrize(("wanted", "line"), rows("kernel-lines.txt"))
def test_a_line_leads_to_its_verdict(wanted: str, line: str, tmp_path: Path) -> None:
    said, _, why = judged("kernel-log", f"{line}\n".encode(), tmp_path)
    assert said == wanted, why


@pytest.mark.parametrize(("wanted", "before"), rows("times.txt"))
@pytest.mark.parametrize("after", ["", "\r", " \u00e9\ufffd"])
def test_the_message_and_its_time_are_found_in_every_wrapping(wanted: str, before: str, after: str) -> None:
    event = kernel_log.parse_line(f"{before.rstrip()} {MESSAGE}{after}", NOW)
    assert event is not None
    assert (event.kind, event.code, event.device) == ("xid", 79, "0000:4f:00")
    assert event.text.startswith("GPU has fallen off the bus")
    assert event.at == (None if wanted == "-" else datetime.fromisoformat(f"{wanted}+00:00"))


#: How a PCI id may be spelled, by the one spelling that all become; None for what is no PCI id.
SPELLED = {
    "0000:4f:00": [
        "00000000:4F:00.0",
        "PCI:0000:4f:00",
        "0000:4f:00.0",
        "pci:0000:4f:00.0",
        " 0000:4F:00 ",
        "4f:00.0",
    ],
    "0018:01:00": ["PCI:0018:01:00"],
    None: ["", "x", "GPU-1", "1:2:3:4", "zz:00.0", "0000:fff:00", "1" * 40],
}


@pytest.mark.parametrize(("text", "one"), [(text, one) for one, texts in SPELLED.items() for text in texts])
def test_every_spelling_of_a_pci_id_becomes_one(text: str, one: str | None) -> None:
    assert kernel_log.bus_id(text) == one


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


OFF_BUS = "NVRM: The NVIDIA GPU 0000:91:00.0 (PCI ID: 10de:2330) installed in this has fallen off the bus"


@pytest.mark.parametrize(
    ("line", "kind", "code", "device"),
    [
        ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "off-bus", 79, "0000:91:00"),
        (OFF_BUS, "off-bus", 79, "0000:91:00"),
        ("NVRM: GPU 0000:91:00.0: RmInitAdapter failed! (0x26:0xffff:1290)", "init-failed", 0, "0000:91:00"),
        ("NVRM: rm_init_adapter failed, device minor number 3", "init-failed", 0, None),
        ("NVRM: Xid 79: GPU is gone", "xid", 79, None),
        ("NVRM: Xid 79 (PCI:0000:4f:00): GPU is gone", "xid", 79, "0000:4f:00"),
    ],
)
def test_lines_without_a_number_and_as_people_write_them_down_are_understood(
    line: str, kind: str, code: int, device: str | None
) -> None:
    event = kernel_log.parse_line(line, NOW)
    assert event is not None
    assert (event.kind, event.code, event.device) == (kind, code, device)


def test_seconds_since_boot_become_a_time_when_the_boot_is_known() -> None:
    boot = datetime(2026, 11, 15, 11, 0, tzinfo=UTC)
    event = kernel_log.parse_line(f"3,1,60000000,-;{MESSAGE}", NOW, boot)
    assert event is not None
    assert event.at == datetime(2026, 11, 15, 11, 1, tzinfo=UTC)


def test_older_lines_are_left_out_and_undated_ones_are_kept() -> None:
    lines = [*(f"2026-11-15T0{hour}:00:00+00:00 kernel: {MESSAGE}" for hour in (1, 3)), MESSAGE]
    since = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)
    log = kernel_log.parse(lines, NOW, since)
    assert [event.line for event in log.events] == lines[1:]
    assert "1 without a time that can be read and kept all the same" in log.summary(since)


def test_a_verdict_that_rests_on_an_undated_line_says_so(explain: Explain) -> None:
    since = ("--since", "2026-11-15T02:00:00Z")
    answer = explain(*since, kernel_log=f"15.11.26 03:12 {MESSAGE}")
    assert (answer["verdict"], "no time that can be read" in answer["why"]) == ("reboot", True)
    assert "no time" not in explain(*since, kernel_log=f"2026-11-15T03:00:00Z {MESSAGE}")["why"]
    assert "no time" not in explain(kernel_log=MESSAGE)["why"], "nobody asked for a time"


OTHER = "usb 1-1: new device"
ID = "0123456789abcdef0123456789abcdef"
LATER_BOOTS = {
    "a new kernel's first words": f"[ 900.1] {MESSAGE}\n[    0.000000] Linux version 6.8.0-1021-aws (gcc 13)\n",
    "the same through syslog": f"Nov 14 03:12:00 n7 kernel: {MESSAGE}\nNov 14 03:20:00 n7 kernel: Linux version 6.8",
    "raw kmsg": f"4,900,900000000,-;{MESSAGE}\n5,0,0,-;Linux version 6.8.0-1021-aws (gcc 13)\n",
    "journald's mark": f"Nov 14 03:12:00 n7 kernel: {MESSAGE}\n-- Boot {ID} --\nNov 14 03:20:00 n7 kernel: {OTHER}",
    "journald's old mark": f"Nov 14 03:12:00 n7 kernel: {MESSAGE}\n-- Reboot --\nNov 14 03:20:00 n7 kernel: {OTHER}",
    "another boot's id, as JSON": "\n".join(
        f'{{"_BOOT_ID":"{boot * 32}","_TRANSPORT":"kernel","MESSAGE":"{text}"}}'
        for boot, text in (("a", MESSAGE), ("b", OTHER))
    ),
    "another boot's id, as pretty JSON": "\n".join(
        f'{{\n\t"_BOOT_ID" : "{boot * 32}",\n\t"_TRANSPORT" : "kernel",\n\t"MESSAGE" : "{text}"\n}}'
        for boot, text in (("a", MESSAGE), ("b", OTHER))
    ),
    "another boot's id, exported": "\n\n".join(
        f"__CURSOR=s\n__REALTIME_TIMESTAMP=1763089920123456\n_BOOT_ID={boot * 32}\n_TRANSPORT=kernel\nMESSAGE={text}"
        for boot, text in (("a", MESSAGE), ("b", OTHER))
    ),
    "the clock": f"Nov 14 03:12:00 n7 kernel: [94558.085] {MESSAGE}\n"
    "Nov 14 03:20:00 n7 kernel: [   12.300] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.00",
}


@pytest.mark.parametrize("text", LATER_BOOTS.values(), ids=LATER_BOOTS)
def test_a_fault_of_an_earlier_boot_is_history_where_the_file_shows_a_later_one(
    explain: Explain, text: str
) -> None:
    answer = explain(kernel_log=text)
    assert (answer["verdict"], answer["findings"]) == ("healthy", [])
    assert "1 of an earlier boot left out" in answer["checks"][0]["detail"]
    assert explain(kernel_log=f"{text}\n[ 1.0] {MESSAGE}")["verdict"] == "reboot", "and now it is back"


@pytest.mark.parametrize(
    "text",
    [
        f"[    0.000000] Linux version 6.8.0-1021-aws (gcc 13)\n[ 900.1] {MESSAGE}\n",
        f"-- Boot {ID} --\nNov 14 03:12:00 n7 kernel: {MESSAGE}\n",
        f"Nov 14 03:12:00 n7 kernel: [94558.085] {MESSAGE}\nNov 14 03:20:00 n7 kernel: [95038.1] {OTHER}",
        f"[ 900.1] {MESSAGE}\n[ 901.0] nvme: firmware: Linux version of the tool is 3\n",
    ],
)
def test_a_fault_of_the_last_boot_counts(explain: Explain, text: str) -> None:
    assert explain(kernel_log=text)["verdict"] == "reboot"


def test_a_kernel_whose_seconds_run_ahead_of_the_clock_is_believed() -> None:
    """After three months up, the log's own clock may be minutes ahead. What it says just happened did happen."""
    boot = NOW - timedelta(days=90)
    line = f"4,1,{int((90 * 86400 + 600) * 1e6)},-;{MESSAGE}"
    for boot_id in (None, "a" * 32):
        assert not kernel_log.parse([line], NOW, boot=boot, boot_id=boot_id).events[0].old
    far = f"4,1,{int((90 * 86400 + 86400) * 1e6)},-;{MESSAGE}"
    assert kernel_log.parse([far], NOW, boot=boot, boot_id="a" * 32).events[0].old


def test_what_earlier_boots_saw_counts_when_it_is_back(explain: Explain) -> None:
    """A GPU that leaves the bus again and again does so across boots: only a boot brings it back."""
    boots = [
        f"Nov 14 {hour:02d}:00:00 n7 kernel: Linux version 6.8.0-31\nNov 14 {hour:02d}:30:00 n7 kernel: {MESSAGE}\n"
        for hour in (3, 9, 15)
    ]
    assert explain(kernel_log="".join(boots[:2]))["verdict"] == "reboot"
    assert explain(kernel_log="".join(boots))["verdict"] == "replace"


FORMS = {
    "short-precise": f"Nov 14 03:12:00.123456 n7 kernel: {MESSAGE}",
    "short-unix": f"1763089920.123456 n7 kernel: {MESSAGE}",
    "export": f"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1763089920123456\nMESSAGE={MESSAGE}\nPRIORITY=4\n",
    "export of odd bytes": f"__CURSOR=s\n__REALTIME_TIMESTAMP=1763089920123456\nMESSAGE\n\x50\0\0\0\0\0\0\0{MESSAGE}\n",
    "pretty JSON": '{\n\t"__REALTIME_TIMESTAMP" : "1763089920123456",\n\t"MESSAGE" : "' + MESSAGE + '"\n}',
    "pretty JSON of odd bytes": '{\n\t"__REALTIME_TIMESTAMP" : "1763089920123456",\n\t"MESSAGE" : [\n'
    + ",\n".join(f"\t\t{byte}" for byte in MESSAGE.encode())
    + "\n\t]\n}",
    "verbose": "Fri 2025-11-14 03:12:00.123456 UTC [s=a1;i=2;b=" + "a" * 32 + ";m=1;t=64;x=3]\n"
    f"    _TRANSPORT=kernel\n    MESSAGE={MESSAGE}\n    PRIORITY=4\n",
    "JSON for browsers": 'data: {"__REALTIME_TIMESTAMP":"1763089920123456","MESSAGE":"' + MESSAGE + '"}',
    "dmesg --reltime": f"[Nov14 03:10] {OTHER}\n[ +60.000000] {OTHER}\n[ +60.123456] {MESSAGE}",
    "dmesg --reltime in colour": f"\x1b[32m[Nov14 03:12] \x1b[0m{OTHER}\n\x1b[32m[  +0.123456] \x1b[0m{MESSAGE}",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_the_time_is_read_in_logs_of_many_lines_for_a_message(text: str) -> None:
    now = datetime(2025, 11, 15, 12, 0, tzinfo=UTC)
    log = kernel_log.parse(text.splitlines(), now)
    (event,) = log.events
    assert (event.code, event.at) == (79, datetime(2025, 11, 14, 3, 12, 0, 123456, tzinfo=UTC))
    assert event.text.startswith("GPU has fallen off the bus")
    assert not kernel_log.parse(text.splitlines(), now, since=datetime(2025, 11, 14, 4, tzinfo=UTC)).events


def test_a_time_without_a_zone_is_utc_and_what_is_no_time_is_none() -> None:
    for text in ("2026-11-15T02:00:00Z", "2026-11-15 02:00:00", "2026-11-15T03:00:00+01:00"):
        assert kernel_log.parse_time(text) == datetime(2026, 11, 15, 2, 0, tzinfo=UTC), text
    for text in ("", "yesterday", "2026-13-01T00:00:00Z", "2026-11-15"):
        assert kernel_log.parse_time(text) is None, text


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

"""nvidia-smi as XML, as text and as a table."""

from __future__ import annotations

import re

import pytest

from ecs_gpu_recovery.health.sources import nvsmi

from .conftest import Explain

#: What a sound GPU shows; what a case changes stands in braces.
XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <driver_version>580.00</driver_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:4F:00.0">
    <product_name>NVIDIA H200</product_name>
    <uuid>GPU-1</uuid>
    <gpu_recovery_action>{recovery=None}</gpu_recovery_action>
    <pci><pci_bus_id>00000000:4F:00.0</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>{gen=5}</current_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>{width=16x}</current_link_width></link_widths>
      </pci_gpu_link_info></pci>
    <performance_state>{pstate=P0}</performance_state>
    <clocks_{by=event}_reasons>
      <clocks_{by=event}_reason_gpu_idle>Active</clocks_{by=event}_reason_gpu_idle>
      <clocks_{by=event}_reason_hw_thermal_slowdown>{hot=Not Active}</clocks_{by=event}_reason_hw_thermal_slowdown>
    </clocks_{by=event}_reasons>
    <ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>{pending_ecc=Enabled}</pending_ecc></ecc_mode>
    <ecc_errors>
      <volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
        <dram_uncorrectable>{volatile=0}</dram_uncorrectable><dram_correctable>7</dram_correctable></volatile>
      <aggregate><dram_uncorrectable>{aggregate=0}</dram_uncorrectable>
        <sram_threshold_exceeded>{sram=No}</sram_threshold_exceeded></aggregate>
      <channel_repair_pending>{channel=No}</channel_repair_pending>
      <tpc_repair_pending>{tpc=No}</tpc_repair_pending>
      <unrepairable_memory>{unrepairable=No}</unrepairable_memory>
    </ecc_errors>
    <retired_pages><pending_retirement>{retired=N/A}</pending_retirement></retired_pages>
    <remapped_rows>
      <remapped_row_pending>{pending=No}</remapped_row_pending><remapped_row_failure>{failure=No}</remapped_row_failure>
      <row_remapper_histogram><row_remapper_histogram_none>{none=0} bank(s)</row_remapper_histogram_none>
      </row_remapper_histogram></remapped_rows>
    <gpu_reset_status><reset_required>{reset=No}</reset_required>
      <drain_and_reset_recommended>{drain=No}</drain_and_reset_recommended></gpu_reset_status>
    <fabric><state>{fabric=N/A}</state><status>{fabric_status=N/A}</status>
      <health><summary>{fabric_health=N/A}</summary></health></fabric>
  </gpu>
</nvidia_smi_log>
"""


def xml(**different: str) -> str:
    return re.sub(r"\{(\w+)=([^}]*)\}", lambda found: different.get(found[1], found[2]), XML)


CASES = {
    "sound": ({}, "healthy", None),
    "recovery reset": ({"recovery": "Reset"}, "reboot", "gpu_reset"),
    "recovery reboot": ({"recovery": "Reboot"}, "reboot", "node_reboot"),
    "recovery drain": ({"recovery": "Drain and Reset"}, "reboot", "drain_and_reset"),
    "recovery in new words": ({"recovery": "Sing to it"}, "healthy", "unknown"),
    "recovery not told": ({"recovery": "N/A"}, "healthy", None),
    "volatile errors": ({"volatile": "1", "aggregate": "1"}, "reboot", "ecc-volatile"),
    "errors of old": ({"aggregate": "3"}, "healthy", "ecc-aggregate"),
    "sram threshold": ({"sram": "Yes"}, "replace", "sram-threshold"),
    "unrepairable": ({"unrepairable": "Yes"}, "replace", "unrepairable-memory"),
    "remap pending": ({"pending": "Yes"}, "reboot", "remap-pending"),
    "remap failed": ({"failure": "Yes"}, "reboot", "remap-failure"),
    "no spare rows": ({"none": "2"}, "healthy", "remap-spares-gone"),
    "retirement pending": ({"retired": "Yes"}, "reboot", "retired-pending"),
    "tpc repair": ({"tpc": "Yes"}, "reboot", "tpc-repair-pending"),
    "channel repair": ({"channel": "Yes"}, "healthy", "channel-repair-pending"),
    "ecc mode pending": ({"pending_ecc": "Disabled"}, "healthy", "ecc-mode-pending"),
    "reset required": ({"reset": "Yes"}, "reboot", "reset-required"),
    "drain recommended": ({"drain": "Yes"}, "reboot", "reset-required"),
    "narrow link": ({"width": "8x"}, "healthy", "pcie-width"),
    "slow link at work": ({"gen": "3"}, "healthy", "pcie-generation"),
    "slow link at rest": ({"gen": "1", "pstate": "P8"}, "healthy", None),
    "hot": ({"hot": "Active"}, "healthy", "clocks-held"),
    "hot, old driver": ({"hot": "Active", "by": "throttle"}, "healthy", "clocks-held"),
    "fabric joined": ({"fabric": "Completed", "fabric_status": "Success"}, "healthy", None),
    "fabric refused": ({"fabric": "Completed", "fabric_status": "Failure"}, "inconclusive", "fabric-failed"),
    "fabric under way": ({"fabric": "In Progress"}, "inconclusive", "fabric-pending"),
    "fabric not begun": ({"fabric": "Not Started"}, "healthy", "fabric-not-started"),
    "fabric unwell": ({"fabric_health": "Unhealthy"}, "inconclusive", "fabric-unhealthy"),
    "lost": ({"recovery": "[GPU is lost]"}, "reboot", "gpu-lost"),
    "needs reset": ({"pstate": "GPU requires reset"}, "reboot", "reset-required"),
}


@pytest.mark.parametrize(("different", "verdict", "code"), CASES.values(), ids=CASES)
def test_the_xml_leads_to_the_right_verdict(
    explain: Explain, different: dict[str, str], verdict: str, code: str | None
) -> None:
    answer = explain(nvidia_smi=xml(**different))
    assert answer["verdict"] == verdict
    assert code is None or code in [f["code"] for f in answer["findings"]]
    assert code is not None or answer["findings"] == []
    assert {f["gpu"] for f in answer["findings"]} <= {"0000:4f:00"}


def test_noise_around_the_xml_does_not_matter(explain: Explain) -> None:
    noisy = f"WARNING: infoROM is corrupted at gpu 0000:4F:00.0\r\n{xml(volatile='2')}\nbye"
    assert explain(nvidia_smi=noisy.replace("\n", "\r\n"))["verdict"] == "reboot"


TEXT = """
==============NVSMI LOG==============

Timestamp                                 : Sun Nov 15 00:36:34 2026
Driver Version                            : 580.00
Attached GPUs                             : 2
GPU 00000000:0A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              : GPU-1
    GPU Recovery Action                   : None
    PCI
        Bus                               : 0x0A
        Bus Id                            : 00000000:0A:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Active
        HW Thermal Slowdown               : Not Active
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            None                          : 0 bank(s)
    Temperature
        GPU Current Temp                  : 34 C
GPU 00000000:0B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            DRAM Uncorrectable            : {volatile}
    Remapped Rows
        Pending                           : {pending}
        Remapping Failure Occurred        : {failure}
"""


@pytest.mark.parametrize(
    ("volatile", "pending", "failure", "verdict"),
    [
        ("0", "No", "No", "healthy"),
        ("1", "No", "No", "reboot"),
        ("0", "Yes", "No", "reboot"),
        ("0", "No", "Yes", "reboot"),
    ],
)
def test_the_long_text_leads_to_the_same(
    explain: Explain, volatile: str, pending: str, failure: str, verdict: str
) -> None:
    answer = explain(nvidia_smi=TEXT.format(volatile=volatile, pending=pending, failure=failure))
    assert answer["verdict"] == verdict
    assert [gpu["bus_id"] for gpu in answer["gpus"]] == ["0000:0a:00", "0000:0b:00"]
    assert {f["gpu"] for f in answer["findings"]} <= {"0000:0b:00"}


def test_a_table_is_read_by_its_header(explain: Explain) -> None:
    table = (
        "index, pci.bus_id, ecc.errors.uncorrected.volatile.dram, ecc.errors.uncorrected.volatile.total, "
        "temperature.gpu, clocks_event_reasons.hw_slowdown, memory.used [MiB]\n"
        "0, 00000000:0A:00.0, 0, 0, 30, Not Active, 3 MiB\n"
        "1, 00000000:0B:00.0, 2, 2, 30, Active, 3 MiB\n"
    )
    answer = explain(nvidia_smi=table)
    assert answer["verdict"] == "reboot"
    assert {(f["gpu"], f["code"]) for f in answer["findings"]} == {
        ("0000:0b:00", "ecc-volatile"),
        ("0000:0b:00", "clocks-held"),
    }


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        ("00000000:0A:00.0, GPU-1, 0, 0, No, No", "healthy"),
        ("00000000:0A:00.0, GPU-1, 0, 1, Yes, No", "reboot"),
        ("00000000:0A:00.0, GPU-1, 0, 1, No, Yes", "reboot"),
        ("00000000:0A:00.0, GPU-1, [N/A], [N/A], [N/A], [N/A]", "healthy"),
        ("[GPU is lost], GPU-1, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]", "reboot"),
        ("0A:00.0, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error], No", "inconclusive"),
    ],
)
def test_the_table_of_remapped_rows_is_read(explain: Explain, row: str, verdict: str) -> None:
    header = "gpu_bus_id, gpu_uuid, remapped_rows.correctable, remapped_rows.uncorrectable, "
    header += "remapped_rows.pending, remapped_rows.failure\n"
    assert explain(nvidia_smi=header + row)["verdict"] == verdict


NO_HANDLE = "Unable to determine the device handle for"


@pytest.mark.parametrize(
    ("text", "verdict", "word"),
    [
        (f"{NO_HANDLE} GPU 0000:3B:00.0: GPU is lost.  Reboot the system", "reboot", "gpu-lost"),
        (f"{NO_HANDLE} GPU0000:3B:00.0: Unknown Error", "reboot", "gpu-lost"),
        (f"{NO_HANDLE} GPU 0000:3B:00.0: GPU requires reset", "reboot", "reset-required"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "inconclusive",
            "communicate",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", "inconclusive", "mismatch"),
        ("Failed to initialize NVML: Unknown Error", "inconclusive", "Unknown Error"),
        ("sh: nvidia-smi: command not found", "inconclusive", "not found"),
        ("No devices were found", "inconclusive", "no GPU"),
    ],
)
def test_complaints_in_place_of_output(explain: Explain, text: str, verdict: str, word: str) -> None:
    answer = explain(nvidia_smi=text)
    assert answer["verdict"] == verdict
    assert word in str(answer)


MAY_NOT = "No devices were found. Please make sure /dev/nvidia* files are readable by current user."


@pytest.mark.parametrize(
    ("expected", "text", "verdict"),
    [
        ("8", "No devices were found", "reboot"),
        ("8", "No devices found.", "inconclusive"),
        ("8", MAY_NOT, "inconclusive"),
        ("2", xml(), "reboot"),
        ("1", xml(), "healthy"),
        ("0", xml(), "healthy"),
    ],
    ids=["none", "perhaps none", "none that may be seen", "fewer", "as many", "more"],
)
def test_fewer_gpus_than_expected_is_a_fault_unless_they_may_not_be_seen(
    explain: Explain, expected: str, text: str, verdict: str
) -> None:
    assert explain("--expect-gpus", expected, nvidia_smi=text)["verdict"] == verdict


@pytest.mark.parametrize(
    "text", ["", "  \n", "<nvidia_smi_log>", xml()[:900], "<html></html>", "0, 1, 2\n3, 4, 5\n"]
)
def test_what_nobody_can_read_proves_nothing(explain: Explain, text: str) -> None:
    answer = explain(nvidia_smi=text)
    assert (answer["verdict"], answer["findings"]) == ("inconclusive", [])
    assert answer["checks"][0]["status"] == "not_tested"


def test_output_saved_by_a_windows_program_is_read(explain: Explain) -> None:
    assert explain(nvidia_smi=xml(volatile="1").encode("utf-16"))["verdict"] == "reboot"


@pytest.mark.parametrize(
    "name", ["GPU 0000:BE:00.0", "GPU0000:BE:00.0", "GPU3: 0000:BE:00.0", "gpu 0000:BE:00.0"]
)
@pytest.mark.parametrize(
    "words", ["Unknown Error", "GPU is lost.  Reboot the system", "GPU requires reset", "Not Found"]
)
def test_a_gpu_that_is_complained_of_is_named_however_it_is_written(name: str, words: str) -> None:
    (gpu,) = nvsmi.parse(f"{NO_HANDLE} {name}: {words}\n").gpus
    assert gpu.bus_id == "0000:be:00"


def test_a_lost_gpu_beside_sound_ones_is_seen() -> None:
    text = f"{NO_HANDLE} GPU0000:3B:00.0: Unknown Error\n{xml()}"
    lost = {gpu.bus_id: bool(gpu.lost) for gpu in nvsmi.parse(text).gpus}
    assert lost == {"0000:4f:00": False, "0000:3b:00": True}


OVERVIEW = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.00                 Driver Version: 580.00         CUDA Version: 13.0     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA H200                    On  |   00000000:0A:00.0 Off |                    0 |
| N/A   45C    P0            128W /  700W |       0MiB / 143771MiB |      0%      Default |
|   1  NVIDIA H200                    On  |   00000000:0B:00.0 Off |                    {} |
+-----------------------------------------+------------------------+----------------------+
"""


@pytest.mark.parametrize(("errors", "verdict"), [("0", "healthy"), ("2", "reboot"), ("N/A", "healthy")])
def test_the_overview_is_read_for_what_it_shows(explain: Explain, errors: str, verdict: str) -> None:
    answer = explain(nvidia_smi=OVERVIEW.format(errors))
    assert (answer["verdict"], len(answer["gpus"])) == (verdict, 2)


def test_a_table_without_health_columns_proves_nothing(explain: Explain) -> None:
    header = "index, name, memory.used [MiB]\n"
    assert explain(nvidia_smi=f"{header}0, NVIDIA H200, 3 MiB\n")["verdict"] == "inconclusive"
    lost = f"{header}0, [GPU is lost], [GPU is lost]\n"
    assert explain(nvidia_smi=lost)["verdict"] == "reboot"


def test_of_several_looks_at_a_gpu_the_last_counts(explain: Explain) -> None:
    header = "timestamp, pci.bus_id, remapped_rows.pending\n"
    every_second = [f"02:00:0{s}, 00000000:3B:00.0, {'Yes' if s < 2 else 'No'}\n" for s in range(5)]
    assert explain(nvidia_smi=header + "".join(every_second))["verdict"] == "healthy"
    assert explain(nvidia_smi=header + "".join(reversed(every_second)))["verdict"] == "reboot"
    healed = f"{xml(recovery='GPU Reset')}\n{xml()}"
    assert explain("--expect-gpus", "1", nvidia_smi=healed)["verdict"] == "healthy"


def test_output_about_some_of_the_gpus_says_nothing_about_the_others(explain: Explain) -> None:
    """As `nvidia-smi -i 3` writes it: the others are neither missing nor healthy."""
    part = xml().replace("<attached_gpus>1", "<attached_gpus>8")
    answer = explain("--expect-gpus", "8", nvidia_smi=part)
    assert (answer["verdict"], answer["findings"][0]["rule"]) == ("inconclusive", "gpus-not-shown")
    bad = xml(volatile="2").replace("<attached_gpus>1", "<attached_gpus>8")
    assert explain("--expect-gpus", "8", nvidia_smi=bad)["verdict"] == "reboot"


def test_a_file_with_several_dialects_tells_of_every_gpu(explain: Explain) -> None:
    answer = explain(nvidia_smi=f"{OVERVIEW.format(2)}\n{xml()}")
    assert answer["verdict"] == "reboot"
    assert {gpu["bus_id"] for gpu in answer["gpus"]} == {"0000:0a:00", "0000:0b:00", "0000:4f:00"}

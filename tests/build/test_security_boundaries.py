"""Text of others stays text: in the script that a host runs as root, on a terminal, in the log of the control plane."""

from __future__ import annotations

import logging
import shlex
import subprocess
from pathlib import Path

import pytest

from ecs_gpu_recovery.aws import reboot_document
from ecs_gpu_recovery.cli.terminal import printable
from ecs_gpu_recovery.serve.foreground import StoryFormatter
from testbed.aws.documents import Documents
from testbed.aws.requests import ApiError

HOSTILE = [
    "job\ntouch {sign}\n#/1/0/reboot",
    "job\rtouch {sign}/1/0/reboot",
    "job\u2028touch {sign}/1/0/reboot",
    "$(touch {sign})/1/0/reboot",
    "`touch {sign}`/1/0/reboot",
    "job'; touch {sign}; '/1/0/reboot",
]


def script_on_the_host(key: str) -> str:
    """As SSM makes it from the document: the parameters, if their patterns allow them, put in as text."""
    documents = Documents()
    documents.put("Stack-RebootNode", reboot_document.content())
    given = reboot_document.arguments("Stack-RebootNode", "gpus", key)
    return documents.script("Stack-RebootNode", given).text


@pytest.mark.parametrize("key", HOSTILE)
def test_no_name_of_a_job_puts_a_command_into_the_script_that_hosts_run_as_root(
    tmp_path: Path, key: str
) -> None:
    """Jobs of other tools are adopted with the names they have."""
    sign = tmp_path / "hurt"
    text = script_on_the_host(key.format(sign=sign))
    assert len(text.splitlines()) == len(script_on_the_host("job-1/1/0/reboot").splitlines())
    text = text.replace("/var/lib/gpu-recovery/reboots", shlex.quote(str(tmp_path / "reboots")))
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 194, done.stderr
    assert not sign.exists()


@pytest.mark.parametrize("key", HOSTILE)
@pytest.mark.parametrize("name", ["key", "marker"])
def test_whoever_may_send_the_document_cannot_put_a_command_into_it_either(name: str, key: str) -> None:
    """Not through us: an operator's own call, with parameters of their choice."""
    documents = Documents()
    documents.put("Stack-RebootNode", reboot_document.content())
    given = reboot_document.arguments("Stack-RebootNode", "gpus", "job-1/1/0/reboot")
    with pytest.raises(ApiError, match=f"Parameter {name} does not match"):
        documents.script("Stack-RebootNode", {**given, name: [key]})


def test_an_ordinary_order_is_still_named_in_the_script() -> None:
    assert script_on_the_host("job-1/1/0/reboot").startswith("# gpu-recovery reboot key=job-1/1/0/reboot\n")


def test_what_a_program_calls_itself_does_nothing_to_a_terminal() -> None:
    told = printable("name=\x1b]0;owned\x07\x1b[2J evil\r\n2026-11-15 job: COMPLETE \u202etxet")
    assert told.isprintable()
    assert "\n" not in told
    assert "evil" in told
    assert printable("Grüße — 完成 [reboot]") == "Grüße — 完成 [reboot]"


def test_a_reason_cannot_forge_a_line_of_the_log() -> None:
    record = logging.LogRecord("ecs_gpu_recovery", logging.INFO, "", 0, "moved", None, None)
    record.__dict__.update(
        {
            "record": "j",
            "subject": "job",
            "from": "",
            "to": "FAILED",
            "why": "x\n12:00:00  j  job: COMPLETE",
            "evidence": "",
        }
    )
    assert "\n" not in StoryFormatter().format(record)

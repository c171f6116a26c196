"""Text of others stays text: in the script that a host runs as root, on a terminal, in the log of the control plane."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ecs_gpu_recovery.aws import last_look, reboot_document
from ecs_gpu_recovery.cli.terminal import printable
from ecs_gpu_recovery.serve.foreground import StoryFormatter
from testbed.aws.documents import Documents
from testbed.aws.requests import ApiError
from tests.aws.shell_host import BUCKET, DOCUMENT, Host

HOSTILE = [
    "job\ntouch {sign}\n#/1/0/reboot",
    "job\rtouch {sign}/1/0/reboot",
    "job\u2028touch {sign}/1/0/reboot",
    "$(touch {sign})/1/0/reboot",
    "`touch {sign}`/1/0/reboot",
    "job'; touch {sign}; '/1/0/reboot",
]


@pytest.mark.parametrize("key", HOSTILE)
def test_no_name_of_a_job_puts_a_command_into_the_script_that_hosts_run_as_root(
    tmp_path: Path, key: str
) -> None:
    """Jobs of other tools are adopted with the names they have."""
    sign = tmp_path / "hurt"
    host, key = Host(tmp_path), key.format(sign=sign)
    assert len(host.script(key).splitlines()) == len(host.script("job-1/1/0/reboot").splitlines())
    assert host.run(key)[0] == 194
    assert not sign.exists()


@pytest.mark.parametrize("key", HOSTILE)
@pytest.mark.parametrize("name", ["key", "marker", "evidence"])
def test_whoever_may_send_the_document_cannot_put_a_command_into_it_either(name: str, key: str) -> None:
    """Not through us: an operator's own call, with parameters of their choice."""
    documents, last = Documents(), last_look.name("Stack")
    documents.put(DOCUMENT, reboot_document.content(BUCKET))
    documents.put(last, last_look.content(BUCKET))
    address = f"https://{BUCKET}.s3.us-east-1.amazonaws.com/evidence/n1/a.tar.gz"
    for document, given in (
        (DOCUMENT, reboot_document.arguments(DOCUMENT, "gpus", "job-1/1/0/reboot")),
        (last, last_look.arguments(last, "gpus", "node/n1/replace/1", address)),
    ):
        assert documents.script(document, given).text
        with pytest.raises(ApiError, match=f"Parameter {name} does not match"):
            documents.script(document, {**given, name: [key]})


def test_an_ordinary_order_is_still_named_in_the_script(tmp_path: Path) -> None:
    assert (
        Host(tmp_path).script("job-1/1/0/reboot").startswith("# gpu-recovery reboot key=job-1/1/0/reboot\n")
    )


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

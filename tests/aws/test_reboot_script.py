"""What a host keeps before it is rebooted, and that none of it holds up the reboot. Shell and sending are real."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ecs_gpu_recovery.aws import last_look, reboot_document
from testbed.aws.documents import Documents
from testbed.aws.requests import ApiError
from tests.answering import Answer, answering
from tests.aws.shell_host import BUCKET, DOCUMENT, Host

KEY = "j1/1/0/reboot"
ANSWERS = {
    "journalctl": "echo 'NVRM: Xid 79'",
    "nvidia-smi": "echo 'GPU UUID : GPU-1'",
    "dcgmi": "echo 'Overall Health: Failure'; exit 1",
    "docker": 'case "$1 $2" in "ps -aq") echo c1;; "logs --tail") echo "step 41";; *) echo list;; esac',
}


class Bucket:
    """What was put where."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.address = ""

    def put(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.kept[path] = body
        return 200, b""

    def files(self) -> dict[str, str]:
        (body,) = self.kept.values()
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            return {
                m.name.removeprefix("./"): found.read().decode()
                for m in archive
                if (found := archive.extractfile(m)) is not None
            }


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    with answering(made.put) as url:
        made.address = f"{url}/{BUCKET}/evidence/n1/a.tar.gz?X-Amz-Signature=ab%2F1"
        yield made


def test_what_the_reboot_would_wipe_is_sent_away_first(tmp_path: Path, bucket: Bucket) -> None:
    code, said = Host(tmp_path, ANSWERS).run(KEY, bucket.address)
    assert (code, said) == (194, "evidence kept\nrebooting from first")
    assert set(bucket.kept) == {f"/{BUCKET}/evidence/n1/a.tar.gz?X-Amz-Signature=ab%2F1"}
    files = bucket.files()
    assert "Xid 79" in files["kernel.txt"]
    assert "GPU-1" in files["nvidia-smi.txt"]
    assert "Failure" in files["dcgm.txt"], "whatever it exits with"
    assert "step 41" in files["containers.txt"]
    assert "first" in files["host.txt"]
    assert not list(tmp_path.glob("tmp.*")), "nothing is left on the host"


def a_last_look(bucket: Bucket) -> str:
    documents, name = Documents(), last_look.name("Stack")
    documents.put(name, last_look.content(BUCKET))
    given = last_look.arguments(name, "gpus", "node/n1/replace/2", bucket.address)
    return documents.script(name, given).text


def test_the_same_is_kept_once_before_a_machine_is_taken_away_and_nothing_else_is_done(
    tmp_path: Path, bucket: Bucket
) -> None:
    host, script = Host(tmp_path, ANSWERS), a_last_look(bucket)
    assert host.shell(script) == (0, "evidence kept")
    whole = {"kernel.txt", "nvidia-smi.txt", "dcgm.txt", "processes.txt", "containers.txt", "host.txt"}
    assert set(bucket.files()) == whole
    bucket.kept.clear()
    assert host.shell(script) == (0, "looked at before")
    assert (bucket.kept, (tmp_path / "insisted").exists()) == ({}, False)


def test_a_last_look_whose_archive_cannot_be_sent_has_failed_and_may_be_tried_again(
    tmp_path: Path, bucket: Bucket
) -> None:
    host, script = Host(tmp_path, ANSWERS), a_last_look(bucket)
    cut_off = script.replace("curl -fsS", "false").replace(
        "await .answered.sent 1 30", "await .answered.sent 1 1"
    )
    assert host.shell(cut_off) == (1, "the evidence could not be sent\nno evidence was kept")
    assert host.shell(script) == (0, "evidence kept")


def test_nothing_of_it_holds_up_the_reboot_for_more_than_90_seconds() -> None:
    """The questions, asked beside each other, and the sending are each waited for so long and no longer."""
    script = reboot_document.content()["mainSteps"][0]["inputs"]["runCommand"]
    waits = [int(found) for found in re.findall(r"await \S+ \S+ ([0-9]+)", "\n".join(script))]
    assert len(waits) == 2
    assert sum(waits) <= 90


def test_it_is_kept_once_and_not_after_the_reboot(tmp_path: Path, bucket: Bucket) -> None:
    host = Host(tmp_path, ANSWERS)
    host.run(KEY, bucket.address)
    bucket.kept.clear()
    assert host.run(KEY, bucket.address) == (194, "rebooting from first")
    host.boot("second")
    assert host.run(KEY, bucket.address) == (0, "booted as second")
    assert not bucket.kept


def test_a_driver_that_hangs_costs_its_own_answer_only(tmp_path: Path, bucket: Bucket) -> None:
    """The real wait is 40 s; here it is cut."""
    host = Host(tmp_path, {**ANSWERS, "nvidia-smi": "echo begun; exec sleep 30"})
    shortened = host.script
    host.script = lambda *given: re.sub(r'"\$questions" 40', '"$questions" 1', shortened(*given))  # type: ignore[method-assign]
    code, said = host.run(KEY, bucket.address)
    assert code == 194
    assert "some questions were not answered in time" in said
    assert "Xid 79" in bucket.files()["kernel.txt"]


@pytest.mark.parametrize("missing", [{"curl": "exit 7"}, {"tar": "exit 2"}, {"mktemp": "exit 1"}])
def test_whatever_fails_the_node_is_rebooted(tmp_path: Path, bucket: Bucket, missing: dict[str, str]) -> None:
    host = Host(tmp_path, {**ANSWERS, **missing})
    shortened = host.script
    host.script = lambda *given: shortened(*given).replace(".answered.sent 1 30", ".answered.sent 1 1")  # type: ignore[method-assign]
    code, said = host.run(KEY, bucket.address)
    assert code == 194
    assert "evidence kept" not in said
    assert not bucket.kept


def test_a_shutdown_that_hangs_is_ended_by_the_kernel(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run(KEY)
    ordered = (tmp_path / "insisted").read_text()
    assert re.search(r"sleep 300; .*echo b > \S+/proc/sysrq-trigger", ordered)


@pytest.mark.parametrize(
    "address",
    [
        f"https://{BUCKET}.s3.eu-west-1.amazonaws.com/evidence/n1/a.tar.gz?X-Amz-Expires=900&X-Amz-Signature=a%2Fb",
        f"https://{BUCKET}.s3.cn-north-1.amazonaws.com.cn/evidence/n1/a.tar.gz?X-Amz-Signature=ab",
        "",
    ],
)
def test_the_stacks_own_bucket_is_taken(tmp_path: Path, address: str) -> None:
    assert f"evidence='{address}'" in Host(tmp_path).script(KEY, address)


@pytest.mark.parametrize(
    "address",
    [
        "https://other.s3.eu-west-1.amazonaws.com/evidence/n1/a.tar.gz",
        f"https://{BUCKET}.s3.evil.example/evidence/n1/a.tar.gz",
        f"https://{BUCKET}.s3.eu-west-1.amazonaws.com.evil.example/evidence/a",
        f"https://{BUCKET}.s3.eu-west-1.amazonaws.com/elsewhere/a.tar.gz",
        f"https://{BUCKET}.s3.eu-west-1.amazonaws.com/evidence/a'; reboot; '",
        f"http://{BUCKET}.s3.eu-west-1.amazonaws.com/evidence/a",
    ],
)
def test_no_other_place_can_be_named(tmp_path: Path, address: str) -> None:
    with pytest.raises(ApiError, match="evidence does not match"):
        Host(tmp_path).script(KEY, address)


def test_a_document_without_a_bucket_sends_nothing_anywhere() -> None:
    documents = Documents()
    documents.put(DOCUMENT, reboot_document.content())
    given = reboot_document.arguments(
        DOCUMENT, "gpus", KEY, f"https://{BUCKET}.s3.x.amazonaws.com/evidence/a"
    )
    with pytest.raises(ApiError, match="evidence does not match"):
        documents.script(DOCUMENT, given)

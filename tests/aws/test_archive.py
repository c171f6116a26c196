"""What a record has no room for any more is kept, whatever the log level, where the stack's own logs do not matter."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest

from ecs_gpu_recovery.aws.notify import SnsNotifier, TimelineArchive, stream
from ecs_gpu_recovery.core.effects import Archive
from ecs_gpu_recovery.core.messages import job_failed
from tests.stories.account import KEYS
from tests.stories.memory import Topic

NOW = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)
OLD = Archive(key="j1/archive/7", lines=("2026-10-01 job: IN_PROGRESS", "2026-10-02 n1: REBOOTING"))


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """The functions' log, as quiet as it can be set."""
    log, text = logging.getLogger("ecs_gpu_recovery"), io.StringIO()
    handler = logging.StreamHandler(text)
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    yield text
    log.setLevel(before)
    log.removeHandler(handler)


def test_without_a_group_the_lines_are_in_the_log_whatever_its_level(output: io.StringIO) -> None:
    logging.getLogger("ecs_gpu_recovery").info("not this")
    archive: Any = TimelineArchive(None, "", lambda: NOW)  # type: ignore[arg-type]
    archive.keep("j1", OLD)
    assert output.getvalue().splitlines() == ["timeline", "timeline"]


@pytest.mark.ministack
def test_each_record_has_a_stream_of_its_own_in_the_group(aws_url: str) -> None:
    logs: Any = boto3.client("logs", endpoint_url=aws_url, **KEYS)
    group = "/gpu-recovery/Stack/timeline"
    logs.create_log_group(logGroupName=group)
    archive = TimelineArchive(logs, group, lambda: datetime.now(UTC))
    archive.keep("j1", OLD)
    archive.keep("j1", Archive(key="j1/archive/8", lines=("2026-11-15 job: COMPLETE",)))
    archive.keep("node/n:1", OLD)
    said = logs.get_log_events(logGroupName=group, logStreamName="j1", startFromHead=True)["events"]
    assert [json.loads(event["message"]) for event in said] == [
        {"record": "j1", "line": line} for line in (*OLD.lines, "2026-11-15 job: COMPLETE")
    ]
    names = {one["logStreamName"] for one in logs.describe_log_streams(logGroupName=group)["logStreams"]}
    assert names == {"j1", stream("node/n:1")}


def test_a_long_subject_reaches_sns_cut_at_a_word_with_three_dots() -> None:
    topic: Any = Topic()
    notifier = SnsNotifier(topic, "arn", TimelineArchive(None, "", lambda: NOW))  # type: ignore[arg-type]
    notifier.notify(job_failed("j1", 0, f"no GPU fault found; {'überall ' * 20}", ()))
    (message,) = topic.messages
    assert message["Subject"].startswith("Job j1 failed: no GPU fault found; ?berall ?berall")
    assert message["Subject"].endswith(" ?berall...")


def test_every_name_gives_a_stream_that_cloudwatch_takes_and_two_names_two_streams() -> None:
    names = ["j1", "a:b", "a*b", "a_b", "x" * 600, "x" * 601, "Grüße"]
    streams = [stream(name) for name in names]
    assert len(set(streams)) == len(names)
    assert all(len(one) <= 512 and not set(one) & set(":*") for one in streams)

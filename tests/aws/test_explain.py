"""How a past event is explained to a person, from a file of one, of many, or of none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.aws.explain import Rules, explain, explain_file, explain_text
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.policy import Policy
from tests.aws.event_builders import CHECK, INSTANCE, TASK_ID, TRAIN, container, stopped
from tests.aws.strangers import STRANGERS

FAILED = stopped(container(1), env={**TRAIN, "JOB_ATTEMPT": "0"})
FIELDS = {
    "ours",
    "kind",
    "job",
    "attempt",
    "rank",
    "why",
    "may_be_ours",
    "at",
    "cluster",
    "task",
    "node",
    "instance",
    "host",
    "command",
    "status",
    "exit",
    "verdict",
    "policy",
    "policy_from",
}


def test_a_failed_rank_is_explained_with_its_job_and_what_its_end_means() -> None:
    said = explain(FAILED)
    assert set(said) == FIELDS
    assert [said[name] for name in ("ours", "kind", "job", "attempt", "rank")] == [True, "task", "j1", 0, 2]
    assert (said["task"], said["at"]) == (TASK_ID, "2026-11-15T02:00:00+00:00")
    assert said["instance"] == INSTANCE
    assert said["exit"] == {
        "exit_code": 1,
        "meaning": "suspect",
        "reason": "Essential container in task exited",
        "stop_code": "EssentialContainerExited",
    }
    assert (said["verdict"], said["node"], said["command"]) == (None, None, None)
    assert said["why"].startswith("rank 2 of job j1, attempt 0, has ended")


def test_what_an_exit_code_means_follows_the_policy() -> None:
    said = explain(stopped(container(77)), Rules(policy=Policy(healthcheck_exit_codes=frozenset({77}))))
    assert said["exit"]["meaning"] == "suspect"
    assert explain(stopped(container(77)))["exit"]["meaning"] == "fault"


def test_a_check_is_explained_by_its_verdict() -> None:
    said = explain(stopped(container(2), env=CHECK))
    assert (said["kind"], said["node"], said["verdict"], said["job"]) == ("check", "node-a", "replace", None)
    assert (said["exit"]["exit_code"], said["exit"]["meaning"]) == (2, None)


def test_another_cluster_is_explained_as_not_ours() -> None:
    said = explain(FAILED, Rules(cluster="gpu-2"))
    assert (said["ours"], said["job"], said["exit"]) == (False, None, None)
    assert "cluster gpu, not in gpu-2" in said["why"]


def test_one_event_gives_one_answer_and_many_give_a_list(tmp_path: Path) -> None:
    one = json.dumps(FAILED)
    assert explain_text(one) == explain(FAILED)
    assert explain_text(f"\n  {json.dumps(FAILED, indent=2)}\n") == explain(FAILED)
    for text in (f"[{one}, {one}]", f"{one}\n{one}\n", f"{one}\r\n\r\n{one}", f"[{one}]\n{one}"):
        answers = explain_text(text)
        assert isinstance(answers, list)
        assert [said["job"] for said in answers] == ["j1", "j1"]
    assert explain_text("[]") == []
    file = tmp_path / "event.json"
    file.write_text("\ufeff" + one, encoding="utf-8")
    assert explain_file(file) == explain(FAILED)


def test_what_is_json_but_no_event_is_explained_as_malformed() -> None:
    answers = explain_text('[1, null, "x", {}, [], {"tasks": []}]')
    assert isinstance(answers, list)
    assert {said["kind"] for said in answers} == {"malformed"}
    assert len(answers) == 6


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no event"),
        ("  \n", "no event"),
        ("{", "line 1"),
        ('{"a": 1}\n{"b": }\n', "line 2"),
        ("not json", "one event per line"),
        ("[" * 200_000, "nested too deeply"),
        ("1" * 5_000, "too long a number"),
    ],
)
def test_bad_json_is_refused_with_what_to_do(text: str, word: str) -> None:
    with pytest.raises(Refused, match=word):
        explain_text(text)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"nowhere\.json"):
        explain_file(tmp_path / "nowhere.json")
    with pytest.raises(Refused, match="give a file"):
        explain_file(tmp_path)
    binary = tmp_path / "photo.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="UTF-8"):
        explain_file(binary)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(Refused, match=r"broken\.json: not JSON"):
        explain_file(broken)


@given(st.text(alphabet='{}[]",: \n\\ue1aé0', max_size=40))
def test_no_text_whatever_fails_otherwise(text: str) -> None:
    try:
        said = explain_text(text)
    except Refused:
        return
    json.dumps(said, allow_nan=False)


def test_a_file_of_a_whole_night_is_explained_event_by_event(tmp_path: Path) -> None:
    night = tmp_path / "night.ndjson"
    night.write_text("".join(f"{json.dumps(made)}\n" for made, _ in STRANGERS.values()))
    answers = explain_file(night)
    assert isinstance(answers, list)
    assert len(answers) == len(STRANGERS)
    assert all(set(answer) == FIELDS and answer["why"] for answer in answers)
    json.dumps(answers, allow_nan=False)

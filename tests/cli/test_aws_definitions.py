"""gpu-recovery submit --backend aws: the task definition that a job is started from, made or given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.aws_person import LOG_GROUP, Person
from tests.stories.world import CLUSTER, TRAIN


def definitions(person: Person, family: str = "gpu-training-run") -> dict[str, Any]:
    """The newest task definition of a family, as ECS keeps it."""
    ecs = person.world.cloud.client("ecs")
    found: dict[str, Any] = ecs.describe_task_definition(taskDefinition=family)["taskDefinition"]
    return found


def test_the_task_definition_holds_what_was_asked_for(person: Person, tmp_path: Path) -> None:
    """FSx and a workspace mounted, shared memory, InfiniBand, limits, GPUs, roles, logs."""
    file = tmp_path / "job.toml"
    file.write_text(f"""
        name = "llm"
        id = "j1"
        image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/llm:7"
        script = "/workspace/train.py"
        args = ["--lr", "3e-4"]
        any_nodes = 2
        workdir = "/workspace"
        checkpoint_dir = "/fsx/llm"
        mounts = ["/fsx:/fsx", "/home/ann/work:/workspace:ro"]
        shared_memory_mib = 65536
        infiniband = true
        gpus_per_node = 8
        memory_mib = 16000
        log_group = "{LOG_GROUP}"
        task_role = "arn:aws:iam::123456789012:role/train"
        execution_role = "arn:aws:iam::123456789012:role/exec"
        check = "none"
        env = {{ EPOCHS = "3" }}
    """)
    told = person("submit", "--file", file)
    assert told.code == 0, told
    assert not told.err
    made = definitions(person, "gpu-training-llm")
    assert (made["networkMode"], made["requiresCompatibilities"]) == ("host", ["EC2", "EXTERNAL"])
    assert made["taskRoleArn"].endswith(":role/train")
    assert made["executionRoleArn"].endswith(":role/exec")
    assert [v["host"]["sourcePath"] for v in made["volumes"]] == ["/fsx", "/home/ann/work"]
    (box,) = made["containerDefinitions"]
    assert box["command"] == ["python3", "/workspace/train.py", "--lr", "3e-4"]
    assert box["image"].endswith("/llm:7")
    assert box["workingDirectory"] == "/workspace"
    assert [(p["containerPath"], p["readOnly"]) for p in box["mountPoints"]] == [
        ("/fsx", False),
        ("/workspace", True),
    ]
    assert box["linuxParameters"]["sharedMemorySize"] == 65536
    assert box["linuxParameters"]["devices"][0]["hostPath"] == "/dev/infiniband"
    assert box["resourceRequirements"] == [{"type": "GPU", "value": "8"}]
    assert (box["memory"], "memoryReservation" in box) == (16000, False)
    limits = {u["name"]: u["softLimit"] for u in box["ulimits"]}
    assert limits["memlock"] == -1
    assert limits["nofile"] >= 65536
    assert box["logConfiguration"]["options"]["awslogs-group"] == LOG_GROUP
    env = person.world.tasks()[0]["env"]
    assert env["EPOCHS"] == "3"
    assert env["CHECKPOINT_DIR"] == "/fsx/llm"
    assert env["MASTER_PORT"] == "29500"


PYTHON = "import os, sys\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], *sys.argv[1:])\n"


SHELL = '#!/bin/bash\necho "rank $RANK of $WORLD_SIZE" "$@"\n'


@pytest.mark.parametrize("text", [PYTHON, SHELL], ids=["python", "shell"])
def test_a_script_of_one_s_own_goes_along_and_runs_on_every_node_in_every_attempt(
    person: Person, tmp_path: Path, text: str
) -> None:
    script = tmp_path / "mine"
    script.write_text(text)
    args = ("--id", "j1", "--any", "2", "--check", "none", "--image", "llm:7", "--script", str(script))
    told = person("submit", *args, "--", "--lr", "a b")
    assert told.code == 0, told
    script.unlink()
    person.world.pass_time(2)
    person.world.cloud.control.health("n1", 1)
    person.world.fail_rank(0)
    person.world.until(lambda: person.world.job().attempt == 1 and len(person.world.tasks(live=True)) == 2)
    for task in person.world.tasks():
        (box,) = definitions(person, task["taskDefinitionArn"])["containerDefinitions"]
        kept = {pair["name"]: pair["value"] for pair in box["environment"]}
        ran = subprocess.run(
            task["overrides"]["containerOverrides"][0]["command"],
            env={**kept, **task["env"], "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout == f"rank {task['env']['NODE_RANK']} of 2 --lr a b\n"


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (os.urandom(90_000).hex(), ("--image", "x:1"), "script_text: packed it has"),
        ("x" * 300_000, ("--image", "x:1"), "script_text: a script may have up to 256 KiB"),
        ("print()", ("--task-definition", TRAIN), "script_text: the task definition decides that"),
        (" ", ("--image", "x:1"), "script_text: write a script"),
    ],
)
def test_a_script_that_cannot_be_carried_is_refused(
    person: Person, tmp_path: Path, text: str, more: tuple[str, ...], said: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    person("submit", "--any", "2", *more, "--script", str(tmp_path / "mine.py")).refused(said)
    assert person.world.account.rows("job_table") == {}


def test_nccl_and_torch_are_made_to_tell_unless_the_person_or_the_definition_says_otherwise(
    person: Person,
) -> None:
    """Who wrote the definition, or asked for the job, may have reasons of their own."""
    person.world.cloud.client("ecs").register_task_definition(
        family="own",
        containerDefinitions=[
            {
                "name": "main",
                "image": "own",
                "memory": 100,
                "environment": [{"name": "NCCL_RAS_ADDR", "value": "localhost:5"}],
                "resourceRequirements": [{"type": "GPU", "value": "8"}],
            }
        ],
    )
    args = ("submit", "--id", "j1", "--any", "1", "--check", "none", "--task-definition", "own")
    assert person(*args, "-e", "TORCH_NCCL_DUMP_ON_TIMEOUT=0").code == 0
    env = person.world.tasks()[0]["env"]
    assert (env["TORCH_FR_BUFFER_SIZE"], env["TORCH_NCCL_DUMP_ON_TIMEOUT"]) == ("2000", "0")
    assert "NCCL_RAS_ADDR" not in env, "the definition's own counts"
    assert person.submit("--any", "1", "--check", "none").code == 0
    assert person.world.tasks()[1]["env"]["NCCL_RAS_ADDR"] == "localhost:28028"


@pytest.mark.parametrize(
    ("container", "told"),
    [
        ({}, "/tmp/nccl_trace_pipe_rank_"),
        ({"readonlyRootFilesystem": True}, None),
        ({"mountPoints": [{"sourceVolume": "scratch", "containerPath": "/tmp"}]}, None),
        ({"volumesFrom": [{"sourceContainer": "beside"}]}, None),
        ({"user": "1000:1000"}, None),
        ({"user": "0:0"}, "/tmp/nccl_trace_pipe_rank_"),
        (
            {
                "readonlyRootFilesystem": True,
                "linuxParameters": {"tmpfs": [{"containerPath": "/tmp", "size": 64}]},
            },
            "/tmp/nccl_trace_pipe_rank_",
        ),
    ],
)
def test_torch_is_told_of_a_pipe_only_where_it_can_make_one(
    person: Person, container: dict[str, object], told: str | None
) -> None:
    """Where it can't, it ends the training; and in a folder of several tasks it would take another's away."""
    gpus = [{"type": "GPU", "value": "8"}]
    main = {"name": "main", "image": "own", "memory": 100, "resourceRequirements": gpus, **container}
    person.world.cloud.client("ecs").register_task_definition(
        family="own", containerDefinitions=[main], volumes=[{"name": "scratch"}]
    )
    args = ("submit", "--id", "j1", "--any", "1", "--check", "none", "--task-definition", "own")
    assert person(*args).code == 0
    assert person.world.tasks()[0]["env"].get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE") == told


def test_all_gpus_of_the_smallest_node_are_taken_if_nothing_is_said(person: Person) -> None:
    person.world.cloud.control.add_node(
        name="small", cluster=CLUSTER, gpus=4, attributes={"node_name": "small"}
    )
    assert person.submit("--nodes", "n0,small", "--check", "none").code == 0
    assert definitions(person)["containerDefinitions"][0]["resourceRequirements"][0]["value"] == "4"


def test_a_task_definition_that_exists_is_used_and_its_revision_pinned(person: Person) -> None:
    args = ("submit", "--id", "j1", "--any", "2", "--check", "none", "--task-definition", TRAIN)
    told = person(*args, "-e", "LR=1", "--", "torchrun", "train.py")
    assert told.code == 0, told
    job = person.world.job()
    assert job.spec.task_def.endswith(f"task-definition/{TRAIN}:1")
    assert (job.spec.container, job.spec.gpus_per_node) == ("main", 8)
    (one, _) = person.world.cloud.client("ecs").describe_tasks(
        cluster=CLUSTER, tasks=[rank.task_id for rank in job.ranks]
    )["tasks"]
    (override,) = one["overrides"]["containerOverrides"]
    assert override["command"] == ["torchrun", "train.py"], "the command that was given runs"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--gpus", "4"), "gpus_per_node: the task definition takes 8, the job asks for 4"),
        (("--workdir", "/w"), "workdir: the task definition decides that"),
        (("--image", "x:1"), "image: the task definition decides that"),
        (("--mount", "/a:/b"), "mounts: the task definition decides that"),
    ],
)
def test_what_a_task_definition_decides_is_not_overruled_silently(
    person: Person, more: tuple[str, ...], said: str
) -> None:
    person("submit", "--any", "1", "--task-definition", TRAIN, *more).refused(said)


def test_a_task_definition_that_is_not_there_is_told_of(person: Person) -> None:
    person("submit", "--any", "1", "--task-definition", "nowhere:3").refused(
        "there is no task definition nowhere:3 in us-east-1"
    )


def test_a_job_without_image_and_definition_is_told_what_it_lacks(person: Person) -> None:
    person("submit", "--any", "1", "--", "python", "train.py").refused("--image", "--task-definition")

"""Another tool: it starts tasks its own way and keeps the three tables with the schema's attributes alone."""

from __future__ import annotations

from typing import Any

from tests.stories.account import Row
from tests.stories.world import CLUSTER, TRAIN, World

NODES = ("gpu-a", "gpu-b")
CREATED = "2026-11-15T01:00:00Z"


def text(value: str) -> Row:
    return {"S": value}


def listed(values: list[str], how: str) -> Row:
    """Both ways in which such tools write lists."""
    return {"L": [text(value) for value in values]} if how == "list" else text(", ".join(values))


class OtherTool:
    """Starts tasks its own way and keeps the tables as the schema says: all text."""

    def __init__(self, world: World, lists: str = "list") -> None:
        self.world, self.lists = world, lists
        self.nodes: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(NODES):
            self.nodes[name] = world.cloud.control.add_node(name=name, cluster=CLUSTER, external=bool(index))
            self.write_node(name, "AVAILABLE")
        world.pass_time(1)

    def write_node(self, name: str, status: str) -> None:
        arn = self.nodes[name]["arn"]
        self.world.account.write(
            "node_table",
            {
                "node_name": text(name),
                "container_instance_id": text(arn.rpartition("/")[2]),
                "container_instance_arn": text(arn),
                "cluster_name": text(CLUSTER),
                "node_status": text(status),
                "ip": text(f"10.0.1.{len(name)}"),
                "ibdev": text("mlx5_0"),
                "created_at": text(CREATED),
                "updated_at": text(CREATED),
            },
        )

    def start(self, name: str, rank: int) -> str:
        """Without any variable of ours."""
        pairs = {"MASTER_ADDR": "10.0.1.5", "RANK": str(rank), "EPOCHS": "90"}
        env = [{"name": key, "value": value} for key, value in pairs.items()]
        mine = [
            {"name": "main", "command": ["torchrun", "train.py", f"--node_rank={rank}"], "environment": env}
        ]
        reply = self.world.cloud.client("ecs").start_task(
            cluster=CLUSTER,
            taskDefinition=f"{TRAIN}:1",
            containerInstances=[self.nodes[name]["arn"]],
            startedBy="webui",
            overrides={"containerOverrides": mine, "taskRoleArn": "arn:aws:iam::123456789012:role/train"},
        )
        task = str(reply["tasks"][0]["taskArn"]).rpartition("/")[2]
        self.world.watch.owners[task] = ("t1", "0", str(rank))
        return task

    def write_task(self, task: str, name: str, rank: int, **changes: str) -> None:
        definition = f"arn:aws:ecs:us-east-1:123456789012:task-definition/{TRAIN}:1"
        row = {
            "ecs_task_id": task,
            "node_name": name,
            "node_index_in_job": str(rank),
            "job_id": "t1",
            "job_timestamp": CREATED,
            "job_num_nodes": str(len(NODES)),
            "task_def_arn": definition,
            "task_def_name": TRAIN,
            "task_def_revision": "1",
            "cluster_name": CLUSTER,
            "container_inst_id": self.nodes[name]["arn"].rpartition("/")[2],
            "container_instance_arn": self.nodes[name]["arn"],
            "retry": "0",
            "task_status": "IN_PROGRESS",
            "updated_at": CREATED,
            "created_at": CREATED,
            **changes,
        }
        self.world.account.write("task_table", {key: text(value) for key, value in row.items()})

    def write_job(self, tasks: list[str], **changes: Row) -> None:
        ids = [node["arn"].rpartition("/")[2] for node in self.nodes.values()]
        self.world.account.write(
            "job_table",
            {
                "job_id": text("t1"),
                "job_timestamp": text(CREATED),
                "cluster_name": text(CLUSTER),
                "num_nodes": text(str(len(NODES))),
                "assigned_nodes": listed(list(NODES), self.lists),
                "submitted_container_inst_ids": listed(ids, self.lists),
                "submitted_ecs_task_ids": listed(tasks, self.lists),
                "updated_at": text(CREATED),
                "created_at": text(CREATED),
                "retry": text("0"),
                "job_status": text("IN_PROGRESS"),
                **changes,
            },
        )

    def submit(self, *, node_status: str = "IN_PROGRESS", **changes: Row) -> list[str]:
        """All of it before our handlers were there to hear of it."""
        events, self.world.events = self.world.events, False
        tasks = [self.start(name, rank) for rank, name in enumerate(NODES)]
        for rank, task in enumerate(tasks):
            self.write_task(task, NODES[rank], rank)
            if node_status:
                self.write_node(NODES[rank], node_status)
        self.write_job(tasks, **changes)
        self.world.pass_time(2)
        self.world.events = events
        return tasks

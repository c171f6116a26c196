"""What every attribute of the three tables is, in English and Chinese. A test holds the names and types against what is
written; `tools.schema_docs` makes the pages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """`kind` is DynamoDB's letter. `seed`: it is part of the published schema; else it was added beside it."""

    name: str
    kind: str
    seed: bool
    en: str
    zh: str
    example: str = ""  #: of a published one: other tools write those


#: Beside every record, of a job or of a node.
OF_RECORDS = (
    Attribute(
        "version",
        "N",
        False,
        "counts the writes: n is written only over n - 1",
        "写入计数：版本 n 只能覆盖版本 n-1",
    ),
    Attribute(
        "format",
        "N",
        False,
        "the [format](upgrade.md#two-releases-at-once) of the record: an older release does not touch a newer one",
        "记录的[格式编号](upgrade.md#two-releases-at-once)：旧版本不会改写更新格式的记录",
    ),
    Attribute(
        "told",
        "S",
        False,
        "what people were told is [wrong with the record](runbooks/bad-records.md); absent if nothing was",
        "已通知人员的[记录问题](runbooks/bad-records.md)；没有时不存在",
    ),
    Attribute(
        "written_by",
        "S",
        False,
        "the name of the last write, so that its repetition is known",
        "最后一次写入的标识，用于识别重复写入",
    ),
    Attribute(
        "wake_at",
        "S",
        False,
        "when the sweeper must look; absent if nothing is waited for",
        "清扫函数必须检查的时间；没有等待事项时不存在",
    ),
)

TASK = (
    Attribute(
        "ecs_task_id", "S", True, "the id of the ECS task", "ECS 任务 ID", "0f9de17a6465404e8b1b2356dc13c2f8"
    ),
    Attribute("node_name", "S", True, "the node it runs on", "任务所在节点的名称", "gpu-01"),
    Attribute(
        "node_index_in_job",
        "S",
        True,
        "the rank: digits, from 0",
        "节点在作业中的序号（rank），从 0 开始的数字",
        "0",
    ),
    Attribute("job_id", "S", True, "its job", "所属作业的 ID", "llm-3f2a1c"),
    Attribute(
        "job_timestamp",
        "S",
        True,
        "when the job was submitted",
        "作业提交的时间",
        "2026-11-15T02:00:00+00:00",
    ),
    Attribute("job_num_nodes", "S", True, "how many nodes the job has", "作业的节点数", "2"),
    Attribute(
        "task_def_arn",
        "S",
        True,
        "the task definition, with its revision",
        "任务定义的 ARN（含修订版本）",
        "arn:aws:ecs:us-east-1:123456789012:task-definition/llm:7",
    ),
    Attribute("task_def_name", "S", True, "its family", "任务定义的名称（family）", "llm"),
    Attribute("task_def_revision", "S", True, "its revision", "任务定义的修订版本", "7"),
    Attribute("cluster_name", "S", True, "the cluster", "ECS 集群的名称", "gpu-cluster"),
    Attribute(
        "container_inst_id",
        "S",
        True,
        "the container instance, by its id",
        "容器实例 ID",
        "5bb0e6b4c2a94b1f8f3cf8a9b1a1d0c7",
    ),
    Attribute(
        "container_instance_arn",
        "S",
        True,
        "the container instance, by its ARN",
        "容器实例的 ARN",
        "arn:aws:ecs:us-east-1:123456789012:container-instance/gpu-cluster/5bb0e6b4c2a94b1f8f3cf8a9b1a1d0c7",
    ),
    Attribute(
        "retry",
        "S",
        True,
        "the attempt this task belongs to: digits, from 0",
        "该任务所属的尝试次数，从 0 开始",
        "0",
    ),
    Attribute("task_status", "S", True, "where it stands", "任务的当前状态", "IN_PROGRESS"),
    Attribute(
        "updated_at",
        "S",
        True,
        "when the row last changed",
        "该行最后更新的时间",
        "2026-11-15T02:41:07.120000+00:00",
    ),
    Attribute(
        "created_at",
        "S",
        True,
        "when the row was first written",
        "该行首次写入的时间",
        "2026-11-15T02:00:01.500000+00:00",
    ),
    Attribute("exit_code", "S", False, "how it ended, once it has: digits", "退出代码（结束后才有）"),
    Attribute(
        "exit_reason",
        "S",
        False,
        "why, in ECS's words",
        "ECS 给出的结束原因",
    ),
    Attribute(
        "job_version",
        "N",
        False,
        "the version of the job's record that wrote the row",
        "写入该行的作业记录版本",
    ),
)
JOB = (
    Attribute("job_id", "S", True, "the id of the job", "作业 ID", "llm-3f2a1c"),
    Attribute(
        "job_timestamp", "S", True, "when it was submitted", "作业提交的时间", "2026-11-15T02:00:00+00:00"
    ),
    Attribute("cluster_name", "S", True, "the cluster", "ECS 集群的名称", "gpu-cluster"),
    Attribute("num_nodes", "S", True, "how many nodes it has", "作业的节点数", "2"),
    Attribute(
        "assigned_nodes",
        "L",
        True,
        "their names, in the order of the ranks",
        "分配的节点名称列表，按 rank 排序",
        '["gpu-01", "gpu-02"]',
    ),
    Attribute(
        "submitted_container_inst_ids",
        "L",
        True,
        "their container instances, in the same order",
        "对应的容器实例 ID 列表，顺序相同",
        '["5bb0e6…", "91c2d4…"]',
    ),
    Attribute(
        "submitted_ecs_task_ids",
        "L",
        True,
        "the tasks of the current attempt, as far as they are started",
        "当前尝试中已启动的 ECS 任务 ID 列表",
        '["0f9de1…", "7a40b2…"]',
    ),
    Attribute(
        "updated_at",
        "S",
        True,
        "when it last changed",
        "作业最后更新的时间",
        "2026-11-15T02:41:07.120000+00:00",
    ),
    Attribute("created_at", "S", True, "when it was recorded", "记录创建的时间", "2026-11-15T02:00:00+00:00"),
    Attribute("retry", "S", True, "the attempt: digits, from 0", "重试次数，从 0 开始", "1"),
    Attribute("job_status", "S", True, "where it stands", "作业的当前状态", "IN_PROGRESS"),
    Attribute("job_name", "S", False, "a short name that a person gave it", "提交者给作业起的短名称"),
    Attribute(
        "record",
        "S",
        False,
        "the whole job as JSON, or compressed with zlib (type B) above 16,000 characters: the truth",
        "完整的作业记录（JSON；超过 16,000 字符时用 zlib 压缩，类型为 B）。这是唯一的事实来源",
    ),
    *OF_RECORDS,
    Attribute(
        "rows_owed",
        "NS",
        False,
        "ranks whose task and node rows are still to be written; absent if none are",
        "任务行和节点行尚待写入的 rank；没有时不存在",
    ),
    Attribute(
        "live",
        "S",
        False,
        "1 while the job has not ended, then absent",
        "作业未结束时为 1，结束后不存在",
    ),
)
NODE = (
    Attribute("node_name", "S", True, "the name of the node", "节点名称", "gpu-01"),
    Attribute(
        "container_instance_id",
        "S",
        True,
        "its container instance, by its id",
        "容器实例 ID",
        "5bb0e6b4c2a94b1f8f3cf8a9b1a1d0c7",
    ),
    Attribute(
        "container_instance_arn",
        "S",
        True,
        "its container instance, by its ARN",
        "容器实例的 ARN",
        "arn:aws:ecs:us-east-1:123456789012:container-instance/gpu-cluster/5bb0e6b4c2a94b1f8f3cf8a9b1a1d0c7",
    ),
    Attribute("cluster_name", "S", True, "the cluster", "ECS 集群的名称", "gpu-cluster"),
    Attribute("node_status", "S", True, "where it stands", "节点的当前状态", "AVAILABLE"),
    Attribute(
        "ip", "S", True, "where the other ranks reach it", "节点的 IP 地址，其他 rank 通过它连接", "10.0.1.17"
    ),
    Attribute(
        "ibdev",
        "S",
        True,
        "its InfiniBand devices, with commas",
        "InfiniBand 设备，以逗号分隔",
        "mlx5_0,mlx5_1",
    ),
    Attribute(
        "created_at",
        "S",
        True,
        "when it was first recorded",
        "节点记录创建的时间",
        "2026-11-15T01:00:00+00:00",
    ),
    Attribute(
        "updated_at",
        "S",
        True,
        "when it last changed",
        "节点最后更新的时间",
        "2026-11-15T02:41:07.120000+00:00",
    ),
    Attribute(
        "job_id",
        "S",
        False,
        "the job that holds it; absent if it is free",
        "占用该节点的作业；空闲时不存在",
    ),
    Attribute(
        "job_version",
        "N",
        False,
        "the version of that job's record that wrote the status",
        "写入状态的作业记录版本",
    ),
    Attribute(
        "record",
        "S",
        False,
        "the whole node as JSON: GPUs, host, holds, errands, history",
        "完整的节点记录（JSON）：GPU、主机、维护标记、任务、历史",
    ),
    *OF_RECORDS,
    Attribute(
        "handed",
        "S",
        False,
        "under this key its job handed the node over, and its own record decides; absent if it did not",
        "作业以此键移交了该节点，由节点自己的记录决定；未移交时不存在",
    ),
    Attribute(
        "forget_at",
        "N",
        False,
        "its machine is gone: DynamoDB deletes the row after this second of the epoch; absent otherwise",
        "其机器已不存在：DynamoDB 会在该时刻（纪元秒）之后删除此行；否则不存在",
    ),
    Attribute(
        "story",
        "L",
        False,
        "what its job has said of the node since `record` was written; absent if nothing",
        "自 `record` 写入以来其作业对该节点的记录；没有时不存在",
    ),
)
#: Why each index is there, in Chinese; the English words are in `aws.tables`.
INDEX_ZH = {
    ("ecs_job", "by_cluster"): "按集群列出作业，最新的在前",
    ("ecs_job", "by_status"): "按状态列出作业，最新的在前",
    ("ecs_job", "due"): "清扫函数查询到期的作业：有截止时间或未发送的指令；其余作业不在此索引中",
    ("ecs_job", "live"): "清扫函数把每个未结束的作业与集群实际情况比较；已结束的作业不在此索引中",
    ("ecs_node", "by_cluster"): "列出集群的节点（完整记录：数量少、体积小）",
    ("ecs_node", "by_instance"): "事件只给出容器实例，不给出节点名",
    ("ecs_node", "due"): "清扫函数查询到期的节点事务；其余节点不在此索引中",
}
#: Each status, in Chinese; the English words are in `core.model`.
STATUS_ZH = {
    "job": {
        "IN_PROGRESS": "任务组正在启动、运行，或正在最终停止",
        "PENDING_HEALTHCHECK": "正在检查节点：首次启动之前，或某个任务失败之后",
        "PENDING_RESTART": "确认 GPU 故障的节点正在重启，或正在等待失联的节点",
        "RESTARTING": "所有节点已恢复，整个任务组正在重新启动",
        "COMPLETE": "所有任务都成功结束",
        "FAILED": "无法自动恢复，需要人工处理",
        "USER_STOPPED": "由人停止",
    },
    "task": {
        "IN_PROGRESS": "已启动，尚未得知其结束",
        "COMPLETE": "以退出代码 0 结束，且可信",
        "TERMINATED": "以其他方式结束，或从未运行",
    },
    "node": {
        "AVAILABLE": "健康；空闲，或等待同组的其他节点",
        "UNKNOWN": "失去联系",
        "ASSIGNED": "已分配给作业，作业尚未在其上启动",
        "IN_PROGRESS": "正在运行任务",
        "PENDING": "其作业失败；等待旧任务结束后再检查",
        "PENDING_HEALTHCHECK": "正在检查",
        "REBOOTING": "已下令重启",
        "FAILED": "需要人工检查",
    },
}

"""Makes docs/schema.md and docs/schema.zh.md: the three tables, from the code that makes and writes them.

The words about attributes are in `tools.schema_words`; keys, indexes, types and states come from the code.
"""
# ruff: noqa: E501 (the row of a table is one line)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ecs_gpu_recovery.aws.tables import JOBS, NODES, TASKS, Table
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus
from tools.schema_words import INDEX_ZH, JOB, NODE, OF_RECORDS, STATUS_ZH, TASK, Attribute

MADE = "<!-- Made by `make docs`. Change the code, not this page. -->\n\n"
KINDS = {
    "en": {"N": "number", "L": "list of texts", "NS": "set of numbers"},
    "zh": {"N": "数字", "L": "字符串列表", "NS": "数字集合"},
}


@dataclass(frozen=True, slots=True)
class Part:
    """One table: its schema, what its attributes are, and which states its items have."""

    table: Table
    attributes: tuple[Attribute, ...]
    states: type[StrEnum]
    name: str
    en: str
    zh: str


PARTS = (
    Part(
        TASKS,
        TASK,
        TaskStatus,
        "task",
        "One row for each task that was started, a moment after the job's record. Rows of earlier attempts stay.",
        "每个启动过的任务一行。任务行在作业记录之后写入，可能略有延迟。早先尝试的任务行会保留。",
    ),
    Part(
        JOBS,
        JOB,
        JobStatus,
        "job",
        "One item for each job, and the truth about it: ranks, unsent orders and history are in `record`. One"
        " conditional write moves it.",
        "每个作业一条记录，也是该作业的事实来源：每个 rank 及其任务和节点、尚未发送的指令和历史都在 `record` 中。"
        "每次变化只有一次带条件的写入。",
    ),
    Part(
        NODES,
        NODE,
        NodeStatus,
        "node",
        "One row for each node. While a job holds it, the job's record is the truth and this row follows it, maybe"
        " ahead of the `record` beside it.",
        "每个节点一行。节点被作业占用时，作业记录是事实来源，该行随之更新，可能比旁边的 `record` 更新。"
        "空闲节点由自己的记录决定。",
    ),
)

EN_HEAD = """\
# The tables

[中文](schema.zh.md)

Three DynamoDB tables, paid by request, encrypted, restorable to any second of the last 35 days. `TASK_TABLE_NAME`,
`JOB_TABLE_NAME` and `NODE_TABLE_NAME` choose other names. States: [states](states.md). Why one item holds a job:
[decision 0003](decisions/0003-one-item-per-job.md).

- The published attributes come first in each table. Other tools may read all of them, and write them for jobs and nodes
  of their own.
- **Added** are those that only the functions and the command write. Other tools may read `exit_code`, `exit_reason` and
  `job_name`.
- Other attributes are left alone: a tool may keep its own in the same items.
- Without a type it is text. Counts (`retry`, `num_nodes`, `node_index_in_job`) are digits, times ISO 8601 in UTC.
- Read a record consistently (`ConsistentRead`); indexes may be a moment old. Nothing scans a table.
- Only rows of nodes whose machine is gone are deleted (`forget_at`). Delete other old rows when you like, but none of a
  job that has not ended.

## Who writes, who reads

**A job of another tool.** Write rows with the published attributes and start the tasks yourself. The first event of one
of its tasks, or the sweeper within minutes, makes a record beside them: from then on the job is recovered like any
other. It needs `job_id`, `job_status` (one that is not final), `cluster_name`, `assigned_nodes` and
`submitted_ecs_task_ids`, one task for each node; `ecs_task` rows with `ecs_task_id`, `job_id`, `node_name`,
`node_index_in_job` and `task_def_arn` say which task is which rank. Lists may also be one text with commas. A restart
uses the task definition and overrides of each task's first start.

**A node of another tool.** A row with `node_name`, `container_instance_id`, `cluster_name`, `node_status`, and if you
have them `ip` and `ibdev`. The next `gpu-recovery nodes` or `submit` takes it into use, if its status is AVAILABLE.

**A stop by another tool.** Write `USER_STOPPED` into the `job_status` of a job that has not ended: within a minute its
tasks are stopped and its nodes freed.

**Do not** change `job_status` otherwise, or `node_status`, of items that have a `record`: the next change writes over
it. Ask instead: `gpu-recovery stop`, `gpu-recovery node drain`.

"""
ZH_HEAD = """\
# DynamoDB 表结构

[English](schema.md)

共三张 DynamoDB 表，按请求计费，已加密，可恢复到最近 35 天内的任意一秒。下面是默认表名；可以用 `TASK_TABLE_NAME`、
`JOB_TABLE_NAME` 和 `NODE_TABLE_NAME` 改用其他名称。状态及转换见 [states](states.md)（英文）。

- 每张表先列出公开的属性。其他工具可以读取全部，也可以为自己的作业和节点写入。
- **附加**的属性只由 Lambda 函数和命令行写入。其他工具可以读取 `exit_code`、`exit_reason`、`job_name`。
- 其他属性不会被改动：其他工具可以在同一条记录中保存自己的属性。
- 未注明类型的都是字符串。计数（`retry`、`num_nodes`、`node_index_in_job`）是数字字符串，时间为 ISO 8601 格式的 UTC 时间。
- 读取单条记录请使用一致性读取（`ConsistentRead`）；列表来自索引，可能稍旧。任何路径都不扫描整张表。
- 只有机器已不存在的节点行会被删除（`forget_at`）。其他旧记录可以随时删除，但不要删除未结束作业的记录。

## 谁写入，谁读取

**其他工具的作业。** 只用公开的属性写入，并自行启动任务。收到其任务的第一个事件时，或最迟几分钟内由清扫函数，
会在旁边建立记录，此后该作业与其他作业一样得到恢复。必需的属性：`job_id`、`job_status`（未结束的状态）、`cluster_name`、
`assigned_nodes` 和 `submitted_ecs_task_ids`，每个节点一个任务；`ecs_task` 行中的 `ecs_task_id`、`job_id`、`node_name`、
`node_index_in_job` 和 `task_def_arn` 说明哪个任务是哪个 rank。列表也可以写成以逗号分隔的一个字符串。
重启时使用原来的任务定义，以及每个任务首次启动时的覆盖参数（overrides）。

**其他工具的节点。** 一行包含 `node_name`、`container_instance_id`、`cluster_name`、`node_status`，以及可选的 `ip` 和 `ibdev`。
状态为 AVAILABLE 时，下一次 `gpu-recovery nodes` 或 `submit` 会以该名称将其投入使用。

**其他工具停止作业。** 将未结束作业的 `job_status` 写为 `USER_STOPPED`，视为人为停止：该作业的下一个事件，或一分钟内的清扫函数，
会停止其任务并释放节点。

**请勿**将已有 `record` 的记录中的 `job_status` 改为其他值，也不要修改 `node_status`：下一次变化会覆盖它。请使用
`gpu-recovery stop` 或 `gpu-recovery node drain`。

"""


def english() -> str:
    return MADE + EN_HEAD + "\n".join([*(_part(part, "en") for part in PARTS), _shared("en")])


def chinese() -> str:
    return MADE + ZH_HEAD + "\n".join([*(_part(part, "zh") for part in PARTS), _shared("zh")])


def _part(part: Part, lang: str) -> str:
    english = lang == "en"
    titles = {"task": "任务表", "job": "作业表", "node": "节点表"}
    head = f"## `{part.table.name}`" if english else f"## {titles[part.name]} (`{part.table.name}`)"
    columns = ("attribute", "what it is", "example") if english else ("属性", "描述", "示例")
    index = ("index", "keys", "carries", "why") if english else ("索引", "键", "包含", "用途")
    made = [
        head,
        part.en if english else part.zh,
        _table(columns, [_row(one, part.table, lang) for one in part.attributes if one.seed]),
        "**Added:**" if english else "**附加：**",
        _list([_row(one, part.table, lang) for one in part.attributes if _own(one)]),
    ]
    if part.table.indexes:
        made.append(
            _table(index, [_index(part.table, number, lang) for number in range(len(part.table.indexes))])
        )
    if not english:  # the page about states has the English ones
        states = [(f"`{one.value}`", STATUS_ZH[part.name][one.value]) for one in part.states]
        made.append(_table(("状态", "含义"), states))
    return "\n\n".join(made) + "\n"


def _own(attribute: Attribute) -> bool:
    """Added to this table alone."""
    return not attribute.seed and attribute not in OF_RECORDS


def _shared(lang: str) -> str:
    """What is added to jobs and to nodes, with the same meaning."""
    title = "## Added to jobs and nodes" if lang == "en" else "## 作业表和节点表共有的附加属性"
    return f"{title}\n\n{_list([_row(one, JOBS, lang) for one in OF_RECORDS])}\n"


def _row(attribute: Attribute, table: Table, lang: str) -> tuple[str, ...]:
    english = lang == "en"
    kinds = [] if attribute.kind == "S" else [KINDS[lang][attribute.kind]]
    if attribute.name == "record":
        kinds = ["text or binary" if english else "字符串或二进制"]
    if attribute.name == table.key:
        kinds = ["**key**" if english else "**主键**"]
    said = attribute.en if english else attribute.zh
    kind = f" ({', '.join(kinds)})" if kinds else ""
    return (f"`{attribute.name}`", said + kind, f"`{attribute.example}`")


def _index(table: Table, number: int, lang: str) -> tuple[str, ...]:
    index = table.indexes[number]
    everything = "everything" if lang == "en" else "全部属性"
    extra = [name for name in index.carries if name not in index.keys]
    carries = everything if index.carries == ("*",) else ", ".join(f"`{name}`" for name in extra)
    why = index.why if lang == "en" else INDEX_ZH[table.name, index.name]
    return (f"`{index.name}`", ", ".join(f"`{key}`" for key in index.keys), carries or "-", why)


def _list(rows: Sequence[Sequence[str]]) -> str:
    """Without examples: no other tool writes these."""
    return "\n".join(f"- {name}: {said}" for name, said, _ in rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


PAGES: dict[str, Callable[[], str]] = {"schema.md": english, "schema.zh.md": chinese}

"""The embedded store's tables: names and attributes of the DynamoDB tables, and what the engine adds."""

from __future__ import annotations

SCHEMA_VERSION = 1

TASK_COLUMNS = (
    "ecs_task_id",
    "node_name",
    "node_index_in_job",
    "job_id",
    "job_timestamp",
    "job_num_nodes",
    "task_def_arn",
    "task_def_name",
    "task_def_revision",
    "cluster_name",
    "container_inst_id",
    "container_instance_arn",
    "retry",
    "task_status",
    "updated_at",
    "created_at",
    "exit_code",
    "exit_reason",
)

SCHEMA = (
    """CREATE TABLE ecs_job (
         job_id TEXT PRIMARY KEY, job_timestamp TEXT NOT NULL, cluster_name TEXT NOT NULL,
         num_nodes TEXT NOT NULL, assigned_nodes TEXT NOT NULL, submitted_container_inst_ids TEXT NOT NULL,
         submitted_ecs_task_ids TEXT NOT NULL, updated_at TEXT NOT NULL, created_at TEXT NOT NULL,
         retry TEXT NOT NULL, job_status TEXT NOT NULL, job_name TEXT NOT NULL,
         live INTEGER, wake_at TEXT, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX job_live ON ecs_job(job_id) WHERE live=1",
    "CREATE INDEX job_wake ON ecs_job(wake_at) WHERE wake_at IS NOT NULL",
    "CREATE INDEX job_created ON ecs_job(created_at, job_id)",
    "CREATE INDEX job_status ON ecs_job(job_status, created_at, job_id)",
    f"CREATE TABLE ecs_task ({TASK_COLUMNS[0]} TEXT PRIMARY KEY,"
    f" {', '.join(f'{name} TEXT' for name in TASK_COLUMNS[1:])}) WITHOUT ROWID",
    "CREATE INDEX task_job ON ecs_task(job_id)",
    """CREATE TABLE ecs_node (
         node_name TEXT PRIMARY KEY, container_instance_id TEXT, container_instance_arn TEXT,
         cluster_name TEXT NOT NULL, node_status TEXT NOT NULL, ip TEXT, ibdev TEXT,
         created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
         job_id TEXT, wake_at TEXT, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX node_wake ON ecs_node(wake_at) WHERE wake_at IS NOT NULL",
    "CREATE INDEX node_instance ON ecs_node(container_instance_id)",
    """CREATE TABLE timeline (
         record TEXT NOT NULL, seq INTEGER NOT NULL, line TEXT NOT NULL,
         PRIMARY KEY (record, seq)) WITHOUT ROWID""",
    "CREATE TABLE archived (key TEXT PRIMARY KEY) WITHOUT ROWID",
    """CREATE TABLE notice (
         key TEXT PRIMARY KEY, at TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX notice_at ON notice(at)",
)

#: Tables that a later release added. An older one does not miss them, so they need no new number.
ADDED = (
    """CREATE TABLE IF NOT EXISTS fleet_guard (
         cluster_name TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL) WITHOUT ROWID""",
)

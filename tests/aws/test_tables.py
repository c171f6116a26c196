"""The tables as they are deployed: the schema's names and keys, and an index for each question."""

from __future__ import annotations

from ecs_gpu_recovery.aws import items
from ecs_gpu_recovery.aws.tables import JOBS, NODES, TABLES, TASKS
from tests.contract.worlds import MINUTE, a_job, a_node


def test_names_and_keys_are_those_of_the_schema() -> None:
    assert [(table.name, table.key) for table in TABLES] == [
        ("ecs_job", "job_id"),
        ("ecs_task", "ecs_task_id"),
        ("ecs_node", "node_name"),
    ]


def test_every_index_says_which_question_it_answers() -> None:
    assert {table.name: [index.name for index in table.indexes] for table in TABLES} == {
        "ecs_job": ["by_cluster", "by_status", "due", "live"],
        "ecs_task": [],
        "ecs_node": ["by_cluster", "by_instance", "due"],
    }
    assert all(index.why for table in TABLES for index in table.indexes)


def test_records_have_what_the_indexes_are_made_of() -> None:
    job = items.job_item(a_job("j1", [a_node("n1")]), MINUTE)
    node = items.node_item(a_node("n1", deadline=a_node("n1").created_at), MINUTE)
    for table, item in ((JOBS, job), (NODES, node)):
        assert {name: set(item[name]) for name in table.key_attributes} == {
            n: {"S"} for n in table.key_attributes
        }
        carried = {name for index in table.indexes for name in index.carries} - {"*"}
        assert carried <= set(item)


def test_a_table_can_be_made_under_another_name() -> None:
    made = TASKS.definition("my_tasks")
    assert made == {
        "TableName": "my_tasks",
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "ecs_task_id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "ecs_task_id", "AttributeType": "S"}],
    }
    assert JOBS.definition()["TableName"] == "ecs_job"
    assert [index["IndexName"] for index in NODES.definition()["GlobalSecondaryIndexes"]] == [
        "by_cluster",
        "by_instance",
        "due",
    ]

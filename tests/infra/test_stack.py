"""What the template says, above all what no emulator keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecs_gpu_recovery.aws import dead_letters
from ecs_gpu_recovery.aws.tables import FORGET_AT, GUARD, TABLES
from ecs_gpu_recovery.lambdas.metrics import NAMESPACE
from ecs_gpu_recovery.settings import lambda_settings
from tests.infra.stacks import synthesize

if TYPE_CHECKING:
    from tests.infra.stacks import Made

ROOT = Path(__file__).resolve().parents[2]
HANDLERS = {
    "EcsTaskHandler": "ecs_task_handler",
    "DcgmTaskMonitor": "dcgm_task_monitor",
    "EcsInstanceMonitor": "ecs_instance_monitor",
    "RecoverySweeper": "recovery_sweeper",
}


def test_the_tables_are_those_that_the_code_reads(stack: Made) -> None:
    made = {table["TableName"]: table for table in stack.properties("AWS::DynamoDB::Table")}
    assert set(made) == {
        *("ecs_task", "ecs_job", "ecs_node", "EcsGpuRecoveryStack-calls", "EcsGpuRecoveryStack-guard")
    }
    for table in (*TABLES, GUARD):
        wanted = table.definition()
        found = made[f"EcsGpuRecoveryStack-{table.name}" if table is GUARD else table.name]
        assert found["KeySchema"] == wanted["KeySchema"]
        assert found.get("GlobalSecondaryIndexes") == wanted.get("GlobalSecondaryIndexes")
        assert sorted(found["AttributeDefinitions"], key=str) == sorted(
            wanted["AttributeDefinitions"], key=str
        )


def records(made: Made) -> dict[str, Any]:
    """The tables that hold some, by logical name."""
    tables = by_name(made, "AWS::DynamoDB::Table")
    return {name: table for name, table in tables.items() if not table["TableName"].endswith("-calls")}


def test_the_tables_can_be_restored_and_nothing_in_them_expires_but_nodes_that_are_gone(stack: Made) -> None:
    for table in records(stack).values():
        assert table["BillingMode"] == "PAY_PER_REQUEST"
        assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
        assert table["SSESpecification"] == {"SSEEnabled": True}
        expires = {"AttributeName": FORGET_AT, "Enabled": True} if table["TableName"] == "ecs_node" else None
        assert table.get("TimeToLiveSpecification") == expires


def test_a_destroyed_stack_leaves_its_records_behind_unless_it_is_told_not_to(
    stack: Made, tmp_path: Path
) -> None:
    to_go = synthesize(tmp_path, {"DELETION_PROTECTION": "false"})

    def fate(made: Made) -> set[tuple[Any, ...]]:
        tables = [made.all("AWS::DynamoDB::Table")[name] for name in records(made)]
        return {
            (t["DeletionPolicy"], t["Properties"].get("DeletionProtectionEnabled", False)) for t in tables
        }

    assert fate(stack) == {("Retain", True)}
    assert fate(to_go) == {("Delete", False)}
    for made, policy in ((stack, "Retain"), (to_go, "Delete")):
        (timeline,) = [one for name, one in made.all("AWS::Logs::LogGroup").items() if "Timeline" in name]
        assert timeline["DeletionPolicy"] == policy
        assert "RetentionInDays" not in timeline["Properties"], "it outlives the functions' logs"


def test_what_a_destroyed_stack_leaves_has_a_name_by_which_the_next_takes_it_over(stack: Made) -> None:
    """CloudFormation imports what exists only by a name that is written in the template."""
    kept = [r for r in stack.template["Resources"].values() if r.get("DeletionPolicy") == "Retain"]
    named = {"AWS::DynamoDB::Table": "TableName", "AWS::Logs::LogGroup": "LogGroupName"}
    bucket = [
        one for one in kept if one["Type"] == "AWS::S3::Bucket"
    ]  # left behind; the next has one of its own
    assert len(kept) - len(bucket) == 5
    assert all(isinstance(one["Properties"][named[one["Type"]]], str) for one in kept if one not in bucket)


def test_evidence_is_private_encrypted_and_goes_by_itself(stack: Made) -> None:
    (bucket,) = stack.properties("AWS::S3::Bucket")
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    (goes,) = bucket["LifecycleConfiguration"]["Rules"]
    assert (goes["ExpirationInDays"], goes["Status"]) == (90, "Enabled")
    (policy,) = stack.properties("AWS::S3::BucketPolicy")
    effects = {one["Effect"] for one in policy["PolicyDocument"]["Statement"]}
    assert effects == {"Deny"}, "no one else is let in, and nothing travels in the clear"


def test_messages_are_encrypted_with_a_key_that_alarms_may_use(stack: Made) -> None:
    (topic,) = stack.properties("AWS::SNS::Topic")
    ((name, key),) = stack.all("AWS::KMS::Key").items()
    assert stack.name(topic["KmsMasterKeyId"]) == name
    assert key["Properties"]["EnableKeyRotation"] is True
    (alarms,) = [s for s in key["Properties"]["KeyPolicy"]["Statement"] if "Service" in s["Principal"]]
    assert alarms["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert alarms["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_numbers_and_alarms_are_of_one_stack_and_one_cluster(stack: Made, everything: Made) -> None:
    for made, name in ((stack, "EcsGpuRecoveryStack"), (everything, "SecondCluster")):
        own = [a for a in made.properties("AWS::CloudWatch::Alarm") if a["Namespace"] == NAMESPACE]
        assert len(own) == 5
        for alarm in own:
            told = {one["Name"]: one["Value"] for one in alarm["Dimensions"]}
            assert told == {"service": "ecs-gpu-recovery", "stack": name, "cluster": "gpu-cluster"}
            assert alarm["AlarmDescription"].startswith("gpu-cluster: ")


def test_four_functions_share_one_asset_on_arm(stack: Made) -> None:
    functions = stack.functions()
    assert set(functions) == set(HANDLERS)
    for name, properties in functions.items():
        assert properties["Handler"] == f"ecs_gpu_recovery.lambdas.{HANDLERS[name]}.lambda_handler"
        assert properties["Runtime"] == "python3.13"
        assert properties["Architectures"] == ["arm64"]
        assert (properties["Timeout"], properties["MemorySize"]) == (120, 512)
    assert len({json.dumps(properties["Code"]) for properties in functions.values()}) == 1


def test_the_local_aws_can_have_them_for_its_own_architecture(everything: Made) -> None:
    assert {tuple(f["Architectures"]) for f in everything.functions().values()} == {("x86_64",)}


def test_the_functions_are_told_what_they_read(stack: Made, everything: Made) -> None:
    for made, retries in ((stack, 1), (everything, 3)):
        for properties in made.functions().values():
            env = {name: _plain(value) for name, value in properties["Environment"]["Variables"].items()}
            settings = lambda_settings(env)
            assert settings.policy.max_retries == retries
            assert settings.policy.lease.total_seconds() > properties["Timeout"]
            assert settings.ECS_CLUSTER_NAME == "gpu-cluster"
    assert env["DCGM_HEALTH_CHECK_TASK"] == "my-check:1"


def test_the_functions_tell_where_the_dead_letters_of_which_functions_are(stack: Made) -> None:
    queue = stack.dead_letters()
    assert set(stack.functions()) == set(dead_letters.FUNCTIONS)
    for properties in stack.functions().values():
        assert properties["Environment"]["Variables"]["DEAD_LETTER_QUEUE_URL"] == {"Ref": queue}


def _plain(value: Any) -> str:
    """A reference stands for some ARN."""
    return value if isinstance(value, str) else _ARNS[next(iter(value))](value)


_ARNS = {
    "Ref": lambda value: (
        "arn:aws:sns:us-east-1:123456789012:topic" if "Topic" in value["Ref"] else value["Ref"][:40]
    )
}


def by_name(stack: Made, kind: str) -> dict[str, Any]:
    return {name: made["Properties"] for name, made in stack.all(kind).items()}


def test_events_wait_in_the_queue_of_their_function_and_are_taken_in_batches_by_few(stack: Made) -> None:
    """A queue bears its function's name, by which a dead letter finds back. A message that was not taken comes again
    only when the function is surely over."""
    queues = {name: q for name, q in by_name(stack, "AWS::SQS::Queue").items() if "RedrivePolicy" in q}
    assert {q["QueueName"] for q in queues.values()} == {
        f"EcsGpuRecoveryStack-{name}" for name in ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor")
    }
    for queue in queues.values():
        assert stack.name(queue["RedrivePolicy"]["deadLetterTargetArn"]) == stack.dead_letters()
        assert (queue["VisibilityTimeout"], queue["RedrivePolicy"]["maxReceiveCount"]) == (150, 12)
        assert queue["SqsManagedSseEnabled"] is True
    functions = by_name(stack, "AWS::Lambda::Function")
    for mapping in stack.properties("AWS::Lambda::EventSourceMapping"):
        queue = queues.pop(stack.name(mapping["EventSourceArn"]))
        assert functions[stack.name(mapping["FunctionName"])]["FunctionName"] == queue["QueueName"]
        assert mapping["ScalingConfig"] == {"MaximumConcurrency": 2}
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert (mapping["BatchSize"], mapping["MaximumBatchingWindowInSeconds"]) == (1000, 1)
    assert not queues


def test_only_its_own_rules_may_fill_a_queue(stack: Made) -> None:
    for policy in stack.properties("AWS::SQS::QueuePolicy"):
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow":
                assert statement["Principal"] == {"Service": "events.amazonaws.com"}
                assert stack.name(statement["Condition"]["ArnEquals"]["aws:SourceArn"]).startswith("Rules")


def test_there_is_room_for_the_sweeper_however_busy_the_account_is(stack: Made, everything: Made) -> None:
    for made, wanted in ((stack, 2), (everything, None)):
        reserved = {n: f.get("ReservedConcurrentExecutions") for n, f in made.functions().items()}
        assert reserved.pop("RecoverySweeper") == wanted
        assert set(reserved.values()) == {None}


def test_no_event_is_lost_without_a_trace(stack: Made) -> None:
    queue = stack.dead_letters()
    for rule in stack.properties("AWS::Events::Rule"):
        assert [stack.name(target["DeadLetterConfig"]["Arn"]) for target in rule["Targets"]] == [queue]
        retry = {"MaximumEventAgeInSeconds": 3600, "MaximumRetryAttempts": 30}
        assert [target["RetryPolicy"] for target in rule["Targets"]] == [retry]
    configured = stack.properties("AWS::Lambda::EventInvokeConfig")
    assert {stack.name(c["FunctionName"]) for c in configured} == set(stack.all("AWS::Lambda::Function"))
    for config in configured:
        assert config["MaximumRetryAttempts"] == 2
        assert stack.name(config["DestinationConfig"]["OnFailure"]["Destination"]) == queue


def test_the_sweeper_runs_every_minute(stack: Made) -> None:
    (schedule,) = stack.properties("AWS::Scheduler::Schedule")
    assert (schedule["ScheduleExpression"], schedule["State"]) == ("rate(1 minute)", "ENABLED")
    target = schedule["Target"]
    assert "RecoverySweeper" in stack.name(target["Arn"])
    assert stack.name(target["DeadLetterConfig"]["Arn"]) == stack.dead_letters()
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 120, "MaximumRetryAttempts": 2}
    assert "Input" not in target  # the scheduler's own event carries the time


def test_the_scheduler_may_take_its_role_for_the_group_of_the_schedule(stack: Made) -> None:
    """Its word on whose behalf it calls is the group, never one schedule; a role that asks for more is refused."""
    (schedule,) = stack.properties("AWS::Scheduler::Schedule")
    role = stack.template["Resources"][stack.name(schedule["Target"]["RoleArn"])]["Properties"]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    source = "".join(map(str, trust["Condition"]["ArnEquals"]["aws:SourceArn"]["Fn::Join"][1]))
    assert source.endswith(f":schedule-group/{schedule['GroupName']}")


def test_every_alarm_speaks_and_has_a_page_that_says_what_to_do(stack: Made) -> None:
    alarms = stack.properties("AWS::CloudWatch::Alarm")
    assert len(alarms) >= 9
    for alarm in alarms:
        assert [stack.name(action) for action in alarm["AlarmActions"]] == list(stack.all("AWS::SNS::Topic"))
        page = re.search(r"docs/runbooks/[a-z-]+\.md$", alarm["AlarmDescription"])
        assert page is not None
        assert (ROOT / page[0]).exists(), page[0]
    silent = [alarm for alarm in alarms if alarm["TreatMissingData"] == "breaching"]
    assert [alarm["AlarmName"] for alarm in silent] == ["EcsGpuRecoveryStack-SweeperNotRunning"]


def dashboard(stack: Made) -> str:
    (page,) = stack.properties("AWS::CloudWatch::Dashboard")
    return "".join(part for part in page["DashboardBody"]["Fn::Join"][1] if isinstance(part, str))


def test_every_metric_of_ours_that_is_watched_is_counted_by_a_function(stack: Made) -> None:
    watched = {
        a["MetricName"] for a in stack.properties("AWS::CloudWatch::Alarm") if a["Namespace"] == NAMESPACE
    }
    watched |= set(re.findall(rf'"{NAMESPACE}","(\w+)"', dashboard(stack)))
    assert len(watched) > 8
    counted = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "ecs_gpu_recovery/lambdas").glob("*.py")
    )
    assert {name for name in watched if f'"{name}"' not in counted} == set()


def test_the_dashboard_spells_operations_as_dynamodb_does(stack: Made) -> None:
    """A dimension that does not exist is no error; its line just stays empty."""
    operations = set(re.findall(r'"Operation","(\w+)"', dashboard(stack)))
    assert operations == {"GetItem", "UpdateItem", "TransactWriteItems", "Query"}


def test_messages_go_to_the_topic_and_an_address_may_be_on_it(stack: Made, everything: Made) -> None:
    (topic,) = stack.properties("AWS::SNS::Topic")
    assert topic["TopicName"] == "gpu-training-notifications"
    assert topic["DisplayName"] == "GPU Training Job Notifications"
    assert stack.all("AWS::SNS::Subscription") == {}
    (subscription,) = everything.properties("AWS::SNS::Subscription")
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "ops@example.com")


def test_logs_are_kept_for_a_while_and_not_for_ever(stack: Made) -> None:
    groups = [one for name, one in stack.all("AWS::Logs::LogGroup").items() if "Timeline" not in name]
    assert {group["Properties"]["RetentionInDays"] for group in groups} == {90}
    assert {group["DeletionPolicy"] for group in groups} == {"Delete"}
    named = {f["LoggingConfig"]["LogGroup"]["Ref"] for f in stack.functions().values()}
    assert len(named) == 4


def test_the_health_check_runs_on_any_kind_of_instance_without_privilege(stack: Made) -> None:
    made = {d["Family"]: d for d in stack.properties("AWS::ECS::TaskDefinition")}
    assert set(made) == {"gpu-dcgm-health-check", "gpu-training"}
    for definition in made.values():
        assert definition["RequiresCompatibilities"] == ["EC2", "EXTERNAL"]
        assert definition["NetworkMode"] == "host"
        (container,) = definition["ContainerDefinitions"]
        assert container["ResourceRequirements"] == [{"Type": "GPU", "Value": "8"}]
        assert container["LogConfiguration"]["LogDriver"] == "awslogs"
        assert "Privileged" not in container
    (check,) = made["gpu-dcgm-health-check"]["ContainerDefinitions"]
    assert check["Command"] == ["gpu-health-task"]
    assert check["LinuxParameters"]["Devices"] == [
        {"HostPath": "/dev/kmsg", "ContainerPath": "/dev/kmsg", "Permissions": ["read"]}
    ]
    assert "TaskRoleArn" not in made["gpu-dcgm-health-check"]  # it asks the node, not AWS


def test_a_check_of_your_own_is_used_and_not_made(everything: Made) -> None:
    assert [d["Family"] for d in everything.properties("AWS::ECS::TaskDefinition")] == ["gpu-training"]
    assert everything.template["Outputs"]["HealthCheckTaskDefinition"]["Value"] == "my-check:1"


def test_a_deployment_leaves_the_revision_that_running_jobs_start_again_from(stack: Made) -> None:
    made = {d["Properties"]["Family"]: d for d in stack.all("AWS::ECS::TaskDefinition").values()}
    assert made["gpu-training"]["UpdateReplacePolicy"] == "Retain"
    assert made["gpu-training"]["DeletionPolicy"] == "Delete"  # it goes with the stack


def test_everything_carries_the_tags(stack: Made) -> None:
    for kind in ("AWS::DynamoDB::Table", "AWS::Lambda::Function", "AWS::SNS::Topic", "AWS::SQS::Queue"):
        for properties in stack.properties(kind):
            tags = {tag["Key"]: tag["Value"] for tag in properties["Tags"]}
            assert tags == {"Project": "ecs-gpu-recovery", "EcsCluster": "gpu-cluster"}


def test_the_template_names_no_partition_account_or_region(stack: Made) -> None:
    text = stack.path.read_text(encoding="utf-8")
    assert "arn:aws:" not in text
    assert not re.search(r"\b[0-9]{12}\b", text)
    assert not re.search(r"\b(us|eu|ap|cn)-[a-z]+-[0-9]\b", text)


def test_two_stacks_fit_into_one_account(stack: Made, everything: Made) -> None:
    def names(made: Made) -> set[str]:
        functions = {f["FunctionName"] for f in made.functions().values()}
        alarms = {a["AlarmName"] for a in made.properties("AWS::CloudWatch::Alarm")}
        return (
            functions | alarms | {d["DashboardName"] for d in made.properties("AWS::CloudWatch::Dashboard")}
        )

    assert names(stack).isdisjoint(names(everything))


def test_outputs_name_what_people_look_for(stack: Made) -> None:
    wanted = {f"{name}Function" for name in HANDLERS} | {
        "TaskTable",
        "JobTable",
        "NodeTable",
        "NotificationTopicArn",
        "DeadLetterQueueUrl",
        "EvidenceBucket",
        "HealthCheckTaskDefinition",
        "TrainingTaskDefinition",
        "ImageRepositoryUri",
        "TagEc2NodesCommand",
        "TagAnywhereNodesCommand",
    }
    assert set(stack.template["Outputs"]) == wanted

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.metrics import cloudwatch_agent as agent

#: What the agent's plugins can measure on Linux, as far as we ask for it.
KNOWN = {
    "cpu": {"usage_active", "usage_iowait", "usage_idle", "usage_system", "usage_user"},
    "mem": {"used_percent", "available", "available_percent", "used", "total"},
    "disk": {"used_percent", "free", "used", "total", "inodes_free"},
    "diskio": {"read_bytes", "write_bytes", "io_time", "reads", "writes", "read_time", "write_time"},
    "net": {"bytes_recv", "bytes_sent", "err_in", "err_out", "drop_in", "drop_out"},
    "nvidia_gpu": {
        "utilization_gpu",
        "utilization_memory",
        "memory_used",
        "memory_total",
        "memory_free",
        "temperature_gpu",
        "power_draw",
        "fan_speed",
        "pcie_link_gen_current",
        "pcie_link_width_current",
    },
}


def test_the_agent_is_asked_only_for_what_it_can_measure() -> None:
    collected = agent.configuration("gpus", "eu-west-1")["metrics"]["metrics_collected"]
    assert set(collected) == set(KNOWN)
    for plugin, part in collected.items():
        assert set(part["measurement"]) <= KNOWN[plugin]
        assert part["append_dimensions"] == {"Cluster": "gpus"}, (
            "or a search would find other clusters' nodes"
        )


#: Which keys a section of the agent's configuration may have, and of which type, as far as we use them.
SECTIONS: dict[str, dict[str, type]] = {
    "agent": {"metrics_collection_interval": int, "region": str, "omit_hostname": bool, "logfile": str},
    "metrics": {"namespace": str, "force_flush_interval": int, "metrics_collected": dict},
}
PLUGIN: dict[str, type] = {
    "measurement": list,
    "append_dimensions": dict,
    "resources": list,
    "drop_device": bool,
    "totalcpu": bool,
}


def test_the_configuration_has_the_shape_that_the_agent_reads() -> None:
    told = agent.configuration("gpus", "eu-west-1")
    assert json.loads(json.dumps(told)) == told
    assert set(told) == set(SECTIONS)
    for section, keys in SECTIONS.items():
        for key, value in told[section].items():
            assert type(value) is keys[key], f"{section}.{key}"
    assert told["agent"]["metrics_collection_interval"] > 0
    assert told["metrics"]["namespace"] == agent.NAMESPACE
    assert not agent.NAMESPACE.startswith("AWS/"), "that is AWS's own"
    for plugin, part in told["metrics"]["metrics_collected"].items():
        for key, value in part.items():
            assert type(value) is PLUGIN[key], f"{plugin}.{key}"
        assert part["measurement"]
        assert all(isinstance(name, str) for name in (*part["measurement"], *part.get("resources", [])))
        assert "resources" not in part or plugin in ("cpu", "disk", "diskio", "net"), "others have none"
        assert "drop_device" not in part or plugin == "disk"


def test_nodes_keep_their_names_on_ec2_and_elsewhere() -> None:
    told = agent.configuration("gpus", "eu-west-1")
    assert "append_dimensions" not in told["metrics"], "it would take the host's name away"
    assert told["agent"]["omit_hostname"] is False
    assert told["agent"]["region"] == "eu-west-1"


def test_the_configuration_fits_a_parameter() -> None:
    assert len(json.dumps(agent.configuration("c" * 255, "us-gov-west-1"), separators=(",", ":"))) <= 4096


def test_every_graph_searches_for_a_metric_that_the_agent_sends() -> None:
    sent = {metric for plugin in agent.PLUGINS.values() for metric in plugin.metrics}
    assert {graph.metric for graph in agent.GRAPHS} <= sent
    for plugin in agent.PLUGINS.values():
        assert {graph.metric for graph in agent.GRAPHS} & set(plugin.metrics), "every part has a graph"
    for graph in agent.GRAPHS:
        text = agent.search(graph, "gpus")
        assert re.fullmatch(r"SEARCH\('[^']+', '(Average|Maximum|Sum)', 60\)", text)
        assert len(text) <= 1024


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pinned = Path(__file__).resolve().parents[2] / "node_modules" / ".bin" / "node"
    if shutil.which("node") is None and not pinned.exists():
        pytest.skip("CDK needs Node.js: install it, or run npm ci")
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "1")
    if pinned.exists():
        os.environ.setdefault("JSII_NODE", str(pinned))
    import aws_cdk as cdk
    from cdk_nag import AwsSolutionsChecks

    from ecs_gpu_recovery.infra.metrics import NodeMetrics

    out = tmp_path_factory.mktemp("cdk")
    app = cdk.App(outdir=str(out))
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    stack = cdk.Stack(app, "Test", stack_name="Test")
    NodeMetrics(stack, "NodeMetrics", config=Config.from_env({}), agent_image="example.com/agent:1")
    app.synth()
    made: dict[str, Any] = json.loads((out / "Test.template.json").read_text())["Resources"]
    return made


def one(template: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [resource["Properties"] for resource in template.values() if resource["Type"] == kind]
    return dict(found)


def test_ec2_nodes_get_the_agent_from_a_daemon(template: dict[str, Any]) -> None:
    service = one(template, "AWS::ECS::Service")
    assert (service["SchedulingStrategy"], service["LaunchType"]) == ("DAEMON", "EC2")
    definition = one(template, "AWS::ECS::TaskDefinition")
    assert definition["RequiresCompatibilities"] == ["EC2", "EXTERNAL"]
    assert definition["NetworkMode"] == "host", "the one mode that external nodes share"
    (container,) = definition["ContainerDefinitions"]
    assert "ResourceRequirements" not in container, "a GPU that the agent holds is one the training lacks"
    mounted = {volume["Name"]: volume["Host"]["SourcePath"] for volume in definition["Volumes"]}
    seen = {mount["ContainerPath"]: mounted[mount["SourceVolume"]] for mount in container["MountPoints"]}
    assert seen == {"/host/root": "/var/lib/gpu-recovery/disk", "/host/fsx": "/fsx"}, (
        "no more than it measures"
    )
    assert all(mount["ReadOnly"] for mount in container["MountPoints"])
    assert [secret["Name"] for secret in container["Secrets"]] == ["CW_CONFIG_CONTENT"]
    assert not container.get("Privileged")


def test_the_parameter_holds_the_agents_configuration(template: dict[str, Any]) -> None:
    value = one(template, "AWS::SSM::Parameter")["Value"]
    parts = value["Fn::Join"][1]
    text = "".join(part if isinstance(part, str) else "eu-west-1" for part in parts)
    assert json.loads(text) == agent.configuration("gpu-cluster", "eu-west-1")


def test_the_agent_may_write_one_namespace_and_nothing_else(template: dict[str, Any]) -> None:
    roles = {name: r["Properties"] for name, r in template.items() if r["Type"] == "AWS::IAM::Role"}
    (task,) = [role for name, role in roles.items() if "TaskRole" in name]
    (policy,) = task["Policies"]
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "cloudwatch:PutMetricData"
    assert statement["Condition"] == {"StringEquals": {"cloudwatch:namespace": agent.NAMESPACE}}


def test_the_page_finds_nodes_by_searching(template: dict[str, Any]) -> None:
    body = one(template, "AWS::CloudWatch::Dashboard")["DashboardBody"]
    text = (
        body
        if isinstance(body, str)
        else "".join(p if isinstance(p, str) else "x" for p in body["Fn::Join"][1])
    )
    widgets = [w for w in json.loads(text)["widgets"] if w["type"] == "metric"]
    found = [w["properties"]["metrics"][0][0]["expression"] for w in widgets]
    assert found == [agent.search(graph, "gpu-cluster") for graph in agent.GRAPHS]

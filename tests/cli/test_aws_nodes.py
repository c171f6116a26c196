"""Nodes on AWS as a person sees them and looks after them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.aws_person import Person, a_person
from tests.stories.other_tool import NODES, OtherTool
from tests.stories.world import CLUSTER


def nodes(person: Person) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in person.done("nodes")["nodes"]}


def test_nodes_of_the_cluster_are_found_ec2_and_external_alike(person: Person) -> None:
    shown = nodes(person)
    assert set(shown) == {"n0", "n1"}
    assert shown["n0"]["host"].startswith("i-")
    assert shown["n1"]["host"].startswith("mi-")
    assert all((n["gpus"], n["status"], n["free"]) == (8, "AVAILABLE", True) for n in shown.values())
    assert "free" in person("nodes").out


def test_a_node_without_a_name_goes_by_its_host(person: Person) -> None:
    made = person.world.cloud.control.add_node(name="later", cluster=CLUSTER)
    assert made["host_id"] in nodes(person)


def test_an_empty_cluster_says_what_to_do() -> None:
    with a_person(nodes=0) as person:
        told = person("nodes")
        told.tells("no container instances")
        assert "gpu-recovery up" not in told.out


def test_who_may_only_look_sees_what_is_recorded(person: Person) -> None:
    nodes(person)
    person.world.cloud.control.add_node(name="new", cluster=CLUSTER, attributes={"node_name": "new"})
    for action in ("put_item", "transact_write_items", "update_item"):
        person.world.wire.fail_all["dynamodb", action] = "AccessDeniedException"
    told = person("nodes", "--json")
    assert told.code == 0, told
    assert {node["name"] for node in told.data["nodes"]} == {"n0", "n1"}
    assert "new nodes of the cluster are not shown: you are not allowed" in told.err


def test_a_node_that_registered_again_keeps_its_history_and_its_name(person: Person) -> None:
    """Its agent lost its memory: ECS gives it another container instance."""
    before = nodes(person)["n0"]
    ecs, control = person.world.cloud.client("ecs"), person.world.cloud.control
    assert person("node", "drain", "n0", "--why", "new disk").code == 0
    ecs.deregister_container_instance(
        cluster=CLUSTER, containerInstance=control.node("n0")["arn"], force=True
    )
    person.world.pass_time(5)
    control.add_node(name="n0b", cluster=CLUSTER, attributes={"node_name": "n0"})
    person.world.pass_time(65)
    after = nodes(person)["n0"]
    assert after["instance"] != before["instance"]
    assert after["status"] == "AVAILABLE"
    assert after["hold"]["why"] == "new disk"
    assert any("registered again as" in entry["why"] for entry in after["timeline"])
    assert person("node", "release", "n0", "--why", "done").code == 0
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    person.world.pass_time(2)
    assert len(person.world.tasks(live=True)) == 1


def test_of_two_registrations_of_one_host_the_connected_one_counts(person: Person) -> None:
    control = person.world.cloud.control
    control.add_node(name="twin", cluster=CLUSTER, attributes={"node_name": "n0"})
    control.disconnect("n0")
    person.world.pass_time(5)
    assert nodes(person)["n0"]["instance"] == control.node("twin")["arn"]


def test_a_node_that_a_job_holds_is_not_moved_under_it(person: Person) -> None:
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    control = person.world.cloud.control
    before = nodes(person)["n0"]["instance"]
    control.add_node(name="twin", cluster=CLUSTER, attributes={"node_name": "n0"})
    person.world.pass_time(65)
    assert nodes(person)["n0"]["instance"] == before


def test_infiniband_devices_that_the_agent_tells_are_kept_with_commas(person: Person) -> None:
    """ECS takes no comma in an attribute."""
    said = {"node_name": "ib", "ibdev": "mlx5_0 mlx5_1"}
    person.world.cloud.control.add_node(name="ib", cluster=CLUSTER, attributes=said)
    person.world.pass_time(65)
    assert nodes(person)["ib"]["ibdev"] == "mlx5_0,mlx5_1"


def test_nodes_of_another_tool_keep_their_names(person: Person) -> None:
    """Its rows are there already, without a record of ours."""
    OtherTool(person.world)
    shown = nodes(person)
    assert set(NODES) <= set(shown)
    assert len(shown) == 4, "no machine is there twice"
    assert shown["gpu-a"]["ip"].startswith("10.0.1.")
    assert shown["gpu-a"]["ibdev"] == "mlx5_0"
    assert person.submit("--nodes", "gpu-a", "--id", "j1", "--check", "none").code == 0


def test_a_node_that_another_tool_uses_is_left_to_it(person: Person) -> None:
    other = OtherTool(person.world)
    other.write_node("gpu-a", "IN_PROGRESS")
    assert "gpu-a" not in nodes(person)
    person.submit("--nodes", "gpu-a").refused("gpu-a: another tool has recorded it as IN_PROGRESS")


# -- looking after one ---------------------------------------------------------------------------------------


def test_a_drained_node_gets_no_job_until_it_is_released(person: Person) -> None:
    nodes(person)
    told = person("node", "drain", "n0", "--why", "fan")
    assert told.out == "n0: drained, no new job gets it (back with: gpu-recovery node release n0 --why WHY)\n"
    person("node", "show", "n0").tells("drained by", "fan")
    assert person.submit("--nodes", "n0").code == 4
    assert person.done("node", "release", "n0", "--why", "mended")["hold"] is None
    assert person.submit("--nodes", "n0", "--check", "none").code == 0


def test_a_node_is_examined_and_the_exit_code_tells(person: Person) -> None:
    nodes(person)
    assert person("node", "check", "n0", "--wait").code == 0
    person.world.cloud.control.health("n1", 2)
    told = person("node", "check", "n1", "--wait", "--json")
    assert told.code == 1, told
    assert (told.data["status"], told.data["verdict"]) == ("FAILED", "replace")


def test_all_idle_nodes_are_examined_at_once(person: Person) -> None:
    person.world.cloud.control.health("n1", 1)
    person("nodes", "check", "--all-idle", "--wait").tells("n0: healthy", "n1: healthy")  # after its gate
    assert person.world.node_statuses() == dict.fromkeys(("n0", "n1"), "AVAILABLE")
    assert person.world.sent("SendCommand") == 1, "a reboot may cure it: it was waited for"
    person.world.cloud.control.health("n1", 2)
    told = person("nodes", "check", "--all-idle", "--wait", "--json")
    assert told.code == 1, told
    assert {node["name"]: (node["status"], node["verdict"]) for node in told.data["nodes"]} == {
        "n0": ("AVAILABLE", "healthy"),
        "n1": ("FAILED", "replace"),
    }


@pytest.mark.parametrize("name", ["n0", "n1"])
def test_a_node_is_rebooted_through_ssm_and_comes_back(person: Person, name: str) -> None:
    nodes(person)
    boots = person.world.cloud.control.node(name)["boots"]
    told = person("node", "reboot", name, "--why", "driver", "--wait")
    assert told.code == 0, told
    assert person.world.cloud.control.node(name)["boots"] == boots + 1
    assert nodes(person)[name]["status"] == "AVAILABLE"


def test_a_node_in_use_is_neither_examined_nor_rebooted(person: Person) -> None:
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    for ask in ("check", "reboot"):
        person("node", ask, "n0", "--why", "x").refused("in use by job j1")
    assert person.world.sent("SendCommand") == 0


def test_a_node_that_is_not_there_is_code_3(person: Person) -> None:
    for args in (("show", "x"), ("drain", "x", "--why", "y"), ("check", "x")):
        person("node", *args).refused("gpu-recovery nodes --backend aws", code=3)


def test_what_a_person_may_not_reboot_the_functions_reboot(person: Person) -> None:
    nodes(person)
    person.world.wire.fail_all[("ssm", "send_command")] = "AccessDeniedException"
    told = person("node", "reboot", "n0", "--why", "driver")
    assert told.code == 0, told
    assert "the deployed functions carry it out" in told.err
    person.world.wire.fail_all.clear()
    person.world.until(lambda: person.world.cloud.control.node("n0")["boots"] == 2, minutes=20)

"""What the template says of nodes that the stack makes, and of the storage that they share."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.infra.stacks import Made


def test_a_node_closes_the_instance_metadata_to_tasks_before_it_joins(everything: Made) -> None:
    """Host networking reaches it whatever the hop limit says. Without the rule the agent does not start."""
    script = _user_data(everything)
    rule = "iptables -w -I OUTPUT -d 169.254.169.254 -m cgroup --path ecstasks.slice -j REJECT"
    assert f"ExecStart={rule}\n[Install]\nRequiredBy=ecs.service\n" in script
    assert "Before=ecs.service" in script
    assert script.rstrip().endswith("systemctl enable --now no-metadata.service")
    (template,) = everything.properties("AWS::EC2::LaunchTemplate")
    assert template["LaunchTemplateData"]["MetadataOptions"] == {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
    }


def test_a_node_may_act_for_its_own_cluster_and_read_no_parameter(everything: Made) -> None:
    roles = [
        r for r in everything.properties("AWS::IAM::Role") if "What a node of" in str(r.get("Description"))
    ]
    assert len(roles) == 2
    for role in roles:
        assert "ManagedPolicyArns" not in role
        (policy,) = role["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]:
            actions, places = (
                [value] if isinstance(value, str | dict) else value
                for value in (statement["Action"], statement["Resource"])
            )
            assert not [action for action in actions if action.startswith("ssm:Get")]
            if actions[0].startswith("ecs:") and places != ["*"]:
                assert all("/gpu-cluster" in str(place) for place in places)


def test_optional_parts_are_off_unless_asked_for(stack: Made, everything: Made) -> None:
    optional = {"AWS::ECS::Cluster", "AWS::EC2::Instance", "AWS::FSx::FileSystem"}
    assert optional.isdisjoint(r["Type"] for r in stack.template["Resources"].values())
    counted = Counter(r["Type"] for r in everything.template["Resources"].values())
    assert {kind: counted[kind] for kind in optional} == dict.fromkeys(optional, 1)
    outputs = {"GpuNodeInstanceId", "SharedStorageFstab", "AnywhereActivationCommand"}
    assert outputs <= set(everything.template["Outputs"])


def test_a_node_finds_its_storage_again_after_a_reboot(everything: Made) -> None:
    script = _user_data(everything)
    assert ">> /etc/fstab" in script
    assert "ECS_CLUSTER=gpu-cluster" in script


def _user_data(made: Made) -> str:
    (node,) = made.properties("AWS::EC2::Instance")
    return "".join(part for part in node["UserData"]["Fn::Base64"]["Fn::Join"][1] if isinstance(part, str))


def test_machines_of_your_own_may_mount_the_storage_and_nothing_else(everything: Made) -> None:
    rules = everything.properties("AWS::EC2::SecurityGroupIngress")
    outside = sorted((r["CidrIp"], r["FromPort"], r["ToPort"]) for r in rules if "CidrIp" in r)
    assert outside == [
        ("10.20.0.0/16", 988, 988),
        ("10.20.0.0/16", 1018, 1023),
        ("192.168.7.0/24", 988, 988),
        ("192.168.7.0/24", 1018, 1023),
    ]


def test_a_node_tells_its_infiniband_devices_before_its_agent_starts(everything: Made) -> None:
    script = _user_data(everything)
    assert '{\\"ibdev\\":\\"$ibdev\\"}" >> /etc/ecs/ecs.config' in script


def test_a_node_without_its_storage_does_not_join_the_cluster(everything: Made) -> None:
    """Its ranks would find an empty folder instead of their checkpoint, and begin from nothing."""
    script = _user_data(everything)
    assert "RequiresMountsFor=/fsx" in script
    assert "> /etc/systemd/system/ecs.service.d/storage.conf" in script
    assert script.index("storage.conf") < script.index("systemctl daemon-reload") < script.index("mount -a")


def test_a_node_on_which_nothing_could_start_is_warned_of(stack: Made, everything: Made) -> None:
    """The type that is offered for a first try has one GPU, and checks reserve eight unless told otherwise."""
    said = [
        made.path.with_name("EcsGpuRecoveryStack.metadata.json").read_text() for made in (stack, everything)
    ]
    assert ["Set GPUS_PER_NODE=1." in text for text in said] == [False, True]


def test_storage_is_made_when_lustre_may_pass_both_ways(everything: Made) -> None:
    """FSx refuses a group that does not let Lustre through at that moment, and its servers call their clients."""
    (storage,) = everything.all("AWS::FSx::FileSystem").values()
    (node,) = everything.properties("AWS::EC2::Instance")
    servers = everything.name(storage["Properties"]["SecurityGroupIds"][0])
    clients = everything.name(node["SecurityGroupIds"][0])
    rules = {
        name: (
            everything.name(rule["Properties"]["SourceSecurityGroupId"]),
            everything.name(rule["Properties"]["GroupId"]),
            rule["Properties"]["FromPort"],
        )
        for name, rule in everything.all("AWS::EC2::SecurityGroupIngress").items()
        if rule["Properties"].get("Description") == "Lustre"
    }
    ways = ((clients, servers), (servers, servers), (servers, clients))
    assert set(rules.values()) == {(*way, port) for way in ways for port in (988, 1018)}
    assert set(rules) <= set(storage["DependsOn"])


def test_protected_storage_stays_with_the_groups_that_it_stands_on(everything: Made) -> None:
    """A group that something still uses cannot be deleted, and the removal of the stack would fail."""
    (storage,) = everything.all("AWS::FSx::FileSystem").values()
    (node,) = everything.properties("AWS::EC2::Instance")
    groups = [*storage["Properties"]["SecurityGroupIds"], *node["SecurityGroupIds"]]
    resources = everything.template["Resources"]
    kept = [storage, *(resources[everything.name(group)] for group in groups)]
    kept += [resources[name] for name in storage["DependsOn"]]
    assert {(one["DeletionPolicy"], one["UpdateReplacePolicy"]) for one in kept} == {("Retain", "Retain")}

"""What a deployment may ask for: shared storage, one EC2 GPU node, the role of ECS Anywhere nodes."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import Annotations, Aws, CfnOutput, Fn, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from constructs import Construct

from ..config import Config
from .naming import Name, accept
from .node_role import node_role
from .task_definitions import SHARED

#: AWS's own image for GPU container instances, the newest at the time of the deployment.
GPU_IMAGE = "/aws/service/ecs/optimized-ami/amazon-linux-2023/gpu/recommended/image_id"
#: Keeps tasks from the instance's role. With the host's network a hop limit does not: the agent puts every task below
#: one control group, and what is below it does not reach the metadata. Without this the node must stay away.
_NO_METADATA = Path(__file__).with_name("no-metadata.service").read_text(encoding="utf-8")
#: Lustre's own ports.
_LUSTRE = ((988, 988), (1018, 1023))


class NodeNetwork(Construct):
    """A place in a network of yours, with a group whose members may talk to each other only."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        self.subnet_id = config.SUBNET_ID
        self.group = ec2.CfnSecurityGroup(
            self,
            "Group",
            vpc_id=config.VPC_ID,
            group_description=f"GPU nodes of {config.ECS_CLUSTER_NAME} and their storage",
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="-1", cidr_ip="0.0.0.0/0", description="images, AWS, other nodes"
                )
            ],
        )
        ec2.CfnSecurityGroupIngress(
            self,
            "Members",
            group_id=self.group.attr_group_id,
            source_security_group_id=self.group.attr_group_id,
            ip_protocol="-1",
            description="collectives between nodes, and storage",
        )


class SharedStorage(Construct):
    """FSx for Lustre, for checkpoints and data that every node must see."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config, network: NodeNetwork) -> None:
        super().__init__(scope, construct_id)
        group = ec2.CfnSecurityGroup(
            self,
            "Group",
            vpc_id=config.VPC_ID,
            group_description="Lustre, for the GPU nodes and between its own servers",
        )
        ways = (
            ("Nodes", network.group, group),
            ("Servers", group, group),
            ("Back", group, network.group),  # servers call their clients too
        )
        rules = [
            ec2.CfnSecurityGroupIngress(
                self,
                f"{name}{low}",
                group_id=target.attr_group_id,
                source_security_group_id=source.attr_group_id,
                ip_protocol="tcp",
                from_port=low,
                to_port=high,
                description="Lustre",
            )
            for low, high in _LUSTRE
            for name, source, target in ways
        ]
        rules += [
            ec2.CfnSecurityGroupIngress(
                self,
                f"Own{number}From{low}",
                group_id=group.attr_group_id,
                cidr_ip=network_of_yours,
                ip_protocol="tcp",
                from_port=low,
                to_port=high,
                description="Lustre, from machines of your own",
            )
            for low, high in _LUSTRE
            for number, network_of_yours in enumerate(filter(None, config.FSX_CLIENT_CIDRS.split(",")))
        ]
        self.file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version="2.15",
            storage_capacity=config.FSX_STORAGE_GIB,
            subnet_ids=[config.SUBNET_ID],
            security_group_ids=[group.attr_group_id],
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2", per_unit_storage_throughput=125, data_compression_type="LZ4"
            ),
        )
        for rule in rules:  # FSx makes no file system whose group does not let Lustre through yet
            self.file_system.add_dependency(rule)
        # Checkpoints are worth as much as records. Groups stay with what uses them: they could not be deleted.
        for kept in (self.file_system, group, network.group, *rules) if config.DELETION_PROTECTION else ():
            kept.apply_removal_policy(RemovalPolicy.RETAIN)
        where = f"{self.file_system.attr_dns_name}@tcp:/{self.file_system.attr_lustre_mount_name}"
        # In fstab, because a node must find its storage again after every reboot.
        self.fstab = f"{where} {SHARED} lustre relatime,flock,_netdev 0 0"
        _output(
            self, "SharedStorageFstab", self.fstab, "The line of /etc/fstab that mounts the shared storage"
        )


class GpuNode(Construct):
    """One EC2 container instance with GPUs, for a first try. A fleet belongs in an Auto Scaling group."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        network: NodeNetwork,
        storage: SharedStorage | None,
    ) -> None:
        super().__init__(scope, construct_id)
        if too_small := _too_small(config):
            Annotations.of(self).add_warning_v2("ecs-gpu-recovery:gpus", too_small)
        machines = Name("ec2", "instance/*", why="A node does not know its own id when its role is made.")
        ec2_service = iam.ServicePrincipal("ec2.amazonaws.com")
        role = node_role(self, config=config, principal=ec2_service, machines=machines)
        profile = iam.CfnInstanceProfile(self, "Profile", roles=[role.role_name])
        key, value = config.node_tag
        image = ec2.MachineImage.from_ssm_parameter(GPU_IMAGE).get_image(self)
        template = ec2.CfnLaunchTemplate(
            self,
            "Template",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                metadata_options=ec2.CfnLaunchTemplate.MetadataOptionsProperty(
                    http_tokens="required", http_put_response_hop_limit=1
                )
            ),
        )
        node = ec2.CfnInstance(
            self,
            "Instance",
            image_id=image.image_id,
            instance_type=config.EC2_INSTANCE_TYPE,
            subnet_id=network.subnet_id,
            security_group_ids=[network.group.attr_group_id],
            iam_instance_profile=profile.ref,
            user_data=_user_data(config, storage),
            monitoring=True,
            launch_template=ec2.CfnInstance.LaunchTemplateSpecificationProperty(
                launch_template_id=template.ref, version=template.attr_latest_version_number
            ),
            block_device_mappings=[
                ec2.CfnInstance.BlockDeviceMappingProperty(
                    device_name="/dev/xvda",
                    ebs=ec2.CfnInstance.EbsProperty(volume_size=200, volume_type="gp3", encrypted=True),
                )
            ],
            tags=[
                {"key": "Name", "value": f"{Stack.of(self).stack_name}-gpu-node"},
                {"key": key, "value": value},
            ],
        )
        accept(
            node, "EC29", "The node holds no state of its own; it must be replaceable without a second step."
        )
        _output(self, "GpuNodeInstanceId", node.ref, "The GPU node")


class AnywhereRole(Construct):
    """The role that external nodes take. Activations are secrets with an end, so a person makes them."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        managed = Name("ssm", "*").arn
        principal = iam.ServicePrincipal(
            "ssm.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID},
                "ArnLike": {"aws:SourceArn": managed},
            },
        )
        machines = Name(
            "ssm", "managed-instance/*", why="A node gets its id when it is activated with this role."
        )
        role = node_role(self, config=config, principal=principal, machines=machines)
        key, value = config.node_tag
        command = f"aws ssm create-activation --iam-role {role.role_name} --registration-limit 10"
        command += f" --tags Key={key},Value={value}"
        _output(self, "AnywhereActivationCommand", command, "Makes an activation for external nodes")


def _too_small(config: Config) -> str:
    """What to say of a type on which no check could start, if it is one of those for a first try."""
    family, _, size = config.EC2_INSTANCE_TYPE.partition(".")
    many = {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "metal": 8}
    gpus = many.get(size, 1) if family in ("g4dn", "g5", "g6", "g6e") else config.GPUS_PER_NODE
    if gpus >= config.GPUS_PER_NODE:
        return ""
    reserved = f"each check and training task reserves GPUS_PER_NODE={config.GPUS_PER_NODE}"
    return (
        f"{config.EC2_INSTANCE_TYPE} has {gpus}, and {reserved}: none could start. Set GPUS_PER_NODE={gpus}."
    )


def _output(scope: Construct, name: str, value: str, description: str) -> None:
    CfnOutput(scope, name, value=value, description=description).override_logical_id(name)


def _user_data(config: Config, storage: SharedStorage | None) -> str:
    made = ec2.UserData.for_linux()
    made.add_commands(
        f"echo ECS_CLUSTER={config.ECS_CLUSTER_NAME} >> /etc/ecs/ecs.config",
        "echo ECS_ENABLE_GPU_SUPPORT=true >> /etc/ecs/ecs.config",
        "echo ECS_AWSVPC_BLOCK_IMDS=true >> /etc/ecs/ecs.config",
        # The agent tells ECS, and ECS tells us. Its attributes know no comma.
        "ibdev=$(ls /sys/class/infiniband 2>/dev/null | grep ^mlx | paste -sd ' ')",
        'if [ -n "$ibdev" ]; then'
        """ echo "ECS_INSTANCE_ATTRIBUTES={\\"ibdev\\":\\"$ibdev\\"}" >> /etc/ecs/ecs.config; fi""",
        f"mkdir -p {SHARED}",
    )
    if storage is not None:
        made.add_commands(
            "dnf install -y lustre-client",
            f"echo '{storage.fstab}' >> /etc/fstab",
            # Without its storage a node must stay away: a rank that finds an empty folder begins from nothing.
            "mkdir -p /etc/systemd/system/ecs.service.d",
            f"printf '[Unit]\\nRequiresMountsFor={SHARED}\\n' > /etc/systemd/system/ecs.service.d/storage.conf",
            "systemctl daemon-reload",
            "mount -a",
        )
    made.add_commands(
        f"cat > /etc/systemd/system/no-metadata.service <<'END'\n{_NO_METADATA}END",
        "systemctl daemon-reload",
        "systemctl enable --now no-metadata.service",
    )
    return str(Fn.base64(made.render()))

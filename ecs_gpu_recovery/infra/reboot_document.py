"""The stack's own document for reboots: what it holds is in `aws.reboot_document`."""

from __future__ import annotations

from aws_cdk import CfnOutput
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from ..aws import reboot_document
from ..config import Config


class RebootDocument(Construct):
    """A change of the script is a new version of the same document: no role needs a right to another one."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config, bucket: str = "") -> None:
        super().__init__(scope, construct_id)
        ssm.CfnDocument(
            self,
            "Document",
            name=reboot_document.name(config.STACK_NAME),
            document_type="Command",
            document_format="JSON",
            content=reboot_document.content(bucket),
            update_method="NewVersion",
        )
        key, value = config.node_tag
        tags = f"--tags Key={key},Value={value}"
        commands = {
            "TagEc2NodesCommand": f"aws ec2 create-tags {tags} --resources i-...",
            "TagAnywhereNodesCommand": f"aws ssm add-tags-to-resource {tags} --resource-type ManagedInstance"
            " --resource-id mi-...",
        }
        for name, command in commands.items():
            told = "Nodes without this tag are never rebooted"
            CfnOutput(self, name, value=command, description=told).override_logical_id(name)

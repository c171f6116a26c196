"""The stack's own documents, for reboots, for looks at hangs and for last looks at machines that are replaced.

See `aws.reboot_document`, `aws.hang_document` and `aws.last_look`.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from ..aws import hang_document, last_look, reboot_document
from ..config import Config
from .daemons import watch_family


class RebootDocument(Construct):
    """A change of the script is a new version of the same document: no role needs a right to another one."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config, bucket: str = "") -> None:
        super().__init__(scope, construct_id)
        stack = config.STACK_NAME
        self._make("Document", reboot_document.name(stack), reboot_document.content(bucket))
        if bucket:
            self._make("Look", hang_document.name(stack), hang_document.content(bucket, watch_family(stack)))
        if bucket and config.policy.may_replace:
            self._make("LastLook", last_look.name(stack), last_look.content(bucket))
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

    def _make(self, construct_id: str, name: str, content: dict[str, Any]) -> None:
        ssm.CfnDocument(
            self,
            construct_id,
            name=name,
            document_type="Command",
            document_format="JSON",
            content=content,
            update_method="NewVersion",
        )

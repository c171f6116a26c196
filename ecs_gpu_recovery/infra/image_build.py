"""The image of the health check, built inside the account: nobody who deploys needs Docker."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import Aws, CfnOutput, Duration, IgnoreMode
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from ..aws.definitions import build_project, start_command
from ..config import Config
from .logs import log_group
from .naming import accept, accept_wildcard

ROOT = Path(__file__).resolve().parents[2]
#: What docker/Dockerfile copies.
PARTS = ("docker", "ecs_gpu_recovery", "requirements", "pyproject.toml", "README.md", "LICENSE")


class ImageBuild(Construct):
    """A project that a person starts. It takes this checkout as it was when the stack was deployed."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, repository: ecr.Repository
    ) -> None:
        super().__init__(scope, construct_id)
        kept = [f"!{part}" for part in PARTS]
        source = assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            exclude=["/*", *kept, "__pycache__"],
            ignore_mode=IgnoreMode.GIT,
        )
        name = build_project(config.STACK_NAME)
        kept_lines = log_group(self, "Logs", f"/aws/codebuild/{name}", config)
        role = self._role(source, repository, kept_lines)
        project = codebuild.Project(
            self,
            "Project",
            project_name=name,
            description=f"Builds {config.REPOSITORY_NAME}:{config.IMAGE_TAG}, which the health check runs",
            role=role.without_policy_updates(),
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0, privileged=True
            ),
            build_spec=_steps(repository.repository_uri_for_tag(config.IMAGE_TAG)),
            logging=codebuild.LoggingOptions(
                cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=kept_lines)
            ),
            grant_report_group_permissions=False,
            timeout=Duration.minutes(30),
        )
        accept(
            project,
            "CB3",
            "Docker needs it to build an image. The project runs this checkout and nothing else.",
        )
        accept(project, "CB4", "It keeps no artifact: the image goes to the repository, which is encrypted.")
        CfnOutput(self, "BuildImageCommand", value=start_command(config.STACK_NAME)).override_logical_id(
            "BuildImageCommand"
        )

    def _role(self, source: assets.Asset, repository: ecr.Repository, kept_lines: logs.LogGroup) -> iam.Role:
        """It may read one archive, push to one repository and write one log. CDK would give it more."""
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"))
        archive = source.bucket.arn_for_objects(source.s3_object_key)
        reads = ["s3:GetObject", "s3:GetObjectVersion"]
        role.add_to_policy(iam.PolicyStatement(actions=reads, resources=[archive]))
        repository.grant_pull_push(role)
        kept_lines.grant_write(role)
        accept_wildcard(role, "*", "ecr:GetAuthorizationToken takes no narrower resource.")
        return role


def _steps(image: str) -> codebuild.BuildSpec:
    registry = f"{Aws.ACCOUNT_ID}.dkr.ecr.{Aws.REGION}.{Aws.URL_SUFFIX}"
    commands = [
        f"aws ecr get-login-password | docker login --username AWS --password-stdin {registry}",
        f"docker build -f docker/Dockerfile -t {image} .",
        f"docker push {image}",
    ]
    return codebuild.BuildSpec.from_object({"version": "0.2", "phases": {"build": {"commands": commands}}})

"""The image that the health check and the example of a training task run, and where it is kept."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ecr as ecr
from constructs import Construct

from ..config import Config
from .naming import Name


class Image(Construct):
    """A repository for the image built from docker/Dockerfile, unless another image was named."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        self.repository: ecr.Repository | None = None
        self.uri = config.IMAGE
        self.pulled_from = Name(
            "ecr", "repository/*", why="IMAGE names an image; its repository may be any of the account's."
        )
        if not config.IMAGE:
            self.repository = ecr.Repository(
                self,
                "Repository",
                repository_name=config.REPOSITORY_NAME,
                image_scan_on_push=True,
                empty_on_delete=True,
                removal_policy=RemovalPolicy.DESTROY,
                lifecycle_rules=[ecr.LifecycleRule(max_image_count=10)],
            )
            self.uri = self.repository.repository_uri_for_tag(config.IMAGE_TAG)
            self.pulled_from = Name("ecr", f"repository/{config.REPOSITORY_NAME}")

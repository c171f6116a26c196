"""Before a node is rebooted it sends away what the reboot would wipe: to an address that is good for that alone."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

from botocore.exceptions import UnknownServiceError

from ecs_gpu_recovery.aws import reboot_document
from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.world import DOCUMENT, World

BUCKET = "stack-evidence-1"


def keeping(world: World) -> None:
    """A deployment with a bucket."""
    world.settings = replace(world.settings, EVIDENCE_BUCKET=BUCKET)
    world.cloud.documents.put(DOCUMENT, reboot_document.content(BUCKET))
    world.new_process()


def test_a_node_is_told_where_to_put_its_evidence_and_does_so_once(world: World) -> None:
    keeping(world)
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)
    world.run()
    (address,) = world.cloud.cluster.kept
    place = urlsplit(address)
    assert place.hostname == f"{BUCKET}.s3.us-east-1.amazonaws.com"
    assert place.path == f"/evidence/n1/{keys.evidence('j1/1/1/reboot')}"
    signed = parse_qs(place.query)
    assert signed["X-Amz-Expires"] == ["3600"]
    assert signed["X-Amz-SignedHeaders"] == ["host"]


def test_a_deployment_without_a_bucket_keeps_nothing(world: World) -> None:
    world.begin(2)
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)
    world.until(lambda: world.job().attempt == 1)
    assert world.cloud.cluster.kept == []


def test_a_function_that_cannot_sign_reboots_all_the_same(world: World) -> None:
    keeping(world)

    class NoSuchService:
        def generate_presigned_url(self, *_: object, **__: object) -> str:
            raise UnknownServiceError(service_name="s3", known_service_names="ecs")

    world.side.fleet._reboots._evidence._s3 = NoSuchService()
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)
    assert world.run().status is JobStatus.COMPLETE
    assert world.cloud.cluster.kept == []

"""A node's status shows on its container instance, for whoever looks there. It is a hint, and holds up nothing."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.ends import check_end
from tests.stories.plots import gpu_fault
from tests.stories.world import CLUSTER, World, a_world


def fill(world: World, name: str) -> None:
    """Somebody else uses all the attributes that ECS allows on this instance."""
    shown = world.cloud.control.node(name)
    for number in range(10 - len([a for a in shown["shown"]["attributes"] if "." not in a["name"]])):
        row = {"name": f"theirs-{number}", "value": "x", "targetId": shown["arn"]}
        world.cloud.client("ecs").put_attributes(cluster=CLUSTER, attributes=[row])


@pytest.mark.parametrize("full", [["n0"], ["n1"], ["n0", "n1"]], ids=str)
def test_a_node_that_has_no_room_for_a_label_is_healed_without_one(full: list[str]) -> None:
    with a_world() as world:
        names = world.add_nodes(2)
        for name in full:
            fill(world, name)
        world.submit(names)
        gpu_fault(world)
        world.run()
        check_end(world, JobStatus.COMPLETE, attempt=1, unreachable=tuple(full))
        assert world.labels() == {name: "" if name in full else "AVAILABLE" for name in names}

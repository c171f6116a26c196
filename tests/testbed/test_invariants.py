"""Whatever is done to it, in whatever order, the simulated world stays possible."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.aws.cloud import Cloud
from testbed.aws.model import Knobs
from tests.testbed.helpers import CLUSTER, TRAIN, make_document, order_reboot, resource, try_start

NODES = ("n0", "n1", "n2")
nodes = st.sampled_from(NODES)
steps = st.one_of(
    st.tuples(
        st.sampled_from(["start", "stop", "exit", "disconnect", "connect", "power_off", "power_on"]), nodes
    ),
    st.tuples(st.sampled_from(["reboot", "fast", "lossy", "order", "drain", "undrain", "terminate"]), nodes),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.06, 0.3, 2.0])),
)


class Driver:
    """Carries out one step after the other, whatever the world says to it."""

    def __init__(self, seed: int, all_states: bool) -> None:
        self.cloud = Cloud(seed=seed, knobs=Knobs(all_states=all_states))
        for name in NODES:
            self.cloud.control.add_node(name=name, cluster=CLUSTER, external=name == "n2", gpus=16)
        self.cloud.client("ecs").register_task_definition(**TRAIN)
        make_document(self.cloud)

    def do(self, what: str, with_what: str | float) -> None:
        cloud = self.cloud
        if isinstance(with_what, float):
            cloud.advance(with_what)
        elif what == "start":
            try_start(cloud, with_what)
        elif what in ("stop", "exit"):
            for task in [t for t in cloud.control.tasks() if t["node"] == with_what][:1]:
                if what == "stop":
                    cloud.client("ecs").stop_task(cluster=CLUSTER, task=task["taskArn"])
                else:
                    cloud.control.exit_task(task["taskArn"], 1)
        elif what in ("fast", "lossy"):
            cloud.control.next_reboot(with_what, fast=what == "fast", lose_gpus=int(what == "lossy"))
            cloud.control.reboot(with_what)
        elif what in ("drain", "undrain"):
            arn, status = cloud.control.node(with_what)["arn"], "DRAINING" if what == "drain" else "ACTIVE"
            cloud.client("ecs").update_container_instances_state(
                cluster=CLUSTER, containerInstances=[arn], status=status
            )
        elif what == "order" and self.alive(with_what):
            order_reboot(cloud, with_what)
        elif what != "order" and (what != "terminate" or with_what == "n1"):
            cloud.control.do(what, {"node": with_what})

    def alive(self, node: str) -> bool:
        found = self.cloud.cluster.node(node)
        return found is not None and not found.terminated

    def check(self) -> None:
        """No GPU has two owners, and nothing is used that is not there."""
        for node in self.cloud.cluster.nodes.values():
            live = self.cloud.cluster.live_on(node)
            held = Counter(gpu for task in live for gpu in task.holds.gpus)
            assert all(count == 1 for count in held.values())
            assert sum(task.holds.cpu for task in live) <= node.cpu
            assert not any(task.over for task in live)

    def calm_down(self) -> None:
        """All is switched on and stopped, and time passes."""
        cloud = self.cloud
        for name in NODES:
            cloud.control.power_on(name)
            cloud.control.connect(name)
        for task in cloud.control.tasks():
            cloud.client("ecs").stop_task(cluster=CLUSTER, task=task["taskArn"])
        cloud.advance(10)


@settings(max_examples=60)
@given(seed=st.integers(0, 1000), all_states=st.booleans(), plan=st.lists(steps, max_size=30))
def test_no_order_of_events_breaks_the_world(
    seed: int, all_states: bool, plan: list[tuple[str, str | float]]
) -> None:
    driver = Driver(seed, all_states)
    for what, with_what in plan:
        driver.do(what, with_what)
        driver.check()
    driver.calm_down()
    for task in driver.cloud.control.tasks():
        assert task["lastStatus"] == "STOPPED"
        assert task["stopCode"]
        assert task["stoppedAt"] >= task["createdAt"]
    for node in driver.cloud.control.nodes():
        free, whole = (
            resource(node["shown"], which, "GPU") for which in ("remainingResources", "registeredResources")
        )
        assert free == whole
        assert node["connected"] == driver.alive(node["name"])
    numbers: dict[str, list[int]] = {}
    for event in driver.cloud.control.events():
        if "version" in event["detail"]:
            numbers.setdefault(event["resources"][0], []).append(event["detail"]["version"])
    assert all(seen == list(range(seen[0], seen[0] + len(seen))) for seen in numbers.values())

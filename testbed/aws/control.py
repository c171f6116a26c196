"""What a test does to the world, in words that also travel as JSON.

Every order is a method; `do` takes its name and arguments. A node is named by the name that the test gave it,
by its host id or by its ARN; a task by its id or ARN.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from .faults import Weather
from .model import OUT_OF_MEMORY, Knobs, Node, Reboot, Task
from .requests import ApiError
from .scripts import OUTCOME_WORDS, Rule, outcome_from
from .shapes import node_shape, task_shape

if TYPE_CHECKING:
    from .cloud import Cloud


class ControlRefused(Exception):
    """The order makes no sense here; the text says why."""


class Control:
    """The hand on the world. All orders take effect at once."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud, self._world, self._hosts = cloud, cloud.cluster, cloud.hosts

    def do(self, order: str, arguments: dict[str, Any]) -> Any:
        """An order by name. Raises `ControlRefused` for one that is unknown or wrongly put."""
        method = None if order.startswith("_") or order == "do" else getattr(type(self), order, None)
        if method is None:
            raise ControlRefused(f"there is no order {order!r}")
        try:
            inspect.signature(method).bind(self, **arguments)
        except TypeError as exc:
            raise ControlRefused(f"{order}: {exc}") from exc
        try:
            return method(self, **arguments)
        except (TypeError, ValueError) as exc:
            raise ControlRefused(f"{order}: {exc}") from exc

    # -- nodes ---------------------------------------------------------------------------------------------

    def add_node(
        self,
        name: str = "",
        cluster: str = "default",
        external: bool = False,
        gpus: int = 8,
        host_id: str = "",
        attributes: dict[str, str] | None = None,
        cpu: int = 196_608,
        memory: int = 2_000_000,
    ) -> dict[str, Any]:
        """A node registers. The answer has its `arn` and `host_id`."""
        with self._cloud.lock:
            node = self._world.add_node(
                name=name,
                cluster=cluster,
                external=external,
                gpus=gpus,
                host_id=host_id,
                attributes=attributes,
                cpu=cpu,
                memory=memory,
            )
            return self.node(node.arn)

    def tag_host(self, node: str, tags: dict[str, str]) -> None:
        """The machine under a node has these tags, in EC2 or in SSM."""
        self._node(node).host_tags = dict(tags)

    def put_in_group(self, node: str, group: str) -> None:
        """The machine is one of an Auto Scaling group, which starts another if it is terminated there."""
        self._node(node).group = group

    def node(self, node: str) -> dict[str, Any]:
        """How a node really is, beside how ECS shows it under `shown`."""
        with self._cloud.lock:
            found = self._node(node)
            names = (
                "name",
                "cluster",
                "arn",
                "host_id",
                "up",
                "connected",
                "boot_id",
                "boots",
                "health",
                "status",
            )
            real: dict[str, Any] = {name: getattr(found, name) for name in names}
            shown = node_shape(found, self._world.live_on(found), self._world.place)
            return real | {
                "gpus": list(found.gpus),
                "reboot_keys": sorted(found.reboot_keys.values()),
                "shown": shown,
            }

    def nodes(self) -> list[dict[str, Any]]:
        with self._cloud.lock:
            return [self.node(arn) for arn in self._world.nodes]

    def health(self, node: str, verdict: int) -> None:
        """What a health check finds: 0 healthy, 1 a reboot may cure it, 2 replace, 3 could not be tested."""
        self._node(node).health = verdict

    def verdicts(self, node: str, codes: list[int]) -> None:
        """What the next health checks exit with, one by one, before `health` counts again."""
        self._node(node).verdicts.extend(codes)

    def next_reboot(self, node: str, **how: Any) -> None:
        """How the next reboot that has no plan yet goes; the words are the fields of `Reboot`."""
        self._node(node).next_reboots.append(Reboot(**how))

    def reboot(self, node: str) -> bool:
        """Somebody reboots the host without asking anyone."""
        with self._cloud.lock:
            return self._hosts.reboot(self._node(node))

    def disconnect(self, node: str, seconds: float | None = None) -> None:
        """The agent loses its connection; with `seconds`, it is back after that long."""
        with self._cloud.lock:
            found = self._node(node)
            self._hosts.disconnect(found)
            if seconds is not None:
                self._cloud.agenda.after(seconds, lambda: self._hosts.connect(found))

    def connect(self, node: str) -> None:
        with self._cloud.lock:
            self._hosts.connect(self._node(node))

    def register_again(self, node: str, named: bool = True) -> None:
        """The agent loses its memory while its containers run on: the host becomes a new container instance.

        `named`: its agent tells its `node_name` again.
        """
        with self._cloud.lock:
            self._hosts.register_again(self._node(node), named=named)

    def power_off(self, node: str) -> None:
        with self._cloud.lock:
            self._hosts.power_off(self._node(node))

    def power_on(self, node: str) -> None:
        with self._cloud.lock:
            self._hosts.power_on(self._node(node))

    def terminate(self, node: str) -> None:
        """The EC2 instance is terminated."""
        with self._cloud.lock:
            self._hosts.terminate(self._node(node))

    def ec2_says(self, node: str, state: str) -> None:
        """What EC2 calls the machine from now on. Its agent is another matter."""
        with self._cloud.lock:
            self._node(node).ec2_state = state

    def interrupt(self, node: str) -> None:
        """The EC2 instance is a Spot instance, and it is wanted back."""
        with self._cloud.lock:
            self._hosts.interrupt(self._node(node))

    def impair(self, node: str, kind: str = "ACCELERATED_COMPUTE", reason: str = "XID_79") -> None:
        """ECS itself finds fault with the node."""
        with self._cloud.lock:
            self._hosts.impair(self._node(node), kind, reason)

    def heal(self, node: str) -> None:
        with self._cloud.lock:
            self._hosts.heal(self._node(node))

    # -- what runs on them ---------------------------------------------------------------------------------

    def script(
        self,
        env: dict[str, str] | None = None,
        node: str = "",
        family: str = "",
        times: int | None = 1,
        **outcome: Any,
    ) -> None:
        """How tasks will go: those with these overrides, on this node, of this family; `times` of them.

        The outcome is the fields of `Outcome`, or an `accident`: "oom" or "cannot pull".
        """
        self._no_strangers(outcome, {*OUTCOME_WORDS, "accident"})
        rule = Rule(outcome=outcome_from(outcome), env=env or {}, node=node, family=family, times=times)
        with self._cloud.lock:
            self._world.script.rules.append(rule)

    def exit_task(self, task: str, exit_code: int, reason: str = "") -> bool:
        """The task's main process ends now. False if it is not running."""
        with self._cloud.lock:
            return self._world.exit(self._task(task), exit_code, reason)

    def kill_for_memory(self, task: str, exit_code: int = 137) -> bool:
        """The kernel ends the task for want of memory."""
        return self.exit_task(task, exit_code, OUT_OF_MEMORY)

    def tasks(self, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
        """Every task that ECS still remembers, as it shows them, with its node's name and its environment.

        With `env`, only those that carry all of it.
        """
        wanted = (env or {}).items()
        with self._cloud.lock:
            self._cloud.settle()
            return [self._shown(task) for task in self._world.all_tasks() if wanted <= task.env.items()]

    def _shown(self, task: Task) -> dict[str, Any]:
        return {**task_shape(task, self._world.place), "node": task.node.name, "env": dict(task.env)}

    def script_result(self, node: str, exit_code: int, stdout: str = "", stderr: str = "") -> None:
        """What the next command on this host comes to, whatever it says."""
        self._node(node).script_results.append((exit_code, stdout, stderr))

    def nccl(self, node: str, says: str) -> None:
        """What the NCCL of whatever trains there answers, when a look at a hang asks it."""
        self._node(node).nccl = says

    def ssm_agent(self, node: str, up: bool) -> None:
        """The SSM agent dies or is back, while the host runs on."""
        with self._cloud.lock:
            found = self._node(node)
            found.ssm_up = up
            waiting, found.on_boot[:] = (list(found.on_boot), []) if up else ([], found.on_boot)
            for do in waiting:
                do()

    # -- the weather ---------------------------------------------------------------------------------------

    def knobs(self, **changes: Any) -> dict[str, Any]:
        """Change how the world behaves; the answer lists all knobs."""
        self._no_strangers(changes, {field.name for field in fields(Knobs)})
        with self._cloud.lock:
            for name, value in changes.items():
                setattr(self._cloud.knobs, name, value)
        return asdict(self._cloud.knobs)

    def weather(self, **changes: Any) -> dict[str, Any]:
        """How events travel from now on; the words are the fields of `Weather`."""
        self._no_strangers(changes, {field.name for field in fields(Weather)})
        weather = replace(self._cloud.courier.weather, **changes)
        if problems := weather.problems():
            raise ControlRefused("; ".join(problems))
        self._cloud.courier.weather = weather
        return asdict(weather)

    def fail_call(
        self,
        action: str,
        code: str = "ServerException",
        message: str = "Simulated.",
        status: int = 500,
        times: int = 1,
    ) -> None:
        """The next calls of this action are answered with an error."""
        with self._cloud.lock:
            self._cloud.gate.refuse(action, ApiError(code, message, status), times)

    def advance(self, seconds: float) -> None:
        """It is that much later now."""
        self._cloud.advance(seconds)

    def reset(self, seed: int = 0) -> None:
        self._cloud.reset(seed)

    # -- what happened -------------------------------------------------------------------------------------

    def calls(self) -> dict[str, Any]:
        """Calls per action since the start, and how many of them were refused."""
        gate = self._cloud.gate
        return {"calls": dict(gate.calls), "refused": dict(gate.refused)}

    def rights(self) -> list[dict[str, Any]]:
        """Rights that callers needed: who, action, resource, allowed, times. Only where permissions are checked."""
        return self._cloud.ledger.rows()

    def forget_calls(self) -> None:
        """Calls and rights are counted from here."""
        self._cloud.ledger.clear()
        with self._cloud.lock:
            self._cloud.gate.calls, self._cloud.gate.refused = Counter(), Counter()

    def events(self, delivered: bool = False) -> list[dict[str, Any]]:
        """Every event as it happened; with `delivered`, those that arrived, in the order of arrival."""
        with self._cloud.lock:
            self._cloud.settle()
            chosen = self._cloud.delivered if delivered else self._cloud.events
            return [event.envelope(self._cloud.place) for event in chosen]

    # -- names ---------------------------------------------------------------------------------------------

    def _node(self, reference: str) -> Node:
        found = self._world.node(reference)
        if found is None:
            raise ControlRefused(f"there is no node {reference!r}")
        return found

    def _task(self, reference: str) -> Task:
        found = self._world.task(reference)
        if found is None:
            raise ControlRefused(f"there is no task {reference!r}")
        return found

    @staticmethod
    def _no_strangers(given: dict[str, Any], known: set[str]) -> None:
        if strangers := sorted(set(given) - known):
            raise ControlRefused(f"unknown: {', '.join(strangers)}")

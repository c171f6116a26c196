"""Puts the embedded mode together: SQLite, local processes, real time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..core.errors import Refused
from ..core.policy import Policy
from ..core.setting import rows, text_of
from ..engine.runtime import Runtime
from ..engine.sweeper import Sweeper
from ..own_folder import own_folder
from ..settings import policy_from
from .clock import Clock
from .cluster import Cluster
from .files import DamagedFile, read_json, write_json
from .fleet import LocalFleet
from .guard import SqliteGuard
from .notify import LocalNotifier
from .reads import SqliteReads
from .store import SqliteStore

CLUSTER = "embedded"
DATABASE, POLICY = "recovery.db", "policy.json"
LOCAL_POLICY = Policy.embedded()


def now() -> datetime:
    """UTC as this machine has it. On a state folder, its own `clock` is the one to ask."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Embedded:
    """Everything the embedded mode consists of, on one state folder."""

    state: Path
    store: SqliteStore
    reads: SqliteReads
    cluster: Cluster
    fleet: LocalFleet
    notifier: LocalNotifier
    runtime: Runtime
    sweeper: Sweeper
    policy: Policy
    clock: Clock

    def close(self) -> None:
        self.fleet.close()
        self.store.close()


def _policy(state: Path, env: Mapping[str, str], given: Policy | None, *, controller: bool) -> Policy:
    """The policy is the control plane's: it leaves its own in the state folder, and whoever submits takes that."""
    file = str(state / POLICY)
    chosen = given or policy_from(env, LOCAL_POLICY)  # what makes no sense is told, used or not
    if controller:
        write_json(file, {row.name: text_of(getattr(chosen, row.attribute)) for row in rows(Policy)})
        return chosen
    if given is None:
        try:
            chosen = policy_from(read_json(file) or env, LOCAL_POLICY)
        except DamagedFile as exc:
            raise Refused(f"{exc}; `gpu-recovery up` writes it anew") from exc
    return replace(chosen, lease=timedelta(0))


def build(
    state: Path,
    *,
    env: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    controller: bool = False,
) -> Embedded:
    """Only the controller sends orders. Anyone else commits them, due at once, for the controller to send."""
    own_folder(state)
    env = os.environ if env is None else env
    chosen = _policy(state, env, policy, controller=controller)
    store = SqliteStore(state / DATABASE, lost_after=chosen.node_lost_after)
    try:
        cluster = Cluster(state)
        clock = Clock(state)
        notifier = LocalNotifier(
            store,
            clock.now,
            env.get("GPU_RECOVERY_WEBHOOK", ""),
            form=env.get("GPU_RECOVERY_WEBHOOK_FORM", ""),
            console=env.get("GPU_RECOVERY_CONSOLE_URL", ""),
        )
    except BaseException:
        store.close()
        raise
    fleet = LocalFleet(cluster, clock.now)
    runtime = Runtime(
        store=store,
        fleet=fleet,
        notifier=notifier,
        policy=chosen,
        guard=SqliteGuard(store, CLUSTER),
        dispatch=controller,
        clock=clock.now,
    )
    return Embedded(
        state, store, SqliteReads(store), cluster, fleet, notifier, runtime, Sweeper(runtime), chosen, clock
    )

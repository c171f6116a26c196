"""The record of the fleet's guard, beside the other records in SQLite."""

from __future__ import annotations

import sqlite3

from ..core.codec import CODEC
from ..core.errors import VersionConflict
from ..core.guard import FleetGuard
from .database import Database


class SqliteGuard:
    """Reading it costs next to nothing, and is never stale."""

    def __init__(self, database: Database, cluster: str) -> None:
        self._database, self.cluster = database, cluster

    def guard(self) -> FleetGuard:
        found = self._database.read("SELECT record FROM fleet_guard WHERE cluster_name=?", self.cluster)
        return CODEC.guard(self.cluster, found[0][0]) if found else FleetGuard(cluster=self.cluster)

    def commit_guard(self, guard: FleetGuard) -> None:
        def act(conn: sqlite3.Connection) -> None:
            where = "SELECT version FROM fleet_guard WHERE cluster_name=?"
            found = conn.execute(where, (self.cluster,)).fetchone() or (0,)
            if found[0] != guard.version - 1:
                raise VersionConflict(f"the guard is at version {found[0]}, not {guard.version - 1}")
            row = (self.cluster, guard.version, CODEC.text(guard))
            conn.execute("INSERT OR REPLACE INTO fleet_guard VALUES (?,?,?)", row)

        self._database.write(act)

"""Messages of the embedded mode: kept in the store, shown in the log, and sent to a webhook if one is set."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..core.effects import Archive, Notify
from ..core.errors import Refused, Transient
from ..engine.reads import as_dict
from ..engine.webhook import form_of, payload
from .store import SqliteStore

log = logging.getLogger("ecs_gpu_recovery")
#: While a message is being sent nothing else moves, so a webhook gets no more time than this.
WEBHOOK_TIMEOUT_S = 3.0


class LocalNotifier:
    """Each message is kept once, by its key; the webhook may get it twice if the process dies right after."""

    def __init__(
        self,
        store: SqliteStore,
        now: Callable[[], datetime],
        webhook: str = "",
        *,
        form: str = "",
        console: str = "",
    ) -> None:
        """`form`: what the webhook takes, if its address does not tell; `console`: where people find the pages."""
        if webhook and not webhook.startswith(("http://", "https://")):
            raise Refused(f"the webhook must be an http(s) address, not {webhook!r}")
        self._store, self._now, self._webhook = store, now, webhook
        self._form, self._console = form_of(webhook, form), console

    def notify(self, message: Notify) -> None:
        """Kept first, sent then: a webhook that is down must not hide the message from those who look here."""
        body = as_dict(message)
        at = self._now().isoformat(timespec="microseconds")

        def act(conn: sqlite3.Connection) -> bool:
            row = (message.key, at, message.subject, json.dumps(body))
            return conn.execute("INSERT OR IGNORE INTO notice VALUES (?,?,?,?)", row).rowcount == 1

        if self._store.write(act):
            log.warning("notice", extra=body)
        if self._webhook:
            self._post(payload(message, self._form, self._console))

    def resolved(self, message: Notify) -> None:
        """The pages see for themselves what is over."""
        log.info("resolved", extra={"key": message.key, "subject": message.subject})
        if self._webhook:
            self._post(payload(message, self._form, self._console))

    def _post(self, body: dict[str, Any]) -> None:
        import http.client  # these two cost every command a tenth of its start, and few have a webhook
        import urllib.request

        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(self._webhook, data, kind)  # noqa: S310
            with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S):  # noqa: S310
                return
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise Transient(f"the webhook did not take the message: {exc}") from exc

    def archive(self, record: str, order: Archive) -> None:
        def act(conn: sqlite3.Connection) -> None:
            if conn.execute("INSERT OR IGNORE INTO archived VALUES (?)", (order.key,)).rowcount == 0:
                return
            (last,) = conn.execute(
                "SELECT COALESCE(MAX(seq), 0) FROM timeline WHERE record=?", (record,)
            ).fetchone()
            conn.executemany(
                "INSERT INTO timeline VALUES (?,?,?)",
                [(record, last + 1 + i, line) for i, line in enumerate(order.lines)],
            )

        self._store.write(act)

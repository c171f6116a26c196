"""The account of a fleet's time, from whichever side has the records."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from ..core.errors import Refused, Transient
from ..core.model import Job
from ..ledger import Ledger, account
from .backend import Backend, NotAllowed

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
#: So many jobs are asked for at once.
_PAGE = 200
#: Of all jobs together, without a word on the stretch.
WEEK = "7d"


def ledger_of(side: Backend, job_id: str = "", since: str = "") -> Ledger:
    """One job over its whole life, or all jobs within a stretch such as 12h, 7d or 4w."""
    back = stretch(since or ("" if job_id else WEEK))
    now = side.now()
    begin = now - back if back else None
    jobs = [side.job(job_id)] if job_id else _since(side, begin)
    ledger = account(jobs, now, begin)
    first = min((job.created_at for job in jobs), default=now)
    try:
        ledger.slow = list(side.slow_nodes(jobs, max(first, begin) if begin else first, now))
    except (NotAllowed, Transient) as exc:
        side.remark = f"it can't be told which nodes stand out: {exc}"
    return ledger


def stretch(text: str) -> timedelta | None:
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,4})([hdw])", text)
    if not found or not int(found[1]):
        raise Refused(f"since {text[:20]}: use 12h, 7d or 4w")
    return int(found[1]) * _UNITS[found[2]]


def _since(side: Backend, begin: datetime | None) -> list[Job]:
    """Jobs that were there since then."""
    found, after = list[Job](), ""
    while True:
        page = side.jobs(None, _PAGE, after)
        lines = [
            line for line in page.jobs if begin is None or not line.status.final or line.updated_at >= begin
        ]
        found += [side.job(line.id) for line in lines]
        after = page.next
        if not after:
            return found

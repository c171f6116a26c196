"""A job as people call it: by its id, by the beginning of it, or by its name; and the jobs that repeat it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.errors import NotFound, Refused
from ..core.model import Job
from .backend import Backend

#: Among so many of the newest jobs a beginning or a name is looked for.
_LOOKED_AT = 500
_SHOWN = 5
#: A retry has the id of the job that it repeats, with a number.
_REPEATED = re.compile(r"(?P<stem>.+)-r(?P<number>[0-9]{1,4})", re.DOTALL)
#: So many retries of a job are looked for.
_MOST_RETRIES = 10
_LONGEST = 63


def find_job(side: Backend, called: str) -> Job:
    """An id is taken as it is. Else exactly one job must begin so, or have this name."""
    try:
        return side.job(called)
    except NotFound:
        lines = side.jobs(None, _LOOKED_AT, "").jobs
        found = [line for line in lines if called and (line.id.startswith(called) or line.name == called)]
        if not found:
            raise
    if len(found) > 1:
        some = [f"  {line.id}  {line.status}" for line in found[:_SHOWN]]
        more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise Refused(
            "\n".join([f"{called} may be one of {len(found)} jobs; say more of its id:", *some, *more])
        )
    return side.job(found[0].id)


def _apart(job_id: str) -> tuple[str, int]:
    found = _REPEATED.fullmatch(job_id)
    return (found["stem"], int(found["number"])) if found else (job_id, 1)


def next_id(side: Backend, job_id: str) -> str:
    """For a retry: the same stem, and the next number that nobody has."""
    stem, number = _apart(job_id)
    while True:
        number += 1
        made = f"{stem[: _LONGEST - len(f'-r{number}')]}-r{number}"
        try:
            side.job(made)
        except NotFound:
            return made


def next_in_line(job_id: str) -> str:
    """The id that the first retry of a job has."""
    stem, number = _apart(job_id)
    return f"{stem}-r{number + 1}"


def retries_of(side: Backend, job: Job) -> Sequence[str]:
    """The jobs that repeat an ended one. Their ids follow from its own; the records say whether it is so."""
    if not job.status.final:
        return ()
    stem, number = _apart(job.id)
    found = []
    for later in range(number + 1, number + 1 + _MOST_RETRIES):
        try:
            other = side.job(f"{stem}-r{later}")
        except NotFound:
            break
        if other.spec.retry_of == job.id:
            found.append(other.id)
    return found

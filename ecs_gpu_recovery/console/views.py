"""Records as the console shows them: everything people need, and nothing that is secret."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..cli.render import whole
from ..core.model import Entry, Job, JobStatus, Node
from ..ports import JobLine, Page
from ..report import effective_ratio, phases, read_progress

HIDDEN = "••••••"
_SECRET = re.compile(
    r"(?i)(pass(word|wd)?|secret|token|credential|private|api_?key|access_?key|(^|_)key($|_))"
)
_SECRET_OPTION = re.compile(
    r"(?i)^(--?[a-z0-9_-]*(?:password|passwd|secret|token|api[-_]?key|credential)[a-z0-9_-]*)(=(.*))?$"
)
_ADDRESS_WITH_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*://[^/\s:@]*):[^@/\s]+@")
_AWS_KEY = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b")


def masked_text(text: str) -> str:
    return _AWS_KEY.sub(HIDDEN, _ADDRESS_WITH_PASSWORD.sub(rf"\1:{HIDDEN}@", text))


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Values of variables that sound like secrets never leave the server."""
    return {
        key: HIDDEN if _SECRET.search(key) and value else masked_text(value) for key, value in env.items()
    }


def masked_command(command: Sequence[str]) -> list[str]:
    shown, hide_next = [], False
    for word in command:
        option = _SECRET_OPTION.match(word)
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        elif option and option[2]:
            shown.append(f"{option[1]}={HIDDEN}")
        else:
            shown.append(masked_text(word))
        hide_next = bool(option and not option[2])
    return shown


def job_line(line: JobLine) -> dict[str, Any]:
    data: dict[str, Any] = whole(line)
    return {**data, "final": line.status.final}


def job_page(page: Page) -> dict[str, Any]:
    return {"jobs": [job_line(line) for line in page.jobs], "next": page.next}


def job_view(job: Job, now: datetime) -> dict[str, Any]:
    """Everything about a job."""
    data: dict[str, Any] = whole(job)
    spec = data["spec"]
    spec["env"] = masked_env(job.spec.env)
    spec["command"] = masked_command(job.spec.command)
    done = read_progress(job.spec.checkpoint_dir)
    ratio = effective_ratio(job, done, now)
    data.update(
        final=job.status.final,
        command_line=shlex.join(spec["command"]).replace(shlex.quote(HIDDEN), HIDDEN),
        phases=[
            {
                "name": p.name,
                "status": p.status.value,
                "attempt": p.attempt,
                "start": p.start.isoformat(),
                "end": p.end.isoformat(),
                "seconds": round(p.seconds, 1),
            }
            for p in phases(job, now)
        ],
        progress=whole(done),
        effective=None if ratio is None else round(ratio, 4),
        seconds=round(((job.updated_at if job.status.final else now) - job.created_at).total_seconds(), 1),
    )
    return data


def node_view(node: Node) -> dict[str, Any]:
    return {**whole(node), "free": node.claimable, "refusal": node.refusal, "has_report": bool(node.check_id)}


def entry_view(entry: Entry) -> dict[str, Any]:
    data: dict[str, Any] = whole(entry)
    return data


def doing(job: Job) -> dict[str, str]:
    """What the system is doing for this job right now, and why: its last move."""
    moves = [e for e in job.timeline if e.subject == "job" and e.before != e.after]
    last = moves[-1] if moves else None
    return {
        "job": job.id,
        "status": job.status.value,
        "why": last.why if last else "",
        "evidence": last.evidence if last else "",
        "since": last.at.isoformat() if last else job.created_at.isoformat(),
        "ending": job.ending.why if job.ending else "",
    }


def archived_timeline(store: Any, record: str) -> list[dict[str, Any]]:
    """Entries that no longer fit into the record, oldest first; only the embedded store keeps them."""
    if not hasattr(store, "read"):
        return []
    found = []
    for (line,) in store.read("SELECT line FROM timeline WHERE record=? ORDER BY seq", record):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "at" in entry:
            found.append({"evidence": "", "attempt": 0, "policy": "", "before": "", **entry})
    return found


def last_report(state: Path | None, node: Node) -> dict[str, Any] | None:
    """The newest report that a check left in the embedded node's folder."""
    if state is None:
        return None
    folder = state / "nodes" / node.name / "tasks"
    newest: tuple[float, Path] | None = None
    for path in folder.glob("*/report.json"):
        try:
            if path.is_symlink() or path.stat().st_size > 1 << 20:
                continue
            stamp = path.stat().st_mtime
        except OSError:
            continue
        if newest is None or stamp > newest[0]:
            newest = (stamp, path)
    if newest is None:
        return None
    try:
        data = json.loads(newest[1].read_text(errors="replace"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def live_states() -> list[JobStatus]:
    return [status for status in JobStatus if not status.final]

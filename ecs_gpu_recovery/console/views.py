"""Records as the console shows them: everything people need, and nothing that is secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..core.codec import whole
from ..core.model import Entry, Job, JobStatus, Node
from ..engine.ports import JobLine, Page
from ..progress import effective_ratio, read_progress
from ..report import phases
from ..standing import standing_view
from ..status_text import deadline, now_doing

HIDDEN = "••••••"
_SECRET = re.compile(
    r"(?i)(pass(word|wd)?|secret|token|credential|private|api_?key|access_?key|(^|_)key($|_))"
)
_SECRET_OPTION = re.compile(
    r"(?i)^(--?[a-z0-9_-]*(?:password|passwd|secret|token|api[-_]?key|credential)[a-z0-9_-]*)(=(.*))?$"
)
_ADDRESS_WITH_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*://[^/\s:@]*):[^@/\s]+@")
#: Words that can be nothing but a secret, in any program.
_ALWAYS_SECRET = re.compile(
    r"\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|gpurec_[A-Za-z0-9_-]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
)
_NAMED_SECRET = re.compile(
    r"(?i)((?:password|passwd|secret|token|api_?key|access_?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&}]+"
)


def masked_text(text: str) -> str:
    """Without what can only be a secret: it may stand in a variable, a command, a reason or an error."""
    text = _ADDRESS_WITH_PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    return _NAMED_SECRET.sub(rf"\1{HIDDEN}", _ALWAYS_SECRET.sub(HIDDEN, text))


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


def command_line(masked: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join(masked).replace(shlex.quote(HIDDEN), HIDDEN)


def job_line(line: JobLine) -> dict[str, Any]:
    """Written out field by field: every look makes two hundred of them."""
    return {
        "id": line.id,
        "name": line.name,
        "status": line.status.value,
        "attempt": line.attempt,
        "nodes": line.nodes,
        "created_at": line.created_at.isoformat(),
        "updated_at": line.updated_at.isoformat(),
        "final": line.status.final,
    }


def job_page(page: Page) -> dict[str, Any]:
    bad = [{"id": exc.name, "why": exc.why} for exc in page.bad]
    return {"jobs": [job_line(line) for line in page.jobs], "next": page.next, "bad": bad}


def job_view(job: Job, now: datetime, earlier: Sequence[Entry] = ()) -> dict[str, Any]:
    """Everything about a job; `earlier` is what left its timeline, where it is known."""
    data: dict[str, Any] = whole(job)
    data["salt"] = ""  # whoever has it can make the tokens of tasks to come
    for order in data["outbox"]:
        order["effect"].update({"token": ""} if "token" in order["effect"] else {})
    spec = data["spec"]
    spec["env"] = masked_env(job.spec.env)
    spec["command"] = masked_command(job.spec.command)
    done = read_progress(job.spec.checkpoint_dir)
    ratio = effective_ratio(job, done, now)
    data.update(
        final=job.status.final,
        restarts_left=job.restarts_left,
        restarts_charged=job.spent.charged,
        command_line=command_line(spec["command"]),
        phases=[
            {
                "name": p.name,
                "status": p.status.value,
                "attempt": p.attempt,
                "start": p.start.isoformat(),
                "end": p.end.isoformat(),
                "seconds": round(p.seconds, 1),
            }
            for p in phases(job, now, earlier)
        ],
        progress=whole(done),
        effective=None if ratio is None else round(ratio, 4),
        seconds=round(((job.updated_at if job.status.final else now) - job.created_at).total_seconds(), 1),
    )
    return data


def in_order(name: str) -> list[tuple[int, str]]:
    """A key that puts node-2 before node-10."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (0, part)
        for part in re.split(r"([0-9]{1,18})", name)
    ]


def node_view(node: Node) -> dict[str, Any]:
    return {
        **whole(node),
        "free": node.claimable,
        "refusal": node.refusal,
        "standing": standing_view(node),
        "held": node.held,
        "has_report": bool(node.check_id),
    }


def entry_view(entry: Entry) -> dict[str, Any]:
    data: dict[str, Any] = whole(entry)
    return data


def doing(job: Job, nodes: Iterable[Node] = ()) -> dict[str, Any]:
    """What the system is doing for this job right now, until when at the latest, and why: its last move."""
    moves = [e for e in job.timeline if e.subject == "job" and e.before != e.after]
    last = moves[-1] if moves else None
    return {
        "job": job.id,
        "status": job.status.value,
        "why": last.why if last else "",
        "evidence": last.evidence if last else "",
        "since": last.at.isoformat() if last else job.created_at.isoformat(),
        "ending": job.ending.why if job.ending else "",
        "now": now_doing(job),
        "deadline": end.isoformat() if (end := deadline(job, nodes)) else "",
        "calm": job.status is JobStatus.IN_PROGRESS and job.ending is None,
    }


def whole_timeline(job: Job, earlier: Sequence[Entry]) -> list[dict[str, Any]]:
    """What happened, oldest first, with what left the record; a move that stayed longer finds its place."""
    entries = [entry_view(entry) for entry in (*earlier, *job.timeline)]
    return sorted(entries, key=lambda entry: str(entry["at"])) if earlier else entries

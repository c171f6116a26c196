"""Secrets in variables, commands, reasons and errors, which neither commands nor pages nor the API show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .core.codec import whole
from .core.model import Job

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


def masked_record(job: Job) -> dict[str, Any]:
    """Everything about a job but its secrets."""
    data: dict[str, Any] = whole(job)
    data["salt"] = ""  # whoever has it can make the tokens of tasks to come
    for order in data["outbox"]:
        order["effect"].update({"token": ""} if "token" in order["effect"] else {})
    data["spec"]["env"] = masked_env(job.spec.env)
    data["spec"]["command"] = masked_command(job.spec.command)
    return data

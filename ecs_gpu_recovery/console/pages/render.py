"""Whoever fills in the templates: for one language and one person."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ...core.model import NodeStatus
from ...jobfile import LEVELS
from .. import status_text
from ..access.auth import Identity
from ..views import command_line
from . import svg, texts

#: Of many nodes, those in the first states are shown first.
_URGENCY = (
    *(NodeStatus.FAILED, NodeStatus.UNKNOWN, NodeStatus.REBOOTING, NodeStatus.PENDING),
    *(NodeStatus.PENDING_HEALTHCHECK, NodeStatus.ASSIGNED, NodeStatus.IN_PROGRESS, NodeStatus.AVAILABLE),
)
ENV = Environment(
    loader=PackageLoader("ecs_gpu_recovery.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def clock(value: str | datetime) -> str:
    """A time as pages show it before a script tells how long ago it was."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def items_of(text: str) -> list[str]:
    """Evidence as one line for each thing that was found: it is joined by semicolons, outside of brackets."""
    found, depth = [""], 0
    for part in re.split(r"([();] ?)", text):
        depth += {"(": 1, ")": -1}.get(part.strip(), 0)
        if part.strip() == ";" and depth <= 0:
            found.append("")
        else:
            found[-1] += part
    return [line.strip() for line in found if line.strip()]


ENV.filters.update(
    clock=clock,
    duration=svg.duration,
    items_of=items_of,
    short=svg.short,
    command_line=command_line,
)


@dataclass(frozen=True, slots=True)
class Renderer:
    """Renders for one language and one person."""

    language: str
    who: Identity | None
    theme: str = "auto"

    def text(self, key: str) -> str:
        return texts.translator(self.language)(key)

    def job_label(self, status: str) -> str:
        return self.text(texts.JOB_LABELS.get(status, status))

    def node_label(self, status: str) -> str:
        return self.text(texts.NODE_LABELS.get(status, status))

    def node_word(self, node: Mapping[str, Any]) -> str:
        """A node as a person would put it: one that is kept out of use is not called available."""
        status, waits = node["status"], bool(node["job_id"])
        if status == NodeStatus.AVAILABLE and (node["hold"] or waits):
            return self.text("Drained" if node["hold"] else "Healthy, waiting")
        label = self.node_label(status)
        return f"{label} · {self.text('drained')}" if node["hold"] else label

    def by_word(self, nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Many nodes by what is said of them; those that need somebody first, those that are free last."""
        found: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        for node in nodes:
            place = 1 if node["hold"] else _URGENCY.index(node["status"]) + node["free"]
            found.setdefault((place, self.node_word(node)), []).append(node)
        return [(word, found[place, word]) for place, word in sorted(found)]

    def verdict(self, verdict: str) -> str:
        return self.text(texts.VERDICTS.get(verdict, verdict))

    def sentence(self, said: status_text.Sentence) -> str:
        return self.text(said.key).format(**said.values)

    def render(self, template: str, **values: Any) -> str:
        return ENV.get_template(template).render(
            t=self.text,
            job_label=self.job_label,
            node_label=self.node_label,
            node_word=self.node_word,
            by_word=self.by_word,
            names=status_text.names,
            verdict=self.verdict,
            order_words=texts.ORDERS,
            sentence=self.sentence,
            levels=LEVELS,
            level_words=texts.LEVELS,
            chart_words={key: self.text(key) for key in texts.CHARTS},
            who=self.who,
            lang=self.language,
            theme=self.theme,
            languages=texts.LANGUAGES,
            **values,
        )

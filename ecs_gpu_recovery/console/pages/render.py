"""Filling in the templates, for one language and one person."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ... import report
from ...core.model import NodeStatus
from ...jobkeys import LEVELS
from .. import status_text
from ..access.auth import Identity
from ..api import charts
from ..views import command_line
from . import labels, svg
from .language import LANGUAGES, translations

#: Of many nodes, those in the first states are shown first.
_URGENCY = (
    *(NodeStatus.FAILED, NodeStatus.UNKNOWN, NodeStatus.REBOOTING, NodeStatus.PENDING),
    *(NodeStatus.PENDING_HEALTHCHECK, NodeStatus.ASSIGNED, NodeStatus.IN_PROGRESS, NodeStatus.AVAILABLE),
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


@cache
def environment(language: str) -> Environment:
    """The templates, with every text in this language."""
    made = Environment(
        loader=PackageLoader("ecs_gpu_recovery.console"),
        extensions=["jinja2.ext.i18n"],
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        clock=clock, duration=svg.duration, items_of=items_of, short=svg.short, command_line=command_line
    )
    found = translations(language)
    made.globals.update(_=found.gettext, gettext=found.gettext, ngettext=found.ngettext)
    return made


@dataclass(frozen=True, slots=True)
class Renderer:
    """Renders for one language and one person."""

    language: str
    who: Identity | None
    theme: str = "auto"

    def text(self, key: str) -> str:
        return translations(self.language).gettext(key)

    def job_label(self, status: str) -> str:
        return self.text(labels.JOB_LABELS.get(status, status))

    def node_label(self, status: str) -> str:
        return self.text(labels.NODE_LABELS.get(status, status))

    def node_word(self, node: Mapping[str, Any]) -> str:
        """A node as a person would put it: one that is kept out of use is not called available."""
        status, waits = node["status"], bool(node["job_id"])
        if status == NodeStatus.AVAILABLE and (node["hold"] or waits):
            return self.text("Drained" if node["hold"] else "Healthy, waiting")
        label = self.node_label(status)
        return f"{label} · {self.text('drained')}" if node["hold"] else label

    def by_word(self, nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Many nodes by what is said of them; those that need a person first, those that are free last."""
        found: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        for node in nodes:
            place = 1 if node["hold"] else _URGENCY.index(node["status"]) + node["free"]
            found.setdefault((place, self.node_word(node)), []).append(node)
        return [(word, found[place, word]) for place, word in sorted(found)]

    def verdict(self, verdict: str) -> str:
        return self.text(labels.VERDICTS.get(verdict, verdict))

    def sentence(self, said: status_text.Sentence) -> str:
        return self.text(said.key).format(**said.values)

    def runs(self, job: Mapping[str, Any]) -> str:
        said = report.runs(job["attempt"], job["max_retries"], ended=job["final"])
        return " · ".join(self.text(text).format(count=count) for text, count in said)

    def render(self, template: str, **values: Any) -> str:
        return (
            environment(self.language)
            .get_template(template)
            .render(
                job_label=self.job_label,
                node_label=self.node_label,
                node_word=self.node_word,
                by_word=self.by_word,
                names=status_text.names,
                verdict=self.verdict,
                order_words=labels.ORDERS,
                sentence=self.sentence,
                runs=self.runs,
                levels=LEVELS,
                chart_words={chart.key: self.text(chart.key) for chart in charts.CHARTS},
                who=self.who,
                lang=self.language,
                theme=self.theme,
                languages=LANGUAGES,
                **values,
            )
        )

"""Filling in the templates, for one language and one person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ... import report, status_text
from ...core.model import JobStatus, NodeStatus
from ...jobkeys import LEVELS
from ...masks import command_line
from ...slow_nodes import MEASURES
from ...standing import BAD, BUSY, DRAINED, FREE
from ..access.auth import Identity
from ..api import charts
from . import labels, svg
from .language import LANGUAGES, translations

#: Of many nodes, those of which the first word is said are shown first; of those the ones in the first states.
_URGENCY = (BAD, DRAINED, BUSY, FREE)
_STATES = (
    *(NodeStatus.FAILED, NodeStatus.UNKNOWN, NodeStatus.REBOOTING, NodeStatus.PENDING),
    *(NodeStatus.PENDING_HEALTHCHECK, NodeStatus.ASSIGNED, NodeStatus.IN_PROGRESS, NodeStatus.AVAILABLE),
)
#: The parts of a page by name, and what its script is told beside them.
Fragments = tuple[dict[str, str], dict[str, Any]]


def clock(value: str | datetime) -> str:
    """A time as pages show it before a script tells how long ago it was."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


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
        clock=clock,
        duration=svg.duration,
        items_of=status_text.items_of,
        short=svg.short,
        command_line=command_line,
    )
    found = translations(language)
    made.globals.update(_=found.gettext, gettext=found.gettext, ngettext=found.ngettext)
    made.globals["measures"] = MEASURES
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
        """One of four words, see `standing`."""
        return self.text(labels.STANDINGS[node["standing"]["word"]])

    def node_why(self, node: Mapping[str, Any]) -> str:
        """The reason beside the word."""
        said = node["standing"]
        why = self.text(said["text"]).format(**said["values"]) if said["text"] else ""
        held = node["hold"] and said["word"] != DRAINED
        return ", ".join(filter(None, (why, self.text("drained") if held else "")))

    @staticmethod
    def node_look(node: Mapping[str, Any]) -> str:
        """Whose colour and shape a node has: its state's, unless that would say the opposite of its word."""
        word = node["standing"]["word"]
        if word == BAD and node["status"] == NodeStatus.AVAILABLE:
            return NodeStatus.FAILED
        if word == BUSY and node["status"] == NodeStatus.AVAILABLE:
            return NodeStatus.ASSIGNED
        return NodeStatus.PENDING if word == DRAINED else str(node["status"])

    def by_word(self, nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Many nodes by what is said of them; those that need a person first, those that are free last."""
        found: dict[tuple[tuple[int, int], str], list[Mapping[str, Any]]] = {}
        for node in nodes:
            word, text = node["standing"]["word"], node["standing"]["text"]
            busy = f" · {self.text(text)}" if word == BUSY else ""
            place = (_URGENCY.index(word), _STATES.index(node["status"]) if busy else 0)
            found.setdefault((place, self.node_word(node) + busy), []).append(node)
        return [(word, found[place, word]) for place, word in sorted(found)]

    def verdict(self, verdict: str) -> str:
        return self.text(labels.VERDICTS.get(verdict, verdict))

    def sentence(self, said: status_text.Sentence) -> str:
        return self.text(said.key).format(**said.values)

    def runs(self, job: Mapping[str, Any]) -> str:
        waits = job["status"] == JobStatus.PENDING_RESTART
        said = report.runs(job["attempt"], job["restarts_left"], ended=job["final"], waits=waits)
        return " · ".join(self.text(text).format(count=count) for text, count in said)

    def render(self, template: str, **values: Any) -> str:
        return (
            environment(self.language)
            .get_template(template)
            .render(
                job_label=self.job_label,
                node_label=self.node_label,
                node_word=self.node_word,
                node_why=self.node_why,
                node_look=self.node_look,
                by_word=self.by_word,
                names=status_text.names,
                verdict=self.verdict,
                order_words=labels.ORDERS,
                sentence=self.sentence,
                runs=self.runs,
                levels=LEVELS,
                chart_words={
                    chart.key: self.text(chart.key) for chart in (*charts.CHARTS, *charts.AWS_CHARTS)
                },
                who=self.who,
                lang=self.language,
                theme=self.theme,
                languages=LANGUAGES,
                **values,
            )
        )

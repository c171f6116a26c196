from __future__ import annotations

import re
from pathlib import Path

from ecs_gpu_recovery.aws import metric_agents
from ecs_gpu_recovery.health.watch import node_metrics
from ecs_gpu_recovery.metrics import prometheus, series
from ecs_gpu_recovery.metrics.catalogue import METRICS, Kind, table
from tools import grafana

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_catalogue() -> None:
    assert PAGE.endswith(table()), (
        "put the new table (ecs_gpu_recovery.metrics.catalogue.table) into the page"
    )


def test_every_metric_that_the_text_names_exists() -> None:
    text = PAGE.partition("## All metrics")[0]
    assert set(re.findall(r"gpu_recovery_[a-z_]+\b", text)) - {"gpu_recovery_"} <= set(METRICS) | {
        "gpu_recovery_stack"
    }


def test_only_a_counter_is_asked_for_its_increase() -> None:
    """To Prometheus a gauge that falls, as when old jobs are let go, is a counter that began again: it has grown."""
    asked = re.findall(r"\b(?:i?rate|increase)\((\w+)", f"{PAGE} {grafana.text()}")
    assert [name for name in asked if METRICS[name].kind is not Kind.COUNTER] == []


def test_the_search_and_the_names_on_the_page_are_the_real_ones() -> None:
    assert node_metrics.NAMESPACE in PAGE
    assert all(f"`{name}`" in PAGE for name in node_metrics.UNITS)
    assert "docs/grafana.json" in PAGE
    assert f"{metric_agents.__name__}.{metric_agents.ensure_agents.__name__}" in PAGE
    assert series.FILE in PAGE
    assert "honor_labels: true" in PAGE, "or Prometheus renames our jobs"
    assert prometheus.STALE_S == 60, "the page says a minute"
    assert (series.RESOLUTION_S, series.KEEP_S, series.MAX_SERIES) == (10, 86400, 50_000)

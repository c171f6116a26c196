from __future__ import annotations

import itertools
import json
import re
from typing import Any

from ecs_gpu_recovery.metrics.catalogue import METRICS, PREFIX, Kind
from tools import grafana

DASHBOARD: dict[str, Any] = json.loads(grafana.text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def asked(query: str) -> set[str]:
    return set(re.findall(rf"{PREFIX}\w+", query))


def test_every_metric_that_is_asked_for_exists_and_every_metric_has_a_place() -> None:
    found = set().union(*map(asked, QUERIES))
    assert found <= set(METRICS)
    assert set(METRICS) - found == set(), "a number that nobody sees need not be measured"


def test_counters_are_never_drawn_as_they_are() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for name in asked(target["expr"]):
                if METRICS[name].kind is Kind.COUNTER and panel["type"] == "timeseries":
                    assert re.search(rf"(rate|increase)\({name}", target["expr"]), target["expr"]


def test_labels_in_questions_and_legends_belong_to_the_metrics() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            known = {label for name in asked(target["expr"]) for label in METRICS[name].labels}
            used = set(re.findall(r"(\w+)=~?\"", target["expr"]))
            used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= known, target


def test_brackets_are_closed_and_variables_are_known() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "node", "job"}
    for query in QUERIES:
        for opened, closed in ("()", "{}", "[]"):
            assert query.count(opened) == query.count(closed)
        assert set(re.findall(r"\$(\w+)", query)) <= variables


def test_nothing_is_tied_to_one_server() -> None:
    assert DASHBOARD["uid"] == "ecs-gpu-recovery"
    assert "id" not in DASHBOARD, "Grafana gives that itself; one in the file would collide"
    sources = [panel["datasource"] for panel in PANELS]
    sources += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_panels_have_their_own_numbers_and_do_not_lie_on_each_other() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for a, b in itertools.combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart = apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, (a, b)


def test_the_shape_is_one_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in ("row", "timeseries", "stat", "table")
        assert panel["title"]
    for panel in PANELS:
        assert panel["description"].endswith(".")
        assert set(panel) >= {"targets", "fieldConfig", "options"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
        assert [step["value"] for step in steps[1:]] == sorted(step["value"] for step in steps[1:])

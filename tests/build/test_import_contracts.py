"""The layers hold by what may be imported, for modules that do not exist yet too."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest
from grimp import ImportGraph
from importlinter import Contract
from importlinter.contracts.layers import LayersContract

from tools.import_contracts import ImportedOnlyBy, OnlyImports

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
LAYERS = [one for one in PROJECT["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]


def a_graph(*imports: tuple[str, str]) -> ImportGraph:
    graph = ImportGraph()
    for importer, imported in imports:
        graph.add_import(
            importer=importer, imported=imported, line_number=1, line_contents=f"import {imported}"
        )
    return graph


def links(contract: Contract, graph: ImportGraph) -> list[str]:
    found: list[str] = contract.check(graph, verbose=False).metadata["links"]
    return found


def only_imports(**options: object) -> OnlyImports:
    return OnlyImports(
        name="core is pure", session_options={}, contract_options={"package": "us.core", **options}
    )


def only_by(*importers: str) -> ImportedOnlyBy:
    options = {"package": "us.console", "importers": list(importers)}
    return ImportedOnlyBy(name="one door", session_options={}, contract_options=options)


def test_a_pure_package_may_import_itself_and_the_standard_library() -> None:
    graph = a_graph(("us.core.rules", "us.core.model"), ("us.core.model", "dataclasses"))
    assert links(only_imports(), graph) == []


def test_a_pure_package_may_not_import_its_neighbours_or_other_peoples_code() -> None:
    graph = a_graph(("us.core.rules", "us.runtime"), ("us.core.rules", "boto3"), ("us.aws", "boto3"))
    assert links(only_imports(), graph) == [
        "us.core.rules:1: import boto3",
        "us.core.rules:1: import us.runtime",
    ]


def test_parts_of_the_standard_library_can_be_ruled_out() -> None:
    graph = a_graph(("us.core.rules", "time"), ("us.core.rules", "datetime"))
    assert links(only_imports(not_even=["time"]), graph) == ["us.core.rules:1: import time"]


def test_a_permission_is_for_one_module_and_not_for_what_is_below() -> None:
    graph = a_graph(("us.core.rules", "us"), ("us.core.rules", "us.aws"))
    assert links(only_imports(allowed=["us"]), graph) == ["us.core.rules:1: import us.aws"]


def test_a_guarded_package_is_imported_by_its_importers_only() -> None:
    graph = a_graph(
        ("us.cli.main", "us.console.app"), ("us.console.app", "us.console.jobs"), ("us.aws", "us.console")
    )
    assert links(only_by("us.cli"), graph) == ["us.aws:1: import us.console"]


def test_a_contract_about_a_package_that_is_not_there_yet_is_kept() -> None:
    graph = a_graph(("us.cli", "json"))
    assert links(only_by("us.cli"), graph) == []
    assert links(only_imports(), graph) == []


@pytest.mark.parametrize("options", LAYERS, ids=lambda options: str(options["name"]))
def test_an_import_from_the_bottom_to_the_top_breaks_the_layers(options: dict[str, Any]) -> None:
    names = {key: options[key] for key in ("containers", "layers")}
    contract = LayersContract(
        name=options["name"], session_options={"root_packages": ["ecs_gpu_recovery"]}, contract_options=names
    )
    graph = grimp.build_graph("ecs_gpu_recovery", cache_dir=None)
    assert contract.check(graph, verbose=False).kept
    container, layers = options["containers"][0], options["layers"]
    highest, lowest = (f"{container}.{layer.split()[0]}" for layer in (layers[0], layers[-1]))
    graph.add_import(importer=lowest, imported=highest, line_number=1, line_contents="import upwards")
    assert not contract.check(graph, verbose=False).kept

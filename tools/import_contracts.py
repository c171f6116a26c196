"""Two contracts for import-linter that say what may be imported instead of listing what may not.

A list of forbidden modules goes stale with every new module. These two hold for modules that do not exist
yet, and they are kept, not broken, while the package they speak of does not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


def _is(module: str, name: str) -> bool:
    """`a.b` means that module only; `a.b.*` means it and everything below."""
    package, star, _ = name.partition(".*")
    return module == package or (bool(star) and module.startswith(package + "."))


def _below(graph: ImportGraph, package: str) -> set[str]:
    return {module for module in graph.modules if _is(module, package + ".*")}


def _links(graph: ImportGraph, importer: str, imported: str) -> Iterator[str]:
    for detail in graph.get_import_details(importer=importer, imported=imported):
        yield f"{importer}:{detail['line_number']}: {detail['line_contents'].strip()}"


def _verdict(links: list[str]) -> ContractCheck:
    return ContractCheck(kept=not links, metadata={"links": links})


def _render(check: ContractCheck) -> None:
    for link in check.metadata["links"]:
        output.print_error(f"- {link}", bold=False)
    output.new_line()


class OnlyImports(Contract):
    """`package` imports itself, the standard library less `not_even`, and what is `allowed`."""

    type_name = "only_imports"

    package: Any = fields.StringField()
    allowed: Any = fields.ListField(subfield=fields.StringField(), required=False)
    not_even: Any = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        library = sys.stdlib_module_names - set(self.not_even or ())
        allowed = [*(self.allowed or ()), f"{self.package}.*"]
        links = [
            link
            for importer in sorted(_below(graph, self.package))
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported.partition(".")[0] not in library and not any(_is(imported, name) for name in allowed)
            for link in _links(graph, importer, imported)
        ]
        return _verdict(links)

    def render_broken_contract(self, check: ContractCheck) -> None:
        _render(check)


class ImportedOnlyBy(Contract):
    """Only `importers`, and everything below them, import `package`."""

    type_name = "imported_only_by"

    package: Any = fields.StringField()
    importers: Any = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        allowed = [f"{name}.*" for name in (*self.importers, self.package)]
        links = [
            link
            for imported in sorted(_below(graph, self.package))
            for importer in sorted(graph.find_modules_that_directly_import(imported))
            if not any(_is(importer, name) for name in allowed)
            for link in _links(graph, importer, imported)
        ]
        return _verdict(links)

    def render_broken_contract(self, check: ContractCheck) -> None:
        _render(check)

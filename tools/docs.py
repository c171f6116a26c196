"""`make docs`: the generated pages. With --check, exits 1 and names every page that is not what the code says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from ecs_gpu_recovery.main import EXIT_CODES, app
from tools.project import ROOT

DOCS = ROOT / "docs"
#: Options that mean the same wherever they are; the page tells of them once.
SHARED = ("--backend", "--state", "--json")
MADE = "<!-- Made by `make docs`. Change the code, not this page. -->\n\n"


def commands_page() -> str:
    """Every command of `gpu-recovery`, from its own help."""
    root: Any = typer.main.get_command(app)
    shared: dict[str, Any] = {}
    parts = [MADE, "# The `gpu-recovery` command\n\n", f"{root.help.strip()}\n"]
    for path, command in _walk(root, "gpu-recovery"):
        parts.append(f"\n## `{path}`\n\n{_text(command.help)}\n")
        shared.update({p.opts[0]: p for p in command.params if p.opts[0] in SHARED})
        rows = [row for p in command.params if p.opts[0] not in SHARED and (row := _row(p)) is not None]
        if rows:
            parts += ["\n| option | meaning |\n|---|---|\n", *rows]
    parts.append("\n## Options that most commands have\n\n| option | meaning |\n|---|---|\n")
    parts += [row for name in SHARED if (row := _row(shared[name])) is not None]
    parts.append("\n## Exit codes\n\n| code | meaning |\n|---|---|\n")
    for code, meaning in EXIT_CODES.items():
        parts.append(f"| {code} | {meaning} |\n")
    return "".join(parts)


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            if child.invoke_without_command:
                yield f"{path} {name}", child
            yield from _walk(child, f"{path} {name}")
        else:
            yield f"{path} {name}", child


def _text(text: str | None) -> str:
    return "\n".join(line.strip() for line in (text or "").strip().splitlines())


def _row(parameter: Any) -> str | None:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return None
    said = (getattr(parameter, "help", "") or "").replace("|", "\\|")
    argument = parameter.param_type_name == "argument"
    name = (parameter.metavar or parameter.name.upper()) if argument else ", ".join(parameter.opts)
    return f"| `{name}` | {said} |\n"


def pages() -> dict[Path, Callable[[], str]]:
    from tools import grafana, schema_docs, settings_docs, state_docs

    return {
        **{DOCS / name: make for name, make in schema_docs.PAGES.items()},
        DOCS / "commands.md": commands_page,
        DOCS / "grafana.json": grafana.text,
        DOCS / "settings.md": lambda: MADE + settings_docs.page(),
        DOCS / "states.md": state_docs.page,
    }


def main(arguments: list[str]) -> int:
    stale = []
    for path, make in pages().items():
        text = make()
        if not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.write_text(text)
                print(f"wrote {path.relative_to(ROOT)}")
    if stale and "--check" in arguments:
        print(f"not what the code says any more: {', '.join(map(str, stale))}. Run: make docs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

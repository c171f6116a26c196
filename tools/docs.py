"""`make docs`: the generated pages. With --check, exits 1 and names every page that is not what the code says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from ecs_gpu_recovery.main import EXIT_CODES, app
from tools.project import ROOT

DOCS = ROOT / "docs"
MADE = "<!-- Made by `make docs`. Change the code, not this page. -->\n\n"


#: What most people want, in the order in which they want it.
FIRST = """
```bash
gpu-recovery demo                                   # watch a job break and heal
gpu-recovery up --console 8080                      # the embedded control plane and its console
gpu-recovery submit --any 2 -- python train.py      # a job on two free nodes
gpu-recovery jobs                                   # and: nodes, notices, doctor
gpu-recovery job JOB --watch                        # every decision and why; JOB: an id, its beginning, or a name
gpu-recovery logs JOB --tail 50                     # -f follows, --all shows every attempt
gpu-recovery stop JOB                               # while it runs, in any state
gpu-recovery retry JOB                              # again, from the last checkpoint, as a new job
gpu-recovery node drain NODE --why "new disk"       # no new job gets it, until: node release
gpu-recovery --install-completion                   # Tab completes jobs, nodes and faults
```

`gpu-recovery COMMAND --help` explains every option. `--backend aws` acts on the deployment, `--json` is for scripts.
"""


def commands_page() -> str:
    """Every command of `gpu-recovery` in a clause, from its own help, which has the options and the rest."""
    root: Any = typer.main.get_command(app)
    parts = [
        MADE,
        "# The `gpu-recovery` command\n",
        FIRST,
        "\nThe others (what changes a node or the fleet wants a `--why`):\n\n",
    ]
    for path, command in _walk(root, "gpu-recovery"):
        if f"\n{path} " in FIRST:
            continue
        said = re.split(r"[.:;,] |\.$", " ".join((command.help or "").split()))[0]
        arguments = [_name(p) for p in command.params if p.param_type_name == "argument"]
        name = " ".join([path.removeprefix("gpu-recovery "), *arguments])
        parts.append(f"- `{name}`: {said}\n")
    parts.append("\n## Exit codes\n\n")
    for code, meaning in EXIT_CODES.items():
        parts.append(f"- {code}: {meaning}\n")
    parts.append(
        "\nErrors go to standard error. With `--json` its last line is one object: `error`, `hint` (what to do),"
        " `exit_code`.\n"
    )
    return "".join(parts)


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).replace("|", " or ")


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            if child.invoke_without_command:
                yield f"{path} {name}", child
            yield from _walk(child, f"{path} {name}")
        else:
            yield f"{path} {name}", child


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

"""Pictures for the documentation, taken from the product itself: `python -m tools.pictures`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rich.console import Console

from ecs_gpu_recovery.cli import demo

PICTURES = Path("docs/pictures")
WIDTH = 112


def terminal_picture(fault: str) -> str:
    """A demo run as an SVG. The fonts of the reader's machine are used; nothing is fetched."""
    console = Console(
        record=True,
        width=WIDTH,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        file=sys.stdout,
    )
    demo.console = lambda: console  # type: ignore[attr-defined]
    if demo.run_demo(fault=fault, nodes=4, steps=160, state=None, as_json=False) != 0:
        raise SystemExit("the demo did not end as it should; no picture was taken")
    svg = console.export_svg(title="make demo", unique_id="demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / "demo.svg").write_text(terminal_picture("gpu"))
    print(f"wrote {PICTURES / 'demo.svg'}")


if __name__ == "__main__":
    main()

"""Searches small worlds to their last state: `make model`, or

    python -m tools.model_check                          every world, the deep ones too
    python -m tools.model_check --list                   which there are
    python -m tools.model_check --world "a node dies"    one of them
    python -m tools.model_check --nodes 3 --depth 20     all with three nodes, each to a depth

Prints what was seen of each and, if something that must hold does not, the shortest way there. Exits 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace

from testbed.model.bounds import Bounds
from testbed.model.search import Result, Search
from testbed.model.worlds import ALL, QUICK, THOROUGH

MOST_STATES = 1_000_000


def main(arguments: list[str]) -> int:
    wishes = _parser().parse_args(arguments)
    worlds = _chosen(wishes)
    if wishes.list:
        for name, bounds in worlds.items():
            print(f"{name}: {bounds}")
        return 0
    return report(search(worlds, max_states=wishes.states, max_depth=wishes.depth))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.model_check", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--world", action="append", choices=list(ALL), metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="only the worlds that the tests search")
    parser.add_argument("--nodes", type=int, help="with this many nodes instead of the world's own number")
    parser.add_argument("--failures", type=int, help="with this many tasks that may end badly")
    parser.add_argument("--delays", type=int, help="with this many waits that may run out")
    parser.add_argument("--depth", type=int, help="not further than this many moves from the start")
    parser.add_argument(
        "--states", type=int, default=MOST_STATES, help="not more states per world (default %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="only tell which worlds there are")
    return parser


def _chosen(wishes: argparse.Namespace) -> dict[str, Bounds]:
    names = wishes.world or (list(QUICK | THOROUGH) if wishes.quick else list(ALL))
    changes = {
        name: value
        for name in ("nodes", "failures", "delays")
        if (value := getattr(wishes, name)) is not None
    }
    return {name: replace(ALL[name], **changes) for name in names}


def search(
    worlds: dict[str, Bounds], *, max_states: int | None = None, max_depth: int | None = None
) -> Iterable[Result]:
    """Search one after the other and tell about each at once."""
    for name, bounds in worlds.items():
        result = Search(bounds, max_states=max_states, max_depth=max_depth).run()
        print(f"{name}\n  {result}", flush=True)
        yield result


def report(results: Iterable[Result]) -> int:
    states = transitions = cut = 0
    broken: list[str] = []
    for result in results:
        states += result.states
        transitions += result.transitions
        cut += not result.complete
        broken += [result.violation] if result.violation else []
    print(
        f"{states} states and {transitions} transitions in all"
        + (f"; {cut} worlds were cut short" if cut else "")
    )
    for what in broken:
        print(f"BROKEN: {what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

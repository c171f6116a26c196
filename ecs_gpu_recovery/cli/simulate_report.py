"""How `gpu-recovery simulate` shows what it found: a table for people, JSON for scripts, SVG for slides."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from ..core.errors import Refused
from ..fleet_model import plots
from ..fleet_model.fleet import KINDS, Estimate, Scenario
from ..fleet_model.policies import described
from ..fleet_model.rates import RATES
from ..fleet_model.study import Line, best, by_size, compare, unattended, validate

#: For how long a job is to run without a person.
ALONE_DAYS = 30.0


def study(base: Scenario, *, runs: int, plot: Path | None, as_json: bool) -> None:
    """Run the policy and one change at a time, and tell."""
    lines = compare(base, runs)
    alone = unattended(base, ALONE_DAYS, runs)
    pictures = _draw(plot, base, lines, runs) if plot is not None else []
    if as_json:
        typer.echo(json.dumps(_as_data(base, lines, pictures, alone), indent=2))
    else:
        _show(base, lines, pictures, alone)


def rate_of(text: str) -> float:
    if text in RATES:
        return RATES[text].per_node_day
    try:
        value = float(text)
    except ValueError:
        raise Refused(
            f"{text!r} is no rate: give one of {', '.join(RATES)}, or a number such as 0.005"
        ) from None
    if not 0 < value < 10:
        raise Refused("a rate lies between 0 and 10 failures per node and day")
    return value


def _draw(folder: Path, base: Scenario, lines: list[Line], runs: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = tuple(2**k for k in range(base.nodes.bit_length()) if 2**k <= base.nodes)
    pictures = {
        "time.svg": plots.where_time_goes(lines),
        "job-size.svg": plots.by_job_size(by_size(base, sizes, runs)),
    }
    for name, text in pictures.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in pictures]


def _as_data(base: Scenario, lines: list[Line], pictures: list[str], alone: Estimate) -> dict[str, object]:
    return {
        "unattended_30d": {"share": alone.mean, "error": alone.error},
        "nodes": base.nodes,
        "job_nodes": base.job_nodes,
        "weeks": base.weeks,
        "failures_per_node_day": base.per_node_day,
        "causes": asdict(base.causes),
        "policy": described(base.policy),
        "pictures": pictures,
        "best_change": found.title if (found := best(lines)) is not None else None,
        "lines": [
            {
                "title": line.title,
                "ettr": line.ettr.mean,
                "ettr_error": line.ettr.error,
                "gain": line.gain.mean,
                "gain_error": line.gain.error,
                "lost_gpu_hours_a_week": line.lost_gpu_hours,
                "person_needed_a_week": line.people,
                "time": line.shares,
            }
            for line in lines
        ],
    }


def _show(base: Scenario, lines: list[Line], pictures: list[str], alone: Estimate) -> None:
    console = Console()
    first = lines[0]
    jobs = base.nodes // base.job_nodes
    console.print(
        f"{base.nodes} nodes ({base.nodes * 8:,} GPUs), {jobs} jobs of {base.job_nodes} nodes,"
        f" {base.weeks:g} weeks, {base.per_node_day * 1000:.3g} failures per 1000 node-days"
    )
    console.print(
        f"Effective training time [bold]{first.ettr.mean:.1%}[/]; a failure somewhere every"
        f" {24 / (base.per_node_day * base.nodes):.1f} h, in one job every"
        f" {24 / (base.per_node_day * base.job_nodes):.1f} h"
    )
    console.print(
        f"A job of {base.job_nodes} nodes runs for {ALONE_DAYS:g} days without a person in {alone.mean:.1%} of cases"
        f" (± {alone.error:.1%})",
        highlight=False,
    )
    shares = [(kind, first.shares[kind]) for kind in KINDS[1:]]
    told = [
        f"{kind} {share:.1%}" for kind, share in sorted(shares, key=lambda pair: -pair[1]) if share >= 0.0005
    ]
    console.print(f"The rest: {', '.join(told) or 'nothing'}", highlight=False)
    table = Table(title="One change at a time", title_justify="left", box=None, pad_edge=False)
    table.add_column("change")
    for name in ("ETTR", "gain", "±", "GPU h lost/week", "person/week"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        gain = "" if line is first else f"{100 * line.gain.mean:+.1f}"
        error = "" if line is first else f"{100 * line.gain.error:.1f}"
        table.add_row(
            line.title,
            f"{line.ettr.mean:.1%}",
            gain,
            error,
            f"{line.lost_gpu_hours:,.0f}",
            f"{line.people:.1f}",
        )
    console.print(table)
    console.print("ETTR is effective training time; gains are in points of it, ± one standard error.")
    console.print(advice(lines), highlight=False)
    for name in pictures:
        console.print(f"wrote {name}", highlight=False)


def advice(lines: list[Line]) -> str:
    """What a person would gain by changing one thing, in a sentence."""
    found, maybe = best(lines), best(lines, sure=False)
    luck = ""
    if maybe is not None and (found is None or maybe.gain.mean > found.gain.mean):
        luck = (
            f" {maybe.title} (+{100 * maybe.gain.mean:.1f} points) may be luck: more --runs or --weeks tell."
        )
    if found is None:
        return "The runs are sure of no single change." + (
            luck or " More --runs or --weeks tell smaller gains."
        )
    hours = lines[0].lost_gpu_hours - found.lost_gpu_hours
    gain = f"+{100 * found.gain.mean:.1f} points, {hours:,.0f} GPU hours a week"
    idle = " Until they are needed, spares stand idle." if found.title.startswith("spares") else ""
    return f"Best single change: {found.title} ({gain}).{idle}{luck}"


def agreement(as_json: bool) -> None:
    """The model beside what was published."""
    found = validate()
    if as_json:
        typer.echo(
            json.dumps([{**asdict(one), "error": one.error, "holds": one.holds} for one in found], indent=2)
        )
        return
    table = Table(title="The model beside published figures", title_justify="left", box=None, pad_edge=False)
    for name in ("figure", "published", "ours", "error", "within"):
        table.add_column(name, justify="left" if name == "figure" else "right", no_wrap=True)
    table.add_column("")
    notes = list(dict.fromkeys(one.note for one in found if one.note))
    for one in found:
        verdict = f"{one.tolerance:.0%}" if one.holds else "no"
        mark = f"({notes.index(one.note) + 1})" if one.note else ""
        table.add_row(one.what, f"{one.published:.4g}", f"{one.ours:.4g}", f"{one.error:+.1%}", verdict, mark)
    console = Console()
    console.print(table)
    for number, note in enumerate(notes, 1):
        console.print(f"({number}) {note}", highlight=False)
    missed = [one.what for one in found if not one.holds]
    console.print(
        f"{len(found) - len(missed)} of {len(found)} within the stated error"
        + (f"; not: {'; '.join(missed)}" if missed else ""),
        highlight=False,
    )

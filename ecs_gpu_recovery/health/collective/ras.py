"""`gpu-health ras`: ask a training program's own NCCL which rank the others wait for.

NCCL answers on a port of its own (since 2.24, NCCL_RAS_ADDR), in lines of text. A rank that answers nothing is gone or
stopped; one that has launched fewer collectives lags behind. NCCL is blind where all have launched the same and it does
not end. What it says is evidence: it names a rank, and decides nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.health.judge import report

ADDRESS = "localhost:28028"
NOT_TOLD = 3
_MOST = 16 * 1024 * 1024
_CONNECT_S = 5.0
#: NCCL 2.28 forgets a comma in what it says of a missing rank.
_FORGOTTEN_COMMA = re.compile(r'("nvml_dev":\s*-?\d+)(\s*"status")')
_RANK = re.compile(
    r"^\s*Ranks? (?P<rank>\d+)(?P<what>[^-]*)-- .*managed by process (?P<pid>\d+) on node (?P<host>\S+)",
    re.MULTILINE,
)
_COMM = re.compile(r"^#(?P<group>\d+)-\S+ \((?P<hash>[0-9a-f]+)\) (?P<errors>[A-Z,]+)$", re.MULTILINE)
#: A row of the table of communicators: its group, and how many ranks each of them has.
_ROW = re.compile(r"^ *(\d+) +\d+ +\S+ +\S+ +(\d+) +\d+ +[A-Z,/]+ +[A-Z,]+ *$", re.MULTILINE)
_LAUNCHED = re.compile(r"launched up to operation (\d+)")
#: Ranks that have come as far as each other are counted; those of them that stand out are listed below.
_ALIKE = re.compile(r"^\s*(\d+) ranks have (?:not )?launched")
_KIND = re.compile(r"different (\w+) operation counts")


class NotToldError(Exception):
    """Nobody answers, or what is answered is no report of NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A rank that stands out, by its number in the largest communicator that shows it."""

    rank: int
    host: str
    pid: int
    why: str
    of: int = 0  #: how many ranks that communicator has, where it is told


@dataclass(slots=True)
class _Seen:
    """What a communicator tells of one of its ranks."""

    host: str
    pid: int
    counts: dict[str, int] = field(default_factory=dict)
    missing: str = ""
    error: str = ""


_Ranks = dict[int, _Seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What NCCL said, in short."""

    odd: tuple[Odd, ...] = ()
    errors: tuple[str, ...] = ()
    version: str = ""

    def sentence(self) -> str:
        if self.odd:
            return "; ".join(f"rank {o.rank} (process {o.pid} on {o.host}) {o.why}" for o in self.odd)
        return "no rank stands out" + (f"; {'; '.join(self.errors)}" if self.errors else "")

    def to_json(self) -> dict[str, object]:
        odd = [{"rank": o.rank, "host": o.host, "pid": o.pid, "why": o.why} for o in self.odd]
        return {"nccl": self.version, "odd": odd, "errors": list(self.errors), "what": self.sentence()}


def ask(address: str = ADDRESS, timeout_s: float = 20.0, form: str = "json") -> str:
    """NCCL's own words. Older versions know no JSON and say so; they answer in text then."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as peer:
            peer.settimeout(timeout_s + 5)
            with peer.makefile("rwb") as line:

                def say(text: str) -> str:
                    line.write(f"{text}\n".encode())
                    line.flush()
                    return line.readline(4096).decode(errors="replace").strip()

                hello = say("CLIENT PROTOCOL 2")
                if not hello.startswith("SERVER PROTOCOL"):
                    raise NotToldError(f"{address} is not NCCL: it says {hello[:60]!r}")
                say(f"TIMEOUT {timeout_s:g}")
                if form == "json":
                    say("SET FORMAT json")
                line.write(b"VERBOSE STATUS\n")
                line.flush()
                return line.read(_MOST).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise NotToldError(f"{address}: {error}") from error


def parse(text: str) -> Status:
    """Either form, of any version. Raises NotToldError where it is neither."""
    text = text.lstrip()
    try:
        if text.startswith("{"):
            return _from_json(json.loads(_FORGOTTEN_COMMA.sub(r"\1,\2", text)))
        if "NCCL version" in text:
            return _from_text(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotToldError(f"NCCL's answer is not understood: {error}") from error
    raise NotToldError("this is no answer of NCCL RAS")


def _from_json(data: Mapping[str, Any]) -> Status:
    groups: list[_Ranks] = []
    sizes: list[int] = []
    for comm in data["communicators"]:
        ranks: dict[int, _Seen] = {}
        for row in comm.get("ranks", ()):
            seen = _Seen(
                str(row.get("host", "")), int(row.get("pid", 0)), dict(row.get("collective_counts", {}))
            )
            code = row.get("status", {}).get("async_error", 0)
            seen.error = f"reports error {code}" if code not in (0, 7) else ""  # 7: in progress
            ranks[int(row["rank"])] = seen
        for row in comm.get("missing_ranks", ()):
            status = row.get("status", row)
            why = "is gone" if status.get("considered_dead") else "does not answer"
            ranks[int(row["rank"])] = _Seen(str(row.get("host", "")), int(row.get("pid", 0)), missing=why)
        groups.append(ranks)
        sizes.append(int(comm.get("size", 0)))
    return _judge(groups, sizes, str(data.get("nccl_version", "")))


def _from_text(text: str) -> Status:
    """Only what is wrong is listed there: a communicator that is not named is as it should be."""
    groups: dict[str, _Ranks] = {}
    sizes: dict[str, int] = {}
    rows = {group: int(size) for group, size in _ROW.findall(text)}
    heads = list(_COMM.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        ranks = groups.setdefault(head["hash"], {})
        sizes[head["hash"]] = rows.get(head["group"], 0)
        for paragraph in re.split(r"\n\s*\n", text[head.end() : end]):
            _paragraph(paragraph, ranks)
    version = re.search(r"NCCL version (\S+)", text)
    return _judge(list(groups.values()), list(sizes.values()), version[1] if version else "")


def _paragraph(text: str, ranks: _Ranks) -> None:
    if kind := _KIND.search(text):
        _counts(text, kind[1], ranks)
        return
    for row in _RANK.finditer(text):
        seen = ranks.setdefault(int(row["rank"]), _Seen(row["host"], int(row["pid"])))
        what = row["what"].strip()
        if what.startswith("reported"):
            seen.error = what.replace("reported", "reports", 1)
        elif not what and ("Missing" in text or "considered dead" in text):
            seen.missing = "is gone" if "considered dead" in text else "does not answer"


def _counts(text: str, kind: str, ranks: _Ranks) -> None:
    """How far each has come. Of ranks that are only counted, not named, so many are noted below zero."""
    group, unnamed = 0, dict[int, int]()
    for line in text.splitlines():
        launched = _LAUNCHED.search(line)
        count = int(launched[1]) if launched else 0
        if alike := _ALIKE.match(line):
            group, unnamed[count] = count, int(alike[1])
        elif row := _RANK.match(line):
            told = count if row["what"].strip() else group
            seen = ranks.setdefault(int(row["rank"]), _Seen(row["host"], int(row["pid"])))
            seen.counts[kind] = told
            unnamed[told] = unnamed.get(told, 1) - 1
    below = min([0, *ranks])
    for count, number in unnamed.items():
        for _ in range(number):
            below -= 1
            ranks[below] = _Seen("", 0, {kind: count})


def _judge(groups: Sequence[_Ranks], sizes: Sequence[int], version: str) -> Status:
    """The largest communicator that shows anything is the whole gang, or the nearest to it."""
    errors = [f"rank {rank} {seen.error}" for ranks in groups for rank, seen in ranks.items() if seen.error]
    told = tuple(dict.fromkeys(errors))
    for ranks, size in sorted(zip(groups, sizes, strict=True), key=lambda each: len(each[0]), reverse=True):
        if odd := [*_missing(ranks)] or [*_lagging(ranks)]:
            named = tuple(replace(each, of=size) for each in odd)
            return Status(odd=named, errors=told, version=version)
    return Status(errors=told, version=version)


def _missing(ranks: _Ranks) -> Iterable[Odd]:
    for rank, seen in sorted(ranks.items()):
        if seen.missing:
            yield Odd(rank=rank, host=seen.host, pid=seen.pid, why=seen.missing)


def _lagging(ranks: _Ranks) -> Iterable[Odd]:
    """Those whose counts differ from what most have; where no count is more common, those that launched fewest."""
    counted = {rank: seen for rank, seen in ranks.items() if seen.counts}
    same = Counter(tuple(sorted(seen.counts.items())) for seen in counted.values())
    if len(same) < 2:
        return
    (most, number), (_, second) = same.most_common(2)
    fewest = min(sum(seen.counts.values()) for seen in counted.values())
    for rank, seen in sorted(counted.items()):
        if rank < 0:
            continue
        total = sum(seen.counts.values())
        differs = tuple(sorted(seen.counts.items())) != most if number > second else total == fewest
        if differs:
            behind = max(sum(s.counts.get(k, 0) for k in seen.counts) for s in counted.values()) - total
            why = f"is {behind} collectives behind" if behind else "launched other collectives than the rest"
            yield Odd(rank=rank, host=seen.host, pid=seen.pid, why=why)


def run(argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """The command; returns the exit code."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--address", action="append", metavar="HOST:PORT", help=f"where NCCL answers (default {ADDRESS})")
    add(
        "--timeout",
        type=float,
        default=20.0,
        metavar="S",
        help="how long NCCL may wait for its ranks (default 20)",
    )
    add("--file", type=Path, metavar="FILE", help="read an answer that was kept, and ask nobody")
    add("--text", action="store_true", help="ask for text even where NCCL knows JSON")
    add("--raw", action="store_true", help="print NCCL's own words as well")
    add("--json", action="store_true", help="for programs")
    options = parser.parse_args(argv)
    said, problems = "", []
    for address in options.address or [ADDRESS]:
        try:
            said = (
                options.file.read_text(encoding="utf-8")
                if options.file
                else ask(address, options.timeout, "text" if options.text else "json")
            )
            status = parse(said)
        except (NotToldError, OSError) as error:
            problems.append(str(error))
            continue
        if options.raw:
            report.say(said)
        report.say(json.dumps(status.to_json()) if options.json else status.sentence())
        return 0
    report.say(f"NCCL was not heard: {'; '.join(problems)}")
    return NOT_TOLD

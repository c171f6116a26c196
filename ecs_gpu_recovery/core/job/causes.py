"""Why a job ends, in words: the cause first, with its rank and its node; then what the GPUs say.

The rules decide that a job ends. What is said about it is made here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..messages import NO_NEWS, without
from ..model import Exit, Marker, Rank, Verdict

#: By the number that a shell adds to 128.
_SIGNALS = {
    **{
        1: "SIGHUP",
        2: "SIGINT",
        3: "SIGQUIT",
        4: "SIGILL",
        5: "SIGTRAP",
        6: "SIGABRT",
        7: "SIGBUS",
        8: "SIGFPE",
    },
    **{
        9: "SIGKILL",
        10: "SIGUSR1",
        11: "SIGSEGV",
        12: "SIGUSR2",
        13: "SIGPIPE",
        14: "SIGALRM",
        15: "SIGTERM",
    },
    **{24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS"},
}
#: By SIGKILL, which leaves no time for last words.
_KILLED = 137
#: How ECS and embedded nodes begin the reason of one that took too much memory.
OUT_OF_MEMORY = ("OutOfMemoryError: Container killed due to memory usage", "out of memory")
#: As much of a rank's last words as fits into a headline.
_WORDS = 160


def exit_words(code: int | None) -> str:
    """An exit code as people call it."""
    if code is None:
        return "ended without an exit code"
    signal = _SIGNALS.get(code - 128)
    return f"was killed ({signal})" if signal else f"died with exit code {code}"


def culprit(ranks: Iterable[Rank]) -> Rank:
    """Of those that failed, the one to name: not one whose last words only tell of another's death."""
    return min(ranks, key=lambda rank: (rank.echo, rank.index))


def death(rank: Rank) -> str:
    """How a rank ended, without its last words."""
    if rank.hung:
        return f"{_who(rank)} hung"
    kinds = {Exit.LOST: "was lost", Exit.FROZEN: "froze after a GPU fault"}
    return f"{_who(rank)} {kinds.get(rank.exit) or exit_words(rank.exit_code)}"  # type: ignore[arg-type]


def told(rank: Rank) -> str:
    """How a rank ended, and what it said last."""
    return death(rank) + (f" ({_short(rank.last_words)})" if rank.last_words else "")


def fate(suspects: Sequence[Rank], ranks: Sequence[Rank], say: Callable[[Rank], str] = death) -> str:
    """What happened: the one to name, or the whole gang where none stands out, whose last words are about its stop."""
    whole = len(ranks) > 1 and all(rank.hung for rank in ranks)
    return "the whole gang hung" if whole else say(culprit(suspects))


def incurable(rank: Rank) -> str:
    """An exit code that no GPU fault causes."""
    words = f": {_short(rank.last_words)}" if rank.last_words else ""
    return f"{_who(rank)} {exit_words(rank.exit_code)}, which no reboot cures{words}"


def not_run(rank: Rank, limit_mib: int) -> str:
    """A rank that ran out of memory, or never started."""
    if rank.exit is not Exit.OUT_OF_MEMORY:
        return f"{_who(rank)} {rank.exit}: {rank.exit_reason}"
    reason = without(rank.exit_reason, *OUT_OF_MEMORY, *NO_NEWS)
    limit = f"its limit is {limit_mib} MiB" if limit_mib and "limit" not in reason else ""
    said = "; ".join(filter(None, (limit, reason)))
    return f"{_who(rank)} ran out of memory" + (f": {said}" if said else "")


def at_fault(bad: Sequence[Rank], lost: Sequence[Rank]) -> str:
    stuck = [rank for rank in bad if rank.stuck]
    faulty = [rank for rank in bad if not rank.stuck]
    parts = [f"GPU fault on {names(faulty)}"] if faulty else []
    parts += [f"the task on {names(stuck)} could not be stopped"] if stuck else []
    return "; ".join(parts + ([f"lost {names(lost)}"] if lost else []))


def beyond_repair(dead: Sequence[Rank]) -> str:
    return f"GPU fault that no reboot cures: {names(dead)} must be replaced"


def no_fault(ranks: Sequence[Rank], program: str) -> str:
    """All GPUs are well. `program`: what the driver said of the program, and of no GPU."""
    failed = [rank for rank in ranks if rank.exit in (Exit.SUSPECT, Exit.FROZEN)]
    doubt = [rank for rank in ranks if rank.verdict is Verdict.INCONCLUSIVE]
    parts = [fate(failed, ranks, told)] if failed else []
    parts.append("no GPU fault found")
    parts += [f"{names(doubt)} could not be tested"] if doubt else []
    return "; ".join(parts) + program


def healthy(ranks: Sequence[Rank], marker: Marker | None) -> str:
    """Why a job is started again though all GPUs are well."""
    failed = [rank for rank in ranks if rank.exit in (Exit.SUSPECT, Exit.FROZEN)]
    doubt = [rank for rank in ranks if rank.verdict is Verdict.INCONCLUSIVE]
    killed = bool(failed) and culprit(failed).exit_code == _KILLED
    parts = [fate(failed, ranks, death if killed else told)] if failed else []
    parts.append(f"{names(doubt)} could not be tested" if doubt else "GPUs healthy")
    parts.append("restarted" + (f" after {marker}" if marker is not None else ""))
    return "; ".join(parts)


def stopped(marker: Marker | None) -> str:
    """A gang that was stopped so that ranks could go."""
    return "stopped" + (f" after {marker}" if marker is not None else "") + "; it goes on with other nodes"


def verdicts(ranks: Iterable[Rank]) -> str:
    """What was found, the bad news first; nodes of which the same is to be told are named together."""
    ranks = sorted(ranks, key=lambda rank: rank.verdict is Verdict.HEALTHY)
    return "; ".join(
        f"{names(alike)}: {alike[0].verdict}" + (f" ({alike[0].findings})" if alike[0].findings else "")
        for alike in _alike(ranks)
    )[:2000]


def not_brought_back(ranks: Iterable[Rank]) -> str:
    return "; ".join(
        f"{names(alike)} could not be brought back: {say([alike[0].findings])}" for alike in _alike(ranks)
    )[:2000]


def _alike(ranks: Iterable[Rank]) -> list[list[Rank]]:
    """Ranks with the same verdict and the same findings together: each node's evidence stays its own."""
    groups: dict[tuple[Verdict | None, str], list[Rank]] = {}
    for rank in ranks:
        groups.setdefault((rank.verdict, rank.findings), []).append(rank)
    return list(groups.values())


def last_words(ranks: Sequence[Rank]) -> str:
    """What those that failed said last, and what the cluster says of their end; each by its node if they differ."""
    said: dict[str, list[Rank]] = {}
    for rank in ranks:
        said.setdefault(say((rank.last_words, rank.exit_reason)), []).append(rank)
    said.pop("", None)
    several = len(said) > 1
    return "; ".join(f"{names(who)}: {what}" if several else what for what, who in said.items())[:2000]


def names(ranks: Iterable[Rank]) -> str:
    return ", ".join(r.node for r in ranks)


def say(texts: Iterable[str]) -> str:
    """Each once, and none that says nothing."""
    return "; ".join(dict.fromkeys(text for text in texts if text and not text.startswith(NO_NEWS)))[:2000]


def _who(rank: Rank) -> str:
    return f"rank {rank.index} on {rank.node}"


def _short(words: str) -> str:
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"

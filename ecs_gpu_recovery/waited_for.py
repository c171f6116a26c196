"""Whom the ranks of a gang wait for, by what the NCCL of one of them says."""

from __future__ import annotations

from collections.abc import Sequence

from .core.model import Rank
from .core.witness import Named


def named(said: str, gang: Sequence[Rank]) -> Named | None:
    """The nodes of the ranks that stand out, where NCCL numbers the gang's processes node by node, as launchers do.

    None where it did not answer. A communicator of some of the ranks has numbers of its own, which say nothing here."""
    from .health.collective import ras  # few sweeps need it

    try:
        status = ras.parse(said)
    except ras.NotToldError:
        return None
    odd = [
        gang[each.rank * len(gang) // each.of].node
        for each in status.odd
        if each.of and each.of % len(gang) == 0 and each.rank < each.of
    ]
    some = tuple(dict.fromkeys(odd))
    return Named(odd=some if len(some) < len(gang) else (), what=f"NCCL: {status.sentence()}"[:500])

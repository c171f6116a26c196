"""The driver's own opinion of what a GPU needs, in one vocabulary.

It reaches us as a number (NVML), as words (nvidia-smi) and as a sentence with both (Xid 154). All three name
the same short list, which grew with driver releases.
"""

from __future__ import annotations

import re

BY_NUMBER = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}

_CHANGED = re.compile(
    r"changed\s+(?:from\s+.{0,80}?\b)?to\s+(?:0x([0-9A-Fa-f]{1,8})\b)?"
    r"\s*[\\\"'`“]{0,2}(?:\(([^)]{0,80})\)|([\w ]{0,40}))",
    re.DOTALL | re.IGNORECASE,
)


def from_words(text: str) -> str:
    """The action that words such as "GPU Reset Required" or "drain_and_reset" mean."""
    words = set(re.split(r"[^a-z0-9]+", text.lower()))
    if "imex" in words:
        return "recover_imex_domain"
    if "p2p" in words:
        return "drain_p2p"
    if "drain" in words:
        return "drain_and_reset"
    if "reboot" in words:
        return "system_reboot" if "system" in words else "node_reboot"
    if words & {"reset", "flr"}:  # a function level reset is what newer drivers call the GPU's
        return "bus_reset" if "bus" in words else "gpu_reset"
    return "none" if "none" in words else "unknown"


def from_xid_text(text: str) -> str:
    """The action that an Xid 154 changes to. Words count before the number, which releases may reassign.

    People and programs who retell it leave out what it was before, or all but the wish.
    """
    found = _CHANGED.search(text)
    if not found:
        return "unknown" if "changed" in text.lower() else from_words(text)
    by_words = from_words(found[2] or found[3] or "")
    if by_words != "unknown" or found[1] is None:
        return by_words
    return BY_NUMBER.get(int(found[1], 16), "unknown")

"""DCGM's error numbers: what each is called, how DCGM rates it, and how its message reads.

Facts about DCGM, no policy; they are in `dcgm_codes.toml`. Old releases print only the message, so a number is found
back from its words.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

SEVERITIES: dict[int, str] = dict(enumerate(_FACTS["ratings"]))
NOT_A_NUMBER = frozenset(_FACTS["not_a_number"])
#: Name and rating of each number.
CODES: dict[int, tuple[str, str]] = {
    int(code): (name, rating) for code, (name, rating) in _FACTS["codes"].items()
}
#: Tables and long texts are cut at a fixed width, in the middle of words. So blanks don't count.
_MESSAGES = [(code, re.compile(words.replace(" ", ""), re.IGNORECASE)) for code, words in _FACTS["messages"]]
_COVERS: dict[int, list[int]] = {int(code): hidden for code, hidden in _FACTS["covers"].items()}


def name(code: int) -> str:
    """DCGM's name of the number, or the bare number."""
    return CODES[code][0] if code in CODES else f"code {code}"


def severity(code: int) -> str | None:
    """DCGM's own rating of the number; None for a number newer than this table."""
    return CODES[code][1] if code in CODES else None


def codes_in(text: str) -> list[int]:
    """Every number whose message is found in the text, most telling first."""
    dense = "".join(text.split())
    found = [code for code, pattern in _MESSAGES if pattern.search(dense)]
    extra = {hidden for code in found for hidden in _COVERS.get(code, ())}
    return [code for code in dict.fromkeys(found) if code not in extra]

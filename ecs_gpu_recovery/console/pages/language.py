"""The languages of the pages: English in the code and the templates, others as gettext catalogues in `locale`.

What records say (reasons, evidence) stays as it was written.
"""

from __future__ import annotations

from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path

import polib

LANGUAGES = {"en": "English", "zh": "中文"}
CATALOGUES = Path(__file__).parent.parent / "locale"


@cache
def translations(language: str) -> NullTranslations:
    """Read from the text that translators edit, so that there is no compiled file to be forgotten."""
    if language == "en":
        return NullTranslations()
    return GNUTranslations(BytesIO(polib.pofile(str(CATALOGUES / f"{language}.po")).to_binary()))


def preferred(cookie: str, accept: str) -> str:
    """The person's own choice, or what their browser asks for."""
    if cookie in LANGUAGES:
        return cookie
    wishes: list[tuple[float, str]] = []
    for part in accept.split(",")[:20]:
        name, _, quality = part.strip().partition(";q=")
        try:
            weight = float(quality) if quality else 1.0
        except ValueError:
            weight = 0.0
        wishes.append((weight, name.lower()[:2]))
    for _, name in sorted(wishes, key=lambda wish: -wish[0]):
        if name in LANGUAGES:
            return name
    return "en"

"""One making of a page's regions for everyone who may see the same.

What differs from person to person is not in them: the role is part of the key, and where a form needs its viewer's
own token there stands a placeholder until it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..access.auth import Identity
from ..context import Console
from ..live.stream import CSRF, Part
from . import fragments
from .render import Fragments, Renderer

#: What each page's regions depend on; anything else in an address is not looked at.
ARGS: Mapping[str, tuple[str, ...]] = {
    "overview": (),
    "jobs": ("status", "after"),
    "new": ("nodes",),
    "job": ("job_id",),
    "node": ("name",),
    "alerts": ("before",),
}


async def shared(
    console: Console, renderer: Renderer, page: str, args: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """A page's regions, with `CSRF` in place of the token; `own` puts it in."""
    wanted = ARGS.get(page)
    known = {k: str(v)[:400] for k, v in args.items() if v and (wanted is None or k in wanted)}
    role = renderer.who.role if renderer.who else ""
    viewer = replace(renderer, who=Identity(name="", role=role, csrf=CSRF) if renderer.who else None)

    async def make() -> Fragments:
        made, facts = await fragments.PAGES[page](console, viewer, {**dict.fromkeys(args, ""), **known})
        return {name: Part(html) for name, html in made.items()}, facts

    key = (page, renderer.language, role, json.dumps(known, sort_keys=True))
    found: Fragments = await console.shared.get(key, make)
    return dict(found[0]), found[1]


def own(parts: Mapping[str, str], renderer: Renderer) -> dict[str, Any]:
    """The regions with the viewer's own token in them."""
    token = renderer.who.csrf if renderer.who else ""
    return {name: html.replace(CSRF, token) for name, html in parts.items()}

"""The one person of a console without users: who started it, and has its link.

Everyone on a machine reaches its loopback address. So the console is opened by a token that is new with every start:
programs send it as a bearer, and a browser that comes with it is signed in.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from ...control.console_link import PARAMETER
from .auth import OPERATOR, Identity
from .sessions import COOKIE, SESSION_HOURS, Session, Sessions, session_token


def cookie_name(headers: Headers) -> str:
    """Browsers send a cookie to every port of a host: two consoles on one machine need names of their own."""
    return f"{COOKIE}_{re.sub('[^0-9]', '', headers.get('host', '').rpartition(':')[2])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Tries are not counted: the token can't be guessed, and another user, who comes from the same address, would
    shut the owner out."""

    name: str
    token: str
    sessions: Sessions

    def _is_token(self, word: str) -> bool:
        return hmac.compare_digest(word.encode(errors="replace"), self.token.encode())

    def _who(self, scope: Scope) -> str:
        """No user's name has a blank, so that no session of a console with users is one of these. The port counts:
        an open page gives its cookie to whichever program listens there after the console has ended."""
        return f"owner {self.name} {(scope.get('server') or ('', 0))[1]}"

    def session(self, scope: Scope, headers: Headers) -> Session | None:
        token = session_token(headers, cookie_name(headers))
        found = self.sessions.find(token) if token else None
        return found if found is not None and found.who == self._who(scope) else None

    def identity(self, scope: Scope, headers: Headers, csrf: str) -> Identity | None:
        kind, _, word = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(word.strip()):
            return Identity(name=self.name, role=OPERATOR, csrf=csrf, ambient=False)
        if (session := self.session(scope, headers)) is not None:
            return Identity(name=self.name, role=OPERATOR, csrf=session.csrf, session=True)
        return None

    def by_link(self, scope: Scope, headers: Headers, path: str) -> Response | None:
        """The link becomes a cookie, and the browser goes on without the token: it stays in no history or Referer.

        Lax, because the click may come from another site, such as an editor in the browser.
        """
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for key, value in asked if key == PARAMETER]
        if not given or path.startswith("/api/"):
            return None
        rest = urlencode([(key, value) for key, value in asked if key != PARAMETER])
        response = RedirectResponse(f"/{quote(path.lstrip('/'))}{'?' if rest else ''}{rest}", status_code=303)
        if self._is_token(given[-1]):
            response.set_cookie(
                cookie_name(headers),
                self.sessions.open(self._who(scope))[0],
                max_age=SESSION_HOURS * 3600,
                httponly=True,
                samesite="lax",
                path="/",
            )
        return response

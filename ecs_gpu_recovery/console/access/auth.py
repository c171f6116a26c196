"""Who is asking: password files, sessions, a load balancer's word, and how often one may guess."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import Refused
from .load_balancer import DATA_HEADER, Balancer, NotSigned, name_of

USERS_VARIABLE = "GPU_RECOVERY_CONSOLE_USERS"
VIEWER, OPERATOR = "viewer", "operator"
ROLES = (VIEWER, OPERATOR)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
#: About 50 ms and 16 MiB for each guess.
_N, _R, _P = 2**14, 8, 5
SHORTEST_PASSWORD = 10
#: Tokens begin with this, so that a finder knows what it is.
TOKEN_PREFIX = "gpurec_"  # noqa: S105 (every token begins so)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A person as far as the console is concerned."""

    name: str
    role: str
    csrf: str = ""
    session: bool = False  #: signed in here, so signing out means something
    until: float = 0.0  #: when the load balancer's word on them ends, in seconds since 1970; 0: it does not
    ambient: bool = True  #: the browser sends the proof by itself, so a CSRF token is needed as well

    @property
    def may_act(self) -> bool:
        return self.role == OPERATOR


def hash_password(password: str) -> str:
    """scrypt with its numbers and its salt, in one word."""
    if len(password) < SHORTEST_PASSWORD:
        raise Refused(f"choose a password of at least {SHORTEST_PASSWORD} characters")
    salt = secrets.token_bytes(16)
    return f"scrypt${_N}${_R}${_P}${_b64(salt)}${_b64(_scrypt(password, salt, _N, _R, _P))}"


def new_token() -> tuple[str, str]:
    """A token for a program, and the word to keep of it.

    It is too long to be guessed, so a plain digest will do, and a program does not wait for it as people do.
    """
    token = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
    return token, _kept(token)


def _kept(token: str) -> str:
    return f"sha256${hashlib.sha256(token.encode(errors='replace')).hexdigest()}"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * 1024 * 1024, dklen=32)


def _matches(password: str, stored: str) -> bool:
    _, n, r, p, salt, digest = stored.split("$")
    return hmac.compare_digest(_scrypt(password, _unb64(salt), int(n), int(r), int(p)), _unb64(digest))


@dataclass(frozen=True, slots=True)
class Users:
    """Lines of NAME:ROLE:HASH, of a password or of a program's token. Empty: no one can sign in."""

    known: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)  #: the kept word of each token, and its name

    @classmethod
    def parse(cls, text: str) -> Users:
        known: dict[str, tuple[str, str]] = {}
        for number, raw in enumerate(re.split(r"[\n;]", text), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            name, _, rest = line.partition(":")
            role, _, stored = rest.partition(":")
            if not _NAME.fullmatch(name) or role not in ROLES or not _well_formed(stored):
                raise Refused(
                    f"line {number} of the console's users is not NAME:ROLE:HASH"
                    f" with a role of {' or '.join(ROLES)}:"
                    " make one with  gpu-recovery console-user NAME"
                )
            if name in known:
                raise Refused(f"line {number} of the console's users names {name} a second time")
            known[name] = (role, stored)
        tokens = {stored: name for name, (_, stored) in known.items() if stored.startswith("sha256$")}
        return cls(known, tokens)

    @classmethod
    def load(cls, path: Path | None, env: Mapping[str, str] = os.environ) -> Users:
        """From a file, or from the environment."""
        if path is None:
            return cls.parse(env.get(USERS_VARIABLE, ""))
        try:
            if path.stat().st_mode & 0o007:
                raise Refused(f"{path} can be read by everyone on this machine: chmod 600 {path}")
            return cls.parse(path.read_text())
        except (OSError, UnicodeDecodeError) as exc:
            raise Refused(f"the users file {path} cannot be read: {exc}") from exc

    def role(self, name: str) -> str:
        """Looked up at every request, so that a changed file counts at once; empty for a stranger."""
        return self.known.get(name, ("", ""))[0]

    def check(self, name: str, password: str) -> bool:
        """Takes as long for a name that does not exist."""
        _, stored = self.known.get(name, ("", ""))
        real = stored.startswith("scrypt$")
        right = _matches(password, stored if real else _DUMMY)
        return right and real

    def of_token(self, token: str) -> str:
        """Whose token this is; empty if no user has it. The digest is looked up, so time tells nothing of a token."""
        return self.tokens.get(_kept(token), "") if token.startswith(TOKEN_PREFIX) else ""


def _well_formed(stored: str) -> bool:
    if re.fullmatch(r"sha256\$[0-9a-f]{64}", stored):
        return True
    parts = stored.split("$")
    try:
        return (
            len(parts) == 6
            and parts[0] == "scrypt"
            and int(parts[1]) >= 2**14
            and len(_unb64(parts[5])) == 32
        )
    except ValueError:
        return False


_DUMMY = f"scrypt${_N}${_R}${_P}${_b64(bytes(16))}${_b64(bytes(32))}"


class UserFile:
    """The users as the file says now: read again when it has changed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._users = Users.load(path)
        self._stamp = self._mark()

    def _mark(self) -> tuple[int, int]:
        if self._path is None:
            return (0, 0)
        found = self._path.stat()
        return (found.st_mtime_ns, found.st_ino)

    def __call__(self) -> Users:
        try:
            stamp = self._mark()
            if stamp != self._stamp:
                self._users, self._stamp = Users.load(self._path), stamp
        except (OSError, Refused):
            return Users()  # a users file that is gone or broken lets no one in
        return self._users


class Attempts:
    """How often one may guess, over a sliding window: from one address, and at one name from anywhere.

    An address has few tries, whichever names it tries. A name has more: a guesser with many addresses
    is slowed, and its owner is not shut out by a single one of them.
    """

    def __init__(
        self,
        *,
        most: int = 5,
        most_at_name: int = 25,
        window_s: float = 300.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_at_name = most, max(most, most_at_name)
        self._window, self._now = window_s, now
        self._failed: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, *keys: str) -> float:
        """How long to wait before the next try; 0 when it may come now."""
        with self._lock:
            now = self._now()
            waits = [0.0]
            for key in keys:
                times = self._failed.get(key, deque())
                while times and times[0] <= now - self._window:
                    times.popleft()
                if len(times) >= self._limit(key):
                    waits.append(times[0] + self._window - now)
            return max(waits)

    def _limit(self, key: str) -> int:
        return self._most_at_name if key.startswith("name ") else self._most

    def failed(self, *keys: str) -> None:
        with self._lock:
            if len(self._failed) > 10_000:  # an attacker tries many names; the oldest are forgotten first
                for key in list(self._failed)[:5_000]:
                    del self._failed[key]
            for key in keys:
                self._failed.setdefault(key, deque(maxlen=self._limit(key))).append(self._now())

    def worked(self, *keys: str) -> None:
        with self._lock:
            for key in keys:
                self._failed.pop(key, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A load balancer that signs people in and names them in a header; believed from its addresses only.

    With `balancer`, its signature is checked as well, and nothing else is believed.
    """

    header: str = "x-amzn-oidc-identity"
    addresses: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    operators: frozenset[str] = frozenset()
    balancer: Balancer | None = None

    @classmethod
    def parse(
        cls, header: str, addresses: Iterable[str], operators: Iterable[str], signer: str = ""
    ) -> Proxy:
        try:
            nets = tuple(ipaddress.ip_network(text.strip()) for text in addresses if text.strip())
        except ValueError as exc:
            raise Refused(f"--proxy: {exc}") from exc
        return cls(
            header=header.lower(),
            addresses=nets,
            operators=frozenset(o.strip() for o in operators if o.strip()),
            balancer=Balancer(signer) if signer else None,
        )

    def identity(self, peer: str, headers: Mapping[str, str], csrf: Callable[[str], str]) -> Identity | None:
        """The person that the balancer names; None where it names none, or where it was not the balancer.

        A signature needs no address; without one, the address is all there is.
        """
        if not self.trusts(peer) and (self.addresses or self.balancer is None):
            return None
        until, names = 0.0, [headers.get(self.header, "").strip()]
        if self.balancer is not None:
            try:
                claims = self.balancer.claims(headers.get(DATA_HEADER, ""))
            except NotSigned:
                return None
            until, names = float(claims["exp"]), [name_of(claims), str(claims.get("sub", ""))]
        if not names[0] or not names[0].isprintable():
            return None
        role = OPERATOR if self.operators.intersection(filter(None, names)) else VIEWER
        return Identity(name=names[0][:128], role=role, csrf=csrf(names[0]), until=until)

    def client(self, peer: str, forwarded: str) -> str:
        """The address that the balancer saw. It writes it last; what stands before it, anyone may have written.

        Nothing signs this header, so it is believed from the balancer's addresses only: a guesser who reaches the
        port past the balancer would be a new visitor with every request.
        """
        last = forwarded.rpartition(",")[2].strip()
        if not self.trusts(peer):
            return peer
        try:
            return str(ipaddress.ip_address(last))
        except ValueError:
            return peer

    def trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in net for net in self.addresses)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

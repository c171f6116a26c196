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

from ..core.errors import Refused

USERS_VARIABLE = "GPU_RECOVERY_CONSOLE_USERS"
VIEWER, OPERATOR = "viewer", "operator"
ROLES = (VIEWER, OPERATOR)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
#: About 50 ms and 16 MiB for each guess.
_N, _R, _P = 2**14, 8, 1
SHORTEST_PASSWORD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A person as far as the console is concerned."""

    name: str
    role: str
    csrf: str = ""
    session: bool = False  #: signed in here, so signing out means something
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
    """Lines of NAME:ROLE:HASH. Empty: nobody can sign in with a password."""

    known: Mapping[str, tuple[str, str]] = field(default_factory=dict)

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
            known[name] = (role, stored)
        return cls(known)

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
        """Looked up at every request, so that a changed file counts at once; empty for nobody."""
        return self.known.get(name, ("", ""))[0]

    def check(self, name: str, password: str) -> bool:
        """Takes as long for a name that does not exist."""
        _, stored = self.known.get(name, ("", ""))
        right = _matches(password, stored or _DUMMY)
        return right and bool(stored)


def _well_formed(stored: str) -> bool:
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

    def __init__(self, path: Path | None, env: Mapping[str, str] = os.environ) -> None:
        self._path, self._env = path, env
        self._users = Users.load(path, env)
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
                self._users, self._stamp = Users.load(self._path, self._env), stamp
        except (OSError, Refused):
            return Users()  # a users file that is gone or broken lets nobody in
        return self._users


class Attempts:
    """How often one may guess: per address and per name, over a sliding window."""

    def __init__(
        self, *, most: int = 5, window_s: float = 300.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._window, self._now = most, window_s, now
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
                if len(times) >= self._most:
                    waits.append(times[0] + self._window - now)
            return max(waits)

    def failed(self, *keys: str) -> None:
        with self._lock:
            if len(self._failed) > 10_000:  # somebody tries many names; the oldest are forgotten first
                for key in list(self._failed)[:5_000]:
                    del self._failed[key]
            for key in keys:
                self._failed.setdefault(key, deque(maxlen=self._most)).append(self._now())

    def worked(self, *keys: str) -> None:
        with self._lock:
            for key in keys:
                self._failed.pop(key, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A load balancer that signs people in and names them in a header; believed from its addresses only."""

    header: str = "x-amzn-oidc-identity"
    addresses: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    operators: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, header: str, addresses: Iterable[str], operators: Iterable[str]) -> Proxy:
        try:
            nets = tuple(ipaddress.ip_network(text.strip()) for text in addresses if text.strip())
        except ValueError as exc:
            raise Refused(f"--proxy: {exc}") from exc
        return cls(
            header=header.lower(),
            addresses=nets,
            operators=frozenset(o.strip() for o in operators if o.strip()),
        )

    def identity(self, peer: str, headers: Mapping[str, str], csrf: Callable[[str], str]) -> Identity | None:
        name = headers.get(self.header, "").strip()
        if not name or not self.trusts(peer):
            return None
        role = OPERATOR if name in self.operators else VIEWER
        return Identity(name=name[:64], role=role, csrf=csrf(name))

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

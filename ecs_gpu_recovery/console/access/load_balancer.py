"""The word of an Application Load Balancer that signed a person in: a token, signed with the balancer's own key.

Anyone who reaches the console's port can write a header. Only the balancer can sign one. So the token is believed
if the signature is right, the balancer is the one we were told of, and its time has not passed. Keys come from
AWS's own address for this region and are kept.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ...core.errors import Refused, Transient

DATA_HEADER = "x-amzn-oidc-data"
_ARN = re.compile(
    r"arn:(aws[a-z-]*):elasticloadbalancing:([a-z0-9-]{5,30}):[0-9]{12}:loadbalancer/app/[A-Za-z0-9-]+/[0-9a-f]+"
)
_KEY_ID = re.compile(r"[0-9A-Za-z-]{8,64}")
#: A token is larger than this only if its sender wants us to work.
LARGEST_TOKEN = 16 * 1024
_KEPT_KEYS, _KEPT_FAILURES = 16, 1000
#: A key that can't be had is not asked for again at once, and no more keys than these are asked for in a minute.
_LATER_S, _FETCHES = 60.0, 10


class NotSigned(ValueError):
    """The token is not the balancer's, or not of now. The text says what is wrong with it."""


class BadKey(ValueError):
    """The text is no public key of the curve P-256."""


def key_address(arn: str) -> str:
    """Where AWS publishes the keys of balancers of this region."""
    found = _ARN.fullmatch(arn)
    if found is None:
        raise Refused(f"--proxy-signer: {arn[:120]!r} is not the ARN of an Application Load Balancer")
    partition, region = found[1], found[2]
    if partition == "aws-us-gov":
        return f"https://s3-{region}.amazonaws.com/aws-elb-public-keys-prod-{region}"
    suffix = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    return f"https://public-keys.auth.elb.{region}.{suffix}"


def fetch(address: str) -> str:
    """One key, over TLS from AWS's own address."""
    try:
        with urllib.request.urlopen(address, timeout=3) as reply:  # noqa: S310 (always https)
            return str(reply.read(4096).decode("ascii"))
    except (OSError, urllib.error.URLError, UnicodeDecodeError) as exc:
        raise Transient(f"the load balancer's key can't be had: {exc}") from exc


def read_key(pem: str) -> Any:
    """A public key as AWS gives it, in PEM form."""
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return jwt.get_algorithm_by_name("ES256").prepare_key(pem)
    except (ValueError, UnsupportedAlgorithm, jwt.InvalidKeyError) as exc:
        raise BadKey(f"no public key of the curve P-256: {exc}") from exc


class Balancer:
    """Reads the tokens of one balancer. Safe for many threads."""

    def __init__(
        self,
        arn: str,
        *,
        get: Callable[[str], str] = fetch,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.arn = arn
        self._address = key_address(arn)
        self._get, self._now = get, now
        self._keys: OrderedDict[str, Any] = OrderedDict()
        self._failed: OrderedDict[str, float] = OrderedDict()
        self._fetched: list[float] = []
        self._lock = threading.Lock()

    def claims(self, token: str) -> dict[str, Any]:
        """What the token says of the person. Raises `NotSigned`."""
        import jwt  # of the extra `oidc`: only a console behind such a balancer needs it

        if len(token) > LARGEST_TOKEN:
            raise NotSigned("too long")
        try:
            head = jwt.get_unverified_header(token)
        except jwt.DecodeError as exc:
            raise NotSigned("not a token") from exc
        except jwt.InvalidTokenError as exc:
            raise NotSigned(f"it names no key: {exc}") from exc
        end = self._end(head)
        key_id = head.get("kid")
        if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
            raise NotSigned("it names no key")
        key = self._key(key_id)
        try:
            body = json.loads(jwt.PyJWS().decode(token, key, algorithms=["ES256"]))
        except jwt.InvalidTokenError as exc:
            raise NotSigned("the signature is wrong") from exc
        except ValueError as exc:
            raise NotSigned("not a token") from exc
        if not isinstance(body, dict):
            raise NotSigned("not a token")
        return {**body, "exp": end}

    def _end(self, head: dict[str, Any]) -> float:
        """Until when it counts: this balancer says so in the head, where others say it in the body."""
        if head.get("alg") != "ES256":
            raise NotSigned("not signed with ES256")
        if head.get("signer") != self.arn:
            raise NotSigned("signed by another balancer")
        end = head.get("exp")
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise NotSigned("it has no end")
        if end <= self._now():
            raise NotSigned("its time has passed")
        return end

    def _key(self, key_id: str) -> Any:
        with self._lock:
            if key_id in self._keys:
                return self._keys[key_id]
            now = self._now()
            self._fetched = [at for at in self._fetched if now - at < _LATER_S]
            if self._failed.get(key_id, 0.0) > now or len(self._fetched) >= _FETCHES:
                raise NotSigned("its key is not known")
            self._fetched.append(now)
        try:
            key = read_key(self._get(f"{self._address}/{key_id}"))
        except (Transient, BadKey) as exc:
            with self._lock:
                self._failed[key_id] = self._now() + _LATER_S
                while len(self._failed) > _KEPT_FAILURES:
                    self._failed.popitem(last=False)
            raise NotSigned(f"its key can't be had: {exc}") from exc
        with self._lock:
            self._keys[key_id] = key
            while len(self._keys) > _KEPT_KEYS:
                self._keys.popitem(last=False)
        return key


def name_of(claims: dict[str, Any]) -> str:
    """How people know each other: the address if the provider vouches for it, or the provider's own id."""
    email = claims.get("email")
    if isinstance(email, str) and email and claims.get("email_verified") in (True, "true"):
        return email
    return str(claims.get("sub", ""))

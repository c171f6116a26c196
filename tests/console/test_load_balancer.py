"""A load balancer's word: believed with its signature, and in no other case."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ecs_gpu_recovery.console.access.auth import Proxy
from ecs_gpu_recovery.console.access.load_balancer import (
    DATA_HEADER,
    Balancer,
    NotSigned,
    key_address,
    name_of,
)
from ecs_gpu_recovery.core.errors import Refused, Transient
from tests.console.helpers import USERS, console, csrf_of, still_state

ARN = "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/app/console/50dc6c495c0c9188"
#: Some tokens are made when the tests are collected, long before they run.
LIFE_S = 86_400
KEY_ID = "0f3b1d6e-0000-4000-8000-000000000001"
#: The key that RFC 6979 gives as an example (A.2.5).
SECRET = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721


def _public(number: int) -> ec.EllipticCurvePublicKey:
    return ec.derive_private_key(number, ec.SECP256R1()).public_key()


def _pem(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _sign(message: bytes) -> bytes:
    """With the example's secret."""
    key = ec.derive_private_key(SECRET, ec.SECP256R1())
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()  # the balancer leaves the padding on


def token(claims: Any = None, *, forge: bytes | None = None, **head: Any) -> str:
    names = {
        "alg": "ES256",
        "kid": KEY_ID,
        "signer": ARN,
        "iss": "https://idp",
        "exp": int(time.time()) + LIFE_S,
    }
    said = claims or {"sub": "1234", "email": "olga@example.com", "email_verified": "true"}
    text = f"{_b64(json.dumps({**names, **head}).encode())}.{_b64(json.dumps(said).encode())}"
    return f"{text}.{_b64(_sign(text.encode()) if forge is None else forge)}"


def bent(place: int) -> str:
    """A token with one bit of its signature changed."""
    text, _, signature = token().rpartition(".")
    changed = bytearray(base64.urlsafe_b64decode(signature))
    changed[place] ^= 1
    return f"{text}.{_b64(bytes(changed))}"


def forged(claims: Any) -> str:
    """A token that says something else than what was signed."""
    head, _, signature = token().split(".")
    return f"{head}.{_b64(json.dumps(claims).encode())}.{signature}"


class Keys:
    """AWS's address for keys."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, address: str) -> str:
        self.asked.append(address)
        if not address.endswith(KEY_ID):
            raise Transient("404")
        return _pem(_public(SECRET))


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "no key",
        _pem(ec.generate_private_key(ec.SECP384R1()).public_key()),
        _pem(_public(SECRET)).replace("MF", "MA"),
        _pem(_public(SECRET))[:60],
    ],
)
def test_what_is_no_key_of_the_curve_is_refused(pem: str) -> None:
    with pytest.raises(NotSigned, match="can't be had: no public key of the curve"):
        Balancer(ARN, get=lambda _: pem).claims(token())


def test_the_signature_of_another_key_is_wrong() -> None:
    with pytest.raises(NotSigned, match="signature"):
        Balancer(ARN, get=lambda _: _pem(_public(1))).claims(token())


def test_a_signed_token_is_believed_and_its_key_asked_for_once() -> None:
    keys = Keys()
    balancer = Balancer(ARN, get=keys)
    assert name_of(balancer.claims(token())) == "olga@example.com"
    assert balancer.claims(token({"sub": "77"}))["sub"] == "77"
    assert keys.asked == [f"https://public-keys.auth.elb.us-east-1.amazonaws.com/{KEY_ID}"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (token(forge=bytes(64)), "signature"),
        (token(forge=b""), "signature"),
        (token(forge=bytes(63)), "signature"),
        (token(forge=b"\xff" * 64), "signature"),
        *((bent(place), "signature") for place in (0, 31, 32, 63)),
        (forged({"sub": "1", "email": "root@example.com", "email_verified": True}), "signature"),
        (token(["a", "list"]), "not a token"),
        (token(alg="none", forge=b""), "ES256"),
        (token(alg="HS256"), "ES256"),
        (token(signer=ARN.replace("console", "another")), "another balancer"),
        (token(exp=int(time.time()) - 1), "time has passed"),
        (token(exp="9999999999"), "no end"),
        (token(exp=True), "no end"),
        (token(kid="../../evil"), "names no key"),
        (token(kid=7), "names no key"),
        (token(kid="a-key-that-nobody-has"), "can't be had"),
        ("a.b", "not a token"),
        ("....", "not a token"),
        ("", "not a token"),
        ("é.é.é", "not a token"),
        ("x" * 20_000, "too long"),
    ],
)
def test_every_other_token_is_not(made: str, why: str) -> None:
    with pytest.raises(NotSigned, match=why):
        Balancer(ARN, get=Keys()).claims(made)


def test_a_token_that_was_good_ends_with_its_time() -> None:
    now = [time.time()]
    balancer, made = Balancer(ARN, get=Keys(), now=lambda: now[0]), token()
    balancer.claims(made)
    now[0] += LIFE_S + 1
    with pytest.raises(NotSigned, match="passed"):
        balancer.claims(made)


def test_made_up_keys_do_not_make_us_ask_without_end() -> None:
    keys = Keys()
    balancer = Balancer(ARN, get=keys)
    for number in range(50):
        with pytest.raises(NotSigned):
            balancer.claims(token(kid=f"made-up-{number:04}"))
    assert len(keys.asked) <= 10


def test_each_partition_has_its_own_place_for_keys() -> None:
    assert key_address(ARN.replace("arn:aws:", "arn:aws-cn:")).endswith(".amazonaws.com.cn")
    assert "us-gov" in key_address(
        ARN.replace("arn:aws:", "arn:aws-us-gov:").replace("us-east-1", "us-gov-west-1")
    )
    with pytest.raises(Refused, match="not the ARN"):
        key_address("arn:aws:elasticloadbalancing:us-east-1@evil.example/:1:loadbalancer/app/x/1")


def test_an_address_nobody_vouches_for_is_not_a_name() -> None:
    assert name_of({"sub": "7", "email": "olga@example.com"}) == "7"
    assert name_of({"sub": "7", "email": "olga@example.com", "email_verified": "false"}) == "7"


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[httpx.Client]:
    proxy = Proxy(operators=frozenset({"olga@example.com"}), balancer=Balancer(ARN, get=Keys()))
    with console(still_state(tmp_path), proxy=proxy) as client:
        yield client


def test_a_console_behind_it_believes_the_signature_and_not_the_header(behind: httpx.Client) -> None:
    assert behind.get("/api/whoami", headers={"x-amzn-oidc-identity": "olga@example.com"}).status_code == 401
    who = behind.get("/api/whoami", headers={DATA_HEADER: token()}).json()
    assert (who["name"], who["role"]) == ("olga@example.com", "operator")
    stranger = token({"sub": "999", "email": "olga@example.com", "email_verified": False})
    who = behind.get("/api/whoami", headers={DATA_HEADER: stranger}).json()
    assert (who["name"], who["role"]) == ("999", "viewer")
    assert behind.get("/api/whoami", headers={DATA_HEADER: token(forge=bytes(64))}).status_code == 401
    assert behind.get("/health").status_code == 200


def test_a_person_behind_it_acts_with_the_page_s_token_only(behind: httpx.Client) -> None:
    signed = {DATA_HEADER: token()}
    body = {"why": "fan"}
    assert behind.post("/api/nodes/node-1/drain", json=body, headers=signed).status_code == 403
    sent = {**signed, "x-csrf-token": csrf_of(behind, **signed)}
    reply = behind.post("/api/nodes/node-1/drain", json=body, headers=sent)
    assert reply.json()["hold"]["by"] == "olga@example.com"


def test_a_guesser_who_reaches_the_port_past_it_is_one_visitor_whatever_address_is_written(
    tmp_path: Path,
) -> None:
    proxy = Proxy(balancer=Balancer(ARN, get=Keys()))
    with console(still_state(tmp_path), users=USERS, proxy=proxy) as client:
        form = {"name": "olga", "password": "guess"}
        headers = [{"x-forwarded-for": f"203.0.113.{number}"} for number in range(6)]
        told = [client.post("/signin", data=form, headers=one).status_code for one in headers]
    assert told == [401] * 5 + [429]

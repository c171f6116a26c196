"""Checking an ES256 signature as tokens carry it: ECDSA on the curve P-256 with SHA-256, r and s side by side.

Only a console behind a load balancer that signs people in needs this, so the library for it is an extra of its own
(`oidc`) and is loaded here, not when a console starts.
"""

from __future__ import annotations

from typing import Any

_HALF = 32


class BadKey(ValueError):
    """The text is no public key of this curve."""


def read_key(pem: str) -> Any:
    """A public key as PEM (SubjectPublicKeyInfo)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise BadKey("no public key in PEM form") from exc
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadKey("no key of the curve P-256")
    return key


def verify(key: Any, message: bytes, signature: bytes) -> bool:
    """Whether this signature is the key owner's on this message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if len(signature) != 2 * _HALF:
        return False
    r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
    try:
        key.verify(encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True

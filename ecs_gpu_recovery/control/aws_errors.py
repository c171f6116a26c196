"""What AWS says when it says no, in words that tell a person what to do next.

The functions let such errors out, to the dead letters and an alarm. A person at a terminal can do something about most
of them: sign in, choose a region, ask for rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..aws.errors import NOT_NOW
from ..core.errors import RecoveryError, Refused, Transient
from .backend import NotAllowed

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError, ClientError

DOCTOR = "gpu-recovery doctor --backend aws"
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthorizationError",
        "AuthorizationErrorException",
        "UnauthorizedOperation",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_NOT_VALID = frozenset(
    {
        "AuthFailure",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
#: Errors that boto3 raises by itself, before anything is sent.
_SIGN_IN = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "SSOError",
    "TokenRetrievalError",
    "LoginError",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which account's which things a command speaks of."""

    region: str = ""
    cluster: str = ""
    tables: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)  #: by the code of an error: what to do about it


@contextmanager
def explained(where: Where) -> Iterator[None]:
    """Errors of boto3 leave as ours; those that are ours already pass."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as exc:
        raise of_answer(exc, where) from exc
    except BotoCoreError as exc:
        raise of_boto3(exc, where) from exc


def of_answer(exc: ClientError, where: Where) -> RecoveryError:
    """AWS answered, and the answer was no."""
    code = str(exc.response.get("Error", {}).get("Code", ""))
    message = str(exc.response.get("Error", {}).get("Message", "")).strip()
    status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    operation = str(exc.operation_name)
    if code in where.hints:
        return Refused(where.hints[code])
    if code in NOT_NOW or status >= 500:
        return Transient(f"AWS is busy ({operation}: {code}). Try again in a moment")
    if code in _EXPIRED:
        return Refused("your AWS credentials have expired: sign in again (aws sso login, or new keys)")
    if code in _NOT_VALID:
        return Refused(
            f"AWS does not accept your credentials ({code}): check the keys and the profile with"
            "  aws sts get-caller-identity"
        )
    if code in _DENIED:
        return NotAllowed(
            f"you are not allowed to do this ({operation}): {message or code}. Ask for the operator's or the"
            " viewer's policy: docs/permissions.md lists both"
        )
    if code == "ClusterNotFoundException":
        return Refused(
            f"there is no ECS cluster {where.cluster!r} in {where.region}: set ECS_CLUSTER_NAME and the region"
            " (AWS_REGION). The clusters there are:  aws ecs list-clusters"
        )
    if code in ("ResourceNotFoundException", "ResourceNotFound") and operation in _OF_TABLES:
        names = ", ".join(where.tables) or "of the control plane"
        return Refused(
            f"a table is missing in {where.region} ({names}): deploy the stack there (docs/deployment.md),"
            " choose its region with AWS_REGION, or set JOB_TABLE_NAME, TASK_TABLE_NAME and NODE_TABLE_NAME."
            f" Then:  {DOCTOR}"
        )
    return Refused(f"AWS refused {operation}: {code}: {message}. See:  {DOCTOR}")


_OF_TABLES = frozenset(
    {
        "BatchGetItem",
        "DescribeTable",
        "GetItem",
        "PutItem",
        "Query",
        "TransactWriteItems",
        "UpdateItem",
    }
)


def of_boto3(exc: BotoCoreError, where: Where) -> RecoveryError:
    """Nothing was asked, or nothing answered."""
    names = {kind.__name__ for kind in type(exc).__mro__}
    if names.intersection(_SIGN_IN):
        return Refused(
            f"no usable AWS credentials ({exc}): sign in with  aws configure  or  aws sso login,"
            " or choose a profile with AWS_PROFILE"
        )
    if "NoRegionError" in names:
        return Refused(NO_REGION)
    if names.intersection(("ConnectionError", "HTTPClientError", "EndpointConnectionError")):
        return Transient(
            f"AWS did not answer from {where.region or 'this region'}: {exc}. Look at the network and AWS_REGION,"
            " then try again"
        )
    return Refused(f"the request never got as far as AWS: {exc}")


NO_REGION = (
    "no AWS region is chosen: set AWS_REGION to the region of the stack, or a region in your AWS profile"
    " (aws configure)"
)

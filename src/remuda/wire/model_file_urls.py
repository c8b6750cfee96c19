"""Addresses under which one process may fetch one model file of another, for a few minutes. Pure.

An address is signed over everything that it grants: the file, its content, and the node that it is for. The
key is a secret that the signer and the server of the file share; the address is all that a caller needs.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlencode

from remuda.core.errors import Forbidden, Invalid
from remuda.core.ids import NodeId

FRONTEND_PATH: Final = "/api/model-files/"
WORKER_PATH: Final = "/v1/model-files/"
_PURPOSE: Final = "model-file"
_COMING: Final = "coming"
_FIELDS_MAX: Final = 10
_NUMBER_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class FileGrant:
    """`path` is below the models folder of the server; `expires` is in seconds since 1970."""

    path: str
    size: int
    sha256: str
    node: NodeId
    expires: int


def signed_path(prefix: str, key: str, grant: FileGrant) -> str:
    """Path and query of the address."""
    query = urlencode(
        {
            "sha256": grant.sha256,
            "size": grant.size,
            "node": grant.node,
            "expires": grant.expires,
            "signature": _signature(key, grant),
        }
    )
    return f"{prefix}{quote(grant.path)}?{query}"


def coming_within(address: str, seconds: int) -> str:
    """The address of a file that its server does not have yet, and is to wait for so long."""
    return f"{address}&{_COMING}={seconds}"


def seconds_to_wait(query: str) -> int:
    """How long a server is to wait for a file that is not there; it sets its own bounds."""
    try:
        return _number(parse_qs(query, max_num_fields=_FIELDS_MAX).get(_COMING, [""])[-1])
    except ValueError:
        return 0


def granted(prefix: str, key: str, raw_path: str, query: str, now_s: float) -> FileGrant:
    """What an address grants. Forbidden when it is expired, or not signed with this key."""
    try:
        fields = {name: values[-1] for name, values in parse_qs(query, max_num_fields=_FIELDS_MAX).items()}
        path = unquote_to_bytes(raw_path.removeprefix(prefix)).decode()
    except ValueError:
        raise Invalid("the address cannot be read") from None
    grant = FileGrant(
        path,
        _number(fields.get("size", "")),
        fields.get("sha256", ""),
        NodeId(fields.get("node", "")),
        _number(fields.get("expires", "")),
    )
    given = fields.get("signature", "").encode()
    if not key or not hmac.compare_digest(given, _signature(key, grant).encode()):
        raise Forbidden("missing or invalid signature")
    if now_s >= grant.expires:
        raise Forbidden("this address has expired")
    return grant


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX else 0


def _signature(key: str, grant: FileGrant) -> str:
    parts = (_PURPOSE, grant.path, str(grant.size), grant.sha256, grant.node, str(grant.expires))
    # Lengths first: no two grants are written the same.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.digest(key.encode(), text.encode(), hashlib.sha256).hex()

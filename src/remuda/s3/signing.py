"""AWS Signature Version 4 of one request, or of an address that others may read for a while. Pure.

For what the library cannot do: uploads in parts that another process goes on with, metadata of objects, and
keys that it takes for paths. LocalAI's frontends ask for outputs under keys with an empty part
(`ephemeral/fetch/1//tmp/out.wav`), which other clients take as they are.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNESCAPED: Final = "/-_.~"  # Of a path; letters and digits as well.
_UNRESERVED: Final = "-_.~"


def canonical_query(fields: Mapping[str, str]) -> str:
    """A query, written as it is signed."""
    return "&".join(
        f"{quote(name, safe=_UNRESERVED)}={quote(fields[name], safe=_UNRESERVED)}" for name in sorted(fields)
    )


def object_path(bucket: str, key: str) -> str:
    """The path of the request, escaped as it is signed."""
    return quote(f"/{bucket}/{key}", safe=_UNESCAPED)


@dataclass(frozen=True, slots=True)
class SigningKeys:
    region: str
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def signed_headers(
    method: str,
    host: str,
    path: str,
    headers: Mapping[str, str],
    *,
    keys: SigningKeys,
    payload_sha256: str,
    now: datetime,
    query: str = "",
) -> dict[str, str]:
    """`headers`, which are signed too, and those that authorise the request. `path` and `query` are
    escaped."""
    at = _written(now)
    signed = {
        **{name.lower(): value.strip() for name, value in headers.items()},
        "host": host,
        "x-amz-content-sha256": payload_sha256,
        "x-amz-date": at,
        **({"x-amz-security-token": keys.session_token} if keys.session_token else {}),
    }
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    request = "\n".join((method, path, query, lines, names, payload_sha256))
    signature = _signature(request, at, keys)
    credential = f"Credential={keys.access_key}/{_scope(at, keys.region)}"
    authorization = f"{_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
    return {**signed, "authorization": authorization}


def signed_query(host: str, path: str, *, keys: SigningKeys, valid_s: int, now: datetime) -> str:
    """What makes an address readable with GET by anyone who has it, until it expires."""
    at = _written(now)
    fields = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{keys.access_key}/{_scope(at, keys.region)}",
        "X-Amz-Date": at,
        "X-Amz-Expires": str(valid_s),
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": keys.session_token} if keys.session_token else {}),
    }
    query = canonical_query(fields)
    request = "\n".join(("GET", path, query, f"host:{host}\n", "host", "UNSIGNED-PAYLOAD"))
    return f"{query}&X-Amz-Signature={_signature(request, at, keys)}"


def _written(now: datetime) -> str:
    return now.strftime("%Y%m%dT%H%M%SZ")


def _scope(at: str, region: str) -> str:
    return f"{at[:8]}/{region}/s3/aws4_request"


def _signature(request: str, at: str, keys: SigningKeys) -> str:
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join((_ALGORITHM, at, _scope(at, keys.region), hashed))
    secret = f"AWS4{keys.secret_key}".encode()
    for part in (at[:8], keys.region, "s3", "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return hmac.digest(secret, text.encode(), "sha256").hex()

"""AWS Signature Version 4 of one request. Pure.

For keys that the library cannot name: it takes a key for a path, and LocalAI's frontends ask for outputs
under keys with an empty part (`ephemeral/fetch/1//tmp/out.wav`), which other clients take as they are.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNESCAPED: Final = "/-_.~"  # Of a path; letters and digits as well.


def object_path(bucket: str, key: str) -> str:
    """The path of the request, escaped as it is signed."""
    return quote(f"/{bucket}/{key}", safe=_UNESCAPED)


def signed_headers(
    method: str,
    host: str,
    path: str,
    headers: Mapping[str, str],
    *,
    region: str,
    access_key: str,
    secret_key: str,
    payload_sha256: str,
    now: datetime,
) -> dict[str, str]:
    """`headers`, which are signed too, and those that authorise the request. `path` is escaped."""
    at = now.strftime("%Y%m%dT%H%M%SZ")
    signed = {
        **{name.lower(): value.strip() for name, value in headers.items()},
        "host": host,
        "x-amz-content-sha256": payload_sha256,
        "x-amz-date": at,
    }
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    request = "\n".join((method, path, "", lines, names, payload_sha256))
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    text = "\n".join((_ALGORITHM, at, scope, hashlib.sha256(request.encode()).hexdigest()))
    secret = f"AWS4{secret_key}".encode()
    for part in (at[:8], region, "s3", "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = f"Credential={access_key}/{scope}"
    authorization = f"{_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
    return {**signed, "authorization": authorization}

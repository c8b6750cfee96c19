"""After a request to storage has failed: asks once more, for one byte, and in a way that the storage explains
itself. What the library reports has no more than a status."""

import ssl
from collections.abc import Callable
from datetime import datetime
from typing import Final

import aiohttp
import anyio
from yarl import URL

from remuda.core.errors import RemudaError
from remuda.core.os_errors import connect_trouble
from remuda.s3 import limits
from remuda.s3.account import S3Account
from remuda.s3.refusals import StorageRefusal, explain
from remuda.s3.requests import EMPTY_SHA256, object_url, refusal_of
from remuda.s3.signing import signed_headers

_ONE_BYTE: Final = {"range": "bytes=0-0"}


async def diagnosed(account: S3Account, key: str, now: Callable[[], datetime]) -> RemudaError | None:
    """What is wrong, in plain words; None: nothing is, or it cannot be found out."""
    try:
        with anyio.fail_after(limits.DIAGNOSIS_S):
            refusal = await _asked(account, key, now())
    except TimeoutError:
        refusal = StorageRefusal(silent=f"no answer within {limits.DIAGNOSIS_S:g} s")
    except (aiohttp.ClientError, OSError) as error:
        refusal = _silent(error)
    return explain(refusal, account, key, now())


async def _asked(account: S3Account, key: str, now: datetime) -> StorageRefusal:
    url = URL(object_url(account, key), encoded=True)
    headers, keys = _ONE_BYTE, account.keys
    if keys is not None:
        headers = dict(
            signed_headers(
                "GET", url.authority, url.raw_path, headers, keys=keys, payload_sha256=EMPTY_SHA256, now=now
            )
        )
    timeout = aiohttp.ClientTimeout(total=limits.DIAGNOSIS_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, headers=headers, allow_redirects=False) as reply,
    ):
        body = await reply.content.read(limits.ANSWER_BYTES_MAX) if reply.status >= 300 else b""
        return refusal_of(reply, body.decode(errors="replace"))


def _silent(error: aiohttp.ClientError | OSError) -> StorageRefusal:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error  # type: ignore[assignment]
    if isinstance(cause, OSError | ssl.SSLError):
        trouble = connect_trouble(cause, None)
        return StorageRefusal(silent=trouble.why, hint=trouble.hint)
    return StorageRefusal(silent="it does not speak HTTP as storage does")

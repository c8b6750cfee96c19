"""Signed requests to storage that speaks S3, for what the library cannot do; how it is reached, and what its
refusals mean."""

import io
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import IO, Final

import aiohttp
import anyio
from anyio.to_thread import run_sync
from yarl import URL

from remuda.core.errors import NotFound
from remuda.s3 import limits
from remuda.s3.account import S3Account, StorageFailed
from remuda.s3.refusals import StorageRefusal, explain
from remuda.s3.signing import canonical_query, object_path, signed_headers, signed_query

_GOOD: Final = frozenset({200, 201, 204})
EMPTY_SHA256: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    headers: Mapping[str, str]
    body: str


class SignedRequests:
    """`silence_s`: a request in which nothing moves for so long has failed."""

    def __init__(
        self, account: S3Account, now: Callable[[], datetime], silence_s: float = limits.SILENCE_S
    ) -> None:
        self._account = account
        self._now = now
        self._silence_s = silence_s

    def copy_source(self, key: str) -> str:
        """What the storage is to copy, as the header x-amz-copy-source has it."""
        return object_path(self._account.bucket, key)

    def address(self, key: str, valid_s: int) -> str:
        """Where anyone can read the object for so long."""
        url, keys = self._url(key), self._account.keys
        if keys is None:
            return str(url)
        now = self._now()
        return f"{url}?{signed_query(url.authority, url.raw_path, keys=keys, valid_s=valid_s, now=now)}"

    async def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        body: bytes | IO[bytes] = b"",
        payload_sha256: str = EMPTY_SHA256,
    ) -> Answer:
        """NotFound when there is no such object, bucket or upload. An empty key: the bucket."""
        where = f"object {key} in bucket {self._account.bucket} at {self._account.place}"
        async with self._answered(method, key, query, headers, body, payload_sha256, where) as reply:
            text = (await reply.content.read(limits.ANSWER_BYTES_MAX)).decode(errors="replace")
            if reply.status not in _GOOD:
                refusal = refusal_of(reply, text)
                known = explain(refusal, self._account, key, self._now())
                raise known or _unknown(reply.status, text, where)
            return Answer(dict(reply.headers), text)

    @asynccontextmanager
    async def _answered(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | IO[bytes],
        payload_sha256: str,
        where: str,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        query_text = canonical_query(query)
        url = URL(f"{self._url(key)}{'?' if query_text else ''}{query_text}", encoded=True)
        signed = self._signed(method, url, headers, query_text, payload_sha256)
        size = len(body) if isinstance(body, bytes) else int(headers.get("content-length", 0))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.CONNECT.total_seconds())
        with anyio.CancelScope(deadline=anyio.current_time() + self._silence_s) as scope:
            content = io.BytesIO(body) if isinstance(body, bytes) else body
            data = self._pieces(content, scope) if size else None
            try:
                async with (
                    aiohttp.ClientSession(timeout=timeout) as session,
                    session.request(
                        method,
                        url,
                        data=data,
                        headers={**signed, "content-length": str(size)},
                        allow_redirects=False,
                    ) as reply,
                ):
                    yield reply
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise StorageFailed(f"{where}: {str(error) or 'no answer in time'}") from error
        if scope.cancelled_caught:
            raise StorageFailed(f"{where}: nothing moved for {self._silence_s:g} s")

    async def _pieces(self, body: IO[bytes], scope: anyio.CancelScope) -> AsyncIterator[bytes]:
        """Each that is taken is progress, and so is the last: what follows is the answer."""
        while piece := await run_sync(body.read, limits.STREAM_BYTES):
            yield piece
            scope.deadline = anyio.current_time() + self._silence_s

    def _url(self, key: str) -> URL:
        return URL(object_url(self._account, key), encoded=True)

    def _signed(
        self, method: str, url: URL, headers: Mapping[str, str], query: str, payload_sha256: str
    ) -> Mapping[str, str]:
        keys = self._account.keys
        if keys is None:
            return headers
        return signed_headers(
            method,
            url.authority,
            url.raw_path,
            headers,
            keys=keys,
            payload_sha256=payload_sha256,
            now=self._now(),
            query=query,
        )


def object_url(account: S3Account, key: str) -> str:
    """By path, as storage other than Amazon's wants it."""
    base = account.url or f"https://s3.{account.region}.amazonaws.com"
    return base + object_path(account.bucket, key)


def _unknown(status: int, text: str, where: str) -> NotFound | StorageFailed:
    if status == 404:
        return NotFound(f"not found: {where}")
    return StorageFailed(f"{where}: HTTP {status}: {text[: limits.ERROR_CHARS_MAX]}")


def refusal_of(reply: aiohttp.ClientResponse, body: str) -> StorageRefusal:
    headers = reply.headers
    return StorageRefusal(
        reply.status, body, headers.get("x-amz-bucket-region", ""), _date(headers.get("Date", ""))
    )


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return at.replace(tzinfo=at.tzinfo or UTC)

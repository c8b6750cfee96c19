"""Reads and writes objects of one bucket.

The library is loaded when storage is first used: it is large, and few processes need it.
"""

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync

from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid, NotFound, PeerFailed, RemudaError
from remuda.s3 import limits
from remuda.s3.account import S3Account, StorageFailed, StorageRefused
from remuda.s3.requests import SignedRequests

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import S3Config, S3Store

Give = Callable[[bytes], Awaitable[None]]


class ObjectChanged(StorageFailed):
    """The object was replaced while it was read."""


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    size: int
    etag: str


@dataclass(slots=True)
class _Part:
    start: int
    end: int
    data: bytes = b""
    failure: Exception | None = None
    done: anyio.Event = field(default_factory=anyio.Event)


class S3Storage:
    """`patience` is with one request and its whole body; `retries` are the library's own."""

    def __init__(
        self,
        account: S3Account,
        patience: timedelta = limits.PART,
        retries: int = limits.RETRIES_MAX,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._now = now or SystemClock().now
        self._account = account
        self._patience = patience
        self._retries = retries
        self._opened: S3Store | None = None

    @property
    def _store(self) -> "S3Store":
        if self._opened is None:
            self._opened = _open(self._account, self._patience, self._retries)
        return self._opened

    async def facts(self, key: str) -> ObjectFacts:
        """NotFound when there is no such object, or no such bucket."""
        import obstore

        try:
            with self._explained(key):
                meta = await obstore.head_async(self._store, key)
        except (NotFound, StorageFailed, StorageRefused) as error:  # The answer to HEAD has no words.
            raise await self._diagnosed(key, error) from None
        return ObjectFacts(int(meta["size"]), str(meta["e_tag"] or ""))

    async def read(self, key: str, facts: ObjectFacts, start: int, give: Give) -> None:
        """Give the bytes from `start` on, in order. ObjectChanged when it is no longer the one of `facts`."""
        position, parts = start, deque[_Part]()
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            while position < facts.size or parts:
                while position < facts.size and len(parts) < limits.PARTS_AT_ONCE_MAX:
                    part = _Part(position, min(position + limits.PART_BYTES, facts.size))
                    tasks.start_soon(self._load, key, facts, part)
                    parts.append(part)
                    position = part.end
                part = parts.popleft()
                await part.done.wait()
                if (failure := part.failure) is not None:
                    tasks.cancel_scope.cancel()
                    break
                await give(part.data)
        if failure is not None:
            raise failure

    async def stream(
        self, key: str, facts: ObjectFacts, start: int, piece_bytes: int = limits.STREAM_BYTES
    ) -> AsyncIterator[bytes]:
        """The same in one request, as it arrives: slower, but little is lost when it breaks off."""
        import obstore

        if start >= facts.size:
            return
        with self._explained(key):
            got = await obstore.get_async(self._store, key, options={"range": (start, facts.size)})
            if str(got.meta["e_tag"] or "") != facts.etag:
                raise ObjectChanged(f"the object {key} was replaced while it was read")
            pieces = aiter(got.stream(min_chunk_size=piece_bytes))
        while True:
            with self._explained(key), anyio.fail_after(limits.SILENCE_S):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield bytes(piece)

    async def listed(self, prefix: str) -> dict[str, ObjectFacts]:
        """Every object below a prefix that ends with a slash, in the order of their keys."""
        try:
            return await self._listed(prefix)
        except (StorageFailed, StorageRefused) as error:
            raise await self._diagnosed(prefix, error) from None

    async def _listed(self, prefix: str) -> dict[str, ObjectFacts]:
        import obstore

        found: dict[str, ObjectFacts] = {}
        with self._explained(prefix):
            async for chunk in obstore.list(self._store, prefix):
                found |= {
                    str(one["path"]): ObjectFacts(int(one["size"]), str(one["e_tag"] or "")) for one in chunk
                }
                if len(found) > limits.LISTED_MAX:
                    raise Invalid(f"there are more than {limits.LISTED_MAX} objects below {prefix}")
        return dict(sorted(found.items()))

    async def _diagnosed(self, key: str, error: RemudaError) -> RemudaError:
        """The same, with what is wrong as far as the storage says it."""
        from remuda.s3.diagnosis import diagnosed

        return await diagnosed(self._account, key, self._now) or error

    async def write(self, key: str, file: IO[bytes], created_at: datetime) -> None:
        """The rest of the file. Replaces what is there."""
        import obstore

        created = created_at.isoformat(timespec="seconds").replace("+00:00", "Z")
        if "//" in key:
            await self._write_at_once(key, file, created, created_at)
            return
        with self._explained(key):
            await obstore.put_async(
                self._store,
                key,
                file,
                attributes={"created-at": created},
                chunk_size=limits.SENT_PART_BYTES,
                max_concurrency=limits.PARTS_AT_ONCE_MAX,
            )

    async def _write_at_once(self, key: str, file: IO[bytes], created: str, now: datetime) -> None:
        """A key that the library cannot name."""
        digest, size = await run_sync(_digest, file)
        if size > limits.AT_ONCE_BYTES_MAX:
            raise Invalid(f"invalid key: {key} has an empty part, and its file is too large to be sent so")
        headers = {"content-length": str(size), "x-amz-meta-created-at": created}
        requests = SignedRequests(self._account, lambda: now)
        await requests.send("PUT", key, headers=headers, body=file if size else b"", payload_sha256=digest)

    async def _load(self, key: str, facts: ObjectFacts, part: _Part) -> None:
        try:
            part.data = await self._loaded(key, facts, part)
        except (NotFound, Invalid, PeerFailed) as error:
            part.failure = error
        finally:
            part.done.set()

    async def _loaded(self, key: str, facts: ObjectFacts, part: _Part) -> bytes:
        import obstore

        attempt = 1
        while True:
            try:
                with self._explained(key):
                    got = await obstore.get_async(self._store, key, options={"range": (part.start, part.end)})
                    if str(got.meta["e_tag"] or "") != facts.etag:
                        raise ObjectChanged(f"the object {key} was replaced while it was read")
                    data = await _received(got)
                if len(data) == part.end - part.start:
                    return data
                raise StorageFailed(f"the object {key} was sent in part")
            except ObjectChanged:
                raise
            except StorageFailed:
                if attempt >= limits.ATTEMPTS_MAX:
                    raise
            await anyio.sleep(limits.BACKOFF.delay(attempt, 0.5).total_seconds())
            attempt += 1

    @property
    def _check_keys(self) -> str:
        names = self._account.names
        return f"check {names.key} and {names.secret}, and what they may do"

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        where = f"object {key} in bucket {self._account.bucket} at {self._account.place}"
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"not found: {where}") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError):
            raise StorageRefused(f"access denied: {where}", hint=self._check_keys) from None
        except ValueError as error:
            raise Invalid(f"invalid key: {_first_line(error)}") from None
        except TimeoutError:
            raise StorageFailed(f"{where}: nothing came for {limits.SILENCE_S:g} s") from None
        except (BaseError, OSError) as error:
            raise StorageFailed(f"{where}: {_first_line(error)}") from error


async def _received(got: "GetResult") -> bytes:
    """All of it, however long that takes, for as long as something comes."""
    received: list[bytes] = []
    pieces = aiter(got.stream(min_chunk_size=limits.READ_BYTES))
    while True:
        with anyio.fail_after(limits.SILENCE_S):
            piece = await anext(pieces, None)
        if piece is None:
            return b"".join(received)
        received.append(bytes(piece))


def _digest(file: IO[bytes]) -> tuple[str, int]:
    """Of the rest of the file, and how long that is. Blocks on the disk."""
    start, state = file.tell(), hashlib.sha256()
    while chunk := file.read(limits.READ_BYTES):
        state.update(chunk)
    end = file.tell()
    file.seek(start)
    return state.hexdigest(), end - start


def _open(account: S3Account, patience: timedelta, retries: int) -> "S3Store":
    from obstore.store import S3Store

    config: S3Config = {"region": account.region}
    if account.url:
        config["endpoint"] = account.url
        config["virtual_hosted_style_request"] = False
    if account.session_token is not None:
        config["session_token"] = account.session_token.get_secret_value()
    if account.access_key is None or account.secret_key is None:
        config["skip_signature"] = True
    else:
        config["access_key_id"] = account.access_key.get_secret_value()
        config["secret_access_key"] = account.secret_key.get_secret_value()
    return S3Store(
        account.bucket,
        config=config,
        client_options={
            "allow_http": account.url.startswith("http://"),
            "connect_timeout": limits.CONNECT,
            "timeout": patience,
        },
        retry_config={"max_retries": retries, "retry_timeout": limits.RETRY},
    )


def _first_line(error: Exception) -> str:
    """The library appends the whole exchange, and what it was made of."""
    return str(error).partition("\n")[0][: limits.ERROR_CHARS_MAX]

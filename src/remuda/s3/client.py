"""Reads and writes objects of one bucket.

The library is loaded when storage is first used: it is large, and few processes need it.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, TYPE_CHECKING

import anyio
from pydantic import SecretStr

from remuda.core.errors import Invalid, NotFound, PeerFailed
from remuda.s3 import limits

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

Give = Callable[[bytes], Awaitable[None]]


class StorageFailed(PeerFailed):
    """The same request may work later."""

    code = "storage_failed"


class StorageRefused(PeerFailed):
    """The keys are wrong, or may not do this."""

    code = "storage_refused"
    retryable = False


class ObjectChanged(StorageFailed):
    """The object was replaced while it was read."""


@dataclass(frozen=True, slots=True)
class S3Account:
    url: str
    bucket: str
    region: str = "us-east-1"
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = field(default=None, repr=False)


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
    def __init__(self, account: S3Account) -> None:
        self._account = account
        self._opened: S3Store | None = None

    @property
    def _store(self) -> "S3Store":
        if self._opened is None:
            self._opened = _open(self._account)
        return self._opened

    async def facts(self, key: str) -> ObjectFacts:
        """NotFound when there is no such object, or no such bucket."""
        import obstore

        with self._explained(key):
            meta = await obstore.head_async(self._store, key)
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

    async def write(self, key: str, file: IO[bytes], created_at: datetime) -> None:
        """The rest of the file. Replaces what is there."""
        import obstore

        created = created_at.isoformat(timespec="seconds").replace("+00:00", "Z")
        with self._explained(key):
            await obstore.put_async(
                self._store,
                key,
                file,
                attributes={"created-at": created},
                chunk_size=limits.SENT_PART_BYTES,
                max_concurrency=limits.PARTS_AT_ONCE_MAX,
            )

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
                    data = bytes(await got.bytes_async())
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

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        where = f"object {key} in bucket {self._account.bucket} at {self._account.url}"
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"not found: {where}") from None
        except (PermissionDeniedError, UnauthenticatedError):
            hint = "check storage-access-key and storage-secret-key, and what they may do"
            raise StorageRefused(f"access denied: {where}", hint=hint) from None
        except ValueError as error:
            raise Invalid(f"invalid key: {_first_line(error)}") from None
        except (BaseError, OSError) as error:
            raise StorageFailed(f"{where}: {_first_line(error)}") from error


def _open(account: S3Account) -> "S3Store":
    from obstore.store import S3Store

    config: S3Config = {
        "endpoint": account.url,
        "region": account.region,
        "virtual_hosted_style_request": False,
    }
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
            "timeout": limits.PART,
        },
        retry_config={"max_retries": limits.RETRIES_MAX, "retry_timeout": limits.RETRY},
    )


def _first_line(error: Exception) -> str:
    """The library appends the whole exchange, and what it was made of."""
    return str(error).partition("\n")[0][: limits.ERROR_CHARS_MAX]

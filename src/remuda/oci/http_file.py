"""A file on a web server, readable from any offset. Two versions of it are never mixed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from anyio import fail_after
from anyio.to_thread import run_sync
from pydantic import SecretStr
from yarl import URL

from remuda.oci import limits
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.errors import RegistryFailed, Unreached, VersionChanged
from remuda.oci.transport import (
    BodyStream,
    Response,
    RetryBudget,
    raise_for_status,
    range_header,
    stream_of,
)

T = TypeVar("T")

_NO_HEAD = frozenset({400, 403, 405, 501})  # Also what storage says to a HEAD with a signature for GET.
_FIRST_BYTE = {"Range": "bytes=0-0"}


def _accept_all(answer: Response) -> None:
    """For callers that take whatever is sent."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """What a server says of a file: its size, and what tells this version from others; empty: nothing."""

    size: int | None
    validator: str


class HttpFile:
    """`checked`: a digest tells at the end whether the bytes are right, so that any part may be asked for.

    Otherwise it is continued only while the server vouches that it is the same version. `authorization` goes
    to the URL's own origin only. `named_by` is the server that gave us the URL. `check` refuses answers that
    cannot be the file; `explain` raises what an error means, where it knows better than the status tells.
    """

    def __init__(
        self,
        client: RegistryClient,
        url: URL,
        store: BlobStore | None,
        *,
        checked: bool,
        authorization: SecretStr | None = None,
        named_by: URL | None = None,
        check: Callable[[Response], None] = _accept_all,
        explain: Callable[[Response], Awaitable[None]] | None = None,
    ) -> None:
        self.name = f"{url.origin()}{url.path}"  # Without the query, which may hold a signature.
        self.total: int | None = None
        self._client = client
        self._url = url
        self._store = store
        self._checked = checked
        self._authorization = authorization
        self._named_by = named_by
        self._check = check
        self._explain = explain
        self._validator = ""
        self._pinned = False

    async def look(self) -> FileVersion:
        """Ask for the version that is there now; from here on no other is read (VersionChanged)."""
        found = await small_call(self._client, self.name, self._looked)
        self._validator, self._pinned = found.validator, bool(found.validator)
        self.total = found.size
        return found

    async def _looked(self) -> FileVersion:
        async with self._request("HEAD") as answer:
            if answer.status == 200:
                self._check(answer)
                length = answer.headers.get("Content-Length", "")
                return FileVersion(int(length) if length.isdecimal() else None, _validator_of(answer))
            if answer.status not in _NO_HEAD:
                await self._refuse(answer)
        async with self._request("GET", _FIRST_BYTE) as answer:
            if answer.status not in (200, 206):
                await self._refuse(answer)
            self._check(answer)
            return FileVersion(stream_of(answer, self.name).total, _validator_of(answer))

    @asynccontextmanager
    async def opened(
        self, offset: int, turn: int = 0, avoid: Set[str] = frozenset()
    ) -> AsyncIterator[BodyStream]:
        headers = dict(range_header(offset)) if self._checked or self._validator else {}
        if headers and not self._checked:
            headers["If-Range"] = self._validator
        async with self._request("GET", headers) as answer:
            if answer.status not in (200, 206, 416):
                await self._refuse(answer)
            stream = stream_of(answer, self.name)
            if answer.status != 416:
                self._check(answer)
                self._note_version(_validator_of(answer))
            elif not self._checked and stream.total != offset:
                raise self._changed()
            self.total = stream.total
            if self._store is not None:
                missing = max(stream.total - offset, 0) if stream.total is not None else None
                await run_sync(require_headroom, self._store.root, missing, self._url.name)
            yield stream

    async def _refuse(self, answer: Response) -> NoReturn:
        if self._explain is not None:
            await self._explain(answer)
        await raise_for_status(answer, self.name, self._client.clock.now())

    def _request(
        self, method: str, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Response]:
        return self._client.transport.request(
            method,
            self._url,
            headers=headers,
            authorization=self._authorization,
            named_by=self._named_by,
        )

    def _note_version(self, validator: str) -> None:
        if self._pinned and not self._checked and validator != self._validator:
            raise self._changed()
        self._validator = validator

    def _changed(self) -> VersionChanged:
        return VersionChanged(f"{self.name} was replaced by another version while it was being fetched")


def _validator_of(answer: Response) -> str:
    """What If-Range takes: a strong tag, or a date."""
    tag = answer.headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return tag
    return answer.headers.get("Last-Modified", "")


async def small_call(client: RegistryClient, what: str, call: Callable[[], Awaitable[T]]) -> T:
    """A question with a small answer, asked again while that may help."""
    retries = RetryBudget(client.retry, client.entropy, what)
    while True:
        try:
            with fail_after(limits.SMALL_CALL_S):
                return await call()
        except TimeoutError:
            failure: RegistryFailed = Unreached(f"{what}: no answer within {limits.SMALL_CALL_S:g} s")
        except RegistryFailed as error:
            failure = error
        await retries.pause(failure)

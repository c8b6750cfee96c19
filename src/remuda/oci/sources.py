"""Backends from other places than a registry, converted to the same form: an Image whose layers are in the
store. Whatever demands a checksum gets it checked before anything can use the bytes."""

import hashlib
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from anyio.to_thread import run_sync
from yarl import URL

from remuda.core.errors import NotFound
from remuda.oci import limits
from remuda.oci.blobs import BlobStore, WantedBlob
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.fetch import Open, fetch_blob
from remuda.oci.model import Descriptor, Image, ImageConfig, Platform
from remuda.oci.progress import FileProgress, OnProgress, ignore_progress
from remuda.oci.reference import Archive, Folder, parse_digest
from remuda.oci.saved_images import SavedLayer, open_saved
from remuda.oci.transport import BodyStream, raise_for_status, range_header, stream_of

_ANY_PLATFORM = ImageConfig(Platform("", ""))


async def fetch_archive(
    client: RegistryClient,
    archive: Archive,
    sha256: str,
    store: BlobStore,
    on_progress: OnProgress = ignore_progress,
) -> Image:
    """An archive, remote or local, as an image of one layer. An empty `sha256` means that none is known."""
    digest = parse_digest(f"sha256:{sha256.removeprefix('sha256:').lower()}") if sha256 else None
    if isinstance(archive.location, Path):
        return await _copy_archive(client, archive.location, digest, store, on_progress)
    remote = _Remote(client, URL(archive.location, encoded=True), digest is not None, store)
    wanted = WantedBlob(remote.name, digest or _key(remote.name), digest, None)

    def on_bytes(done: int) -> None:
        on_progress(FileProgress(remote.name, done, remote.total or done))

    actual = await fetch_blob(remote.opened, wanted, store, client.retry, client.entropy, on_bytes)
    return _of_one_layer(remote.name, actual, store)


async def import_image(
    client: RegistryClient,
    path: Path,
    platform: Platform,
    store: BlobStore,
    on_progress: OnProgress = ignore_progress,
) -> Image:
    """An image saved to disk (docker-archive or OCI layout, tar or folder), with its layers in the store."""
    saved = await run_sync(open_saved, path, platform)
    try:
        layers = [await _import_layer(client, path, layer, store, on_progress) for layer in saved.layers]
    finally:
        await run_sync(saved.close)
    return Image(str(path), saved.digest, saved.platform_digest, saved.config, tuple(layers))


def require_folder(folder: Folder) -> Path:
    """The folder itself: there is nothing to fetch."""
    if not folder.path.is_dir():
        raise NotFound(f"{folder.path} is not a folder of this machine")
    return folder.path


class _Remote:
    """An archive on a web server. Without a checksum it is resumed only while the server vouches for it."""

    def __init__(self, client: RegistryClient, url: URL, checked: bool, store: BlobStore) -> None:
        self.name = f"{url.origin()}{url.path}"  # Without the query, which may hold a signature.
        self.total: int | None = None
        self._client = client
        self._url = url
        self._checked = checked
        self._store = store
        self._validator = ""

    @asynccontextmanager
    async def opened(self, offset: int, turn: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        headers = dict(range_header(offset)) if self._checked or self._validator else {}
        if headers and not self._checked:
            headers["If-Range"] = self._validator
        async with self._client.transport.request("GET", self._url, headers=headers) as answer:
            if answer.status not in (200, 206, 416):
                await raise_for_status(answer, self.name, self._client.clock.now())
            stream = stream_of(answer, self.name)
            tag = answer.headers.get("ETag", "")
            self._validator = "" if tag.startswith("W/") else tag
            self.total = stream.total
            missing = max(stream.total - offset, 0) if stream.total is not None else None
            await run_sync(require_headroom, self._store.root, missing, self._url.name)
            yield stream


async def _copy_archive(
    client: RegistryClient, path: Path, digest: str | None, store: BlobStore, on_progress: OnProgress
) -> Image:
    size = await run_sync(_size_of, path)

    def on_bytes(done: int) -> None:
        on_progress(FileProgress(str(path), done, size))

    wanted = WantedBlob(str(path), digest or _key(str(path)), digest, size)
    opened = _local_stream(lambda: path.open("rb"), size)
    await run_sync(require_headroom, store.root, size, str(path))
    return _of_one_layer(
        str(path), await fetch_blob(opened, wanted, store, client.retry, client.entropy, on_bytes), store
    )


async def _import_layer(
    client: RegistryClient, path: Path, layer: SavedLayer, store: BlobStore, on_progress: OnProgress
) -> Descriptor:
    def on_bytes(done: int) -> None:
        on_progress(FileProgress(layer.name, done, layer.size))

    key = layer.digest or _key(f"{path}/{layer.name}")
    wanted = WantedBlob(f"{layer.name} in {path}", key, layer.digest, layer.size)
    await run_sync(require_headroom, store.root, layer.size, str(path))
    opened = _local_stream(layer.open, layer.size)
    digest = await fetch_blob(opened, wanted, store, client.retry, client.entropy, on_bytes)
    return Descriptor(digest, layer.size, layer.media_type)


def _local_stream(opener: Callable[[], BinaryIO], size: int) -> Open:
    @asynccontextmanager
    async def opened(offset: int, turn: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        file = await run_sync(opener)

        async def chunks() -> AsyncIterator[bytes]:
            while chunk := await run_sync(file.read, limits.COPY_BYTES):
                yield chunk

        try:
            await run_sync(file.seek, offset)
            yield BodyStream(offset, size, chunks)
        finally:
            file.close()

    return opened


def _of_one_layer(name: str, digest: str, store: BlobStore) -> Image:
    layer = Descriptor(digest, _size_of(store.path(digest)), "application/vnd.oci.image.layer.v1.tar")
    return Image(name, digest, digest, _ANY_PLATFORM, (layer,))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from error


def _key(place: str) -> str:
    """For bytes whose digest nobody knows yet: not two places at once, and no digest by its form."""
    return f"from:{hashlib.sha256(place.encode()).hexdigest()}"

"""Images from other places than a registry, converted to the same form: an Image whose layers are in the
store. Among them images saved to disk: docker-archive (`docker save`) and OCI layout, each as a tar or as a
folder.

Whatever demands a checksum gets it checked before anything can use the bytes. Entries of saved images are
read by name and never unpacked, so what else an archive holds can do nothing.
"""

import hashlib
import os
import posixpath
import tarfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

from anyio.to_thread import run_sync
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from yarl import URL

from remuda.core.errors import NotFound
from remuda.oci import limits
from remuda.oci.blobs import BlobStore, WantedBlob
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.errors import ContentRefused, PlatformMissing
from remuda.oci.fetch import FileProgress, OnProgress, Open, fetch_blob, ignore_progress
from remuda.oci.http_file import HttpFile
from remuda.oci.model import (
    Descriptor,
    Image,
    ImageConfig,
    ImageIndex,
    ImageManifest,
    Platform,
    Unfit,
    checked_digest,
    choose,
    digest_of_bytes,
    fits,
    parse_config,
    parse_manifest,
    why_unfit,
)
from remuda.oci.reference import Archive, Folder, parse_digest
from remuda.oci.transport import BodyStream

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class SavedLayer:
    name: str
    digest: str | None
    """None where the archive does not say."""
    size: int
    media_type: str
    open: Callable[[], BinaryIO]


@dataclass(frozen=True, slots=True)
class SavedImage:
    """Its layers can be opened until it is closed."""

    digest: str
    platform_digest: str
    config: ImageConfig
    layers: tuple[SavedLayer, ...]
    close: Callable[[], None]


class _Contents(Protocol):
    """Files by name, wherever they are."""

    def size(self, name: str) -> int | None: ...
    def open(self, name: str) -> BinaryIO: ...
    def close(self) -> None: ...


class _SavedEntry(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    config: str = Field(alias="Config")
    layers: Annotated[tuple[str, ...], Field(alias="Layers", max_length=limits.LAYERS_MAX)]


_SAVED_ENTRIES = TypeAdapter(tuple[_SavedEntry, ...])


def open_saved(path: Path, platform: Platform) -> SavedImage:
    """NotFound without a file, ContentRefused when it holds no image, PlatformMissing when none fits."""
    with _explained(path):
        contents: _Contents = _FolderContents(path) if path.is_dir() else _TarContents(path)
        try:
            if contents.size("index.json") is not None:
                return _oci_layout(contents, path, platform)
            if contents.size("manifest.json") is not None:
                return _docker_archive(contents, path, platform)
            raise ContentRefused(f"{path} holds no image: it has neither index.json nor manifest.json")
        except BaseException:
            contents.close()
            raise


def _oci_layout(contents: _Contents, path: Path, platform: Platform) -> SavedImage:
    body = _read(contents, "index.json", limits.MANIFEST_BYTES_MAX, path)
    digests: list[str] = []
    for _ in range(limits.INDEX_DEPTH_MAX + 1):  # The file's own index is one more than a registry has.
        match parse_manifest(body, str(path)):
            case ImageIndex(builds):
                chosen = choose(builds, platform)
                if isinstance(chosen, Unfit):
                    raise PlatformMissing(f"{path}: {chosen.reason}")
                digests.append(chosen.digest)
                body = _read(contents, _blob(chosen.digest), limits.MANIFEST_BYTES_MAX, path)
                checked_digest(body, chosen.digest, f"{_blob(chosen.digest)} in {path}")
            case ImageManifest() as manifest if digests:
                config = _config(contents, _blob(manifest.config.digest), path, platform)
                layers = tuple(
                    SavedLayer(
                        layer.digest,
                        layer.digest,
                        layer.size,
                        layer.media_type,
                        _opener(contents, _blob(layer.digest), path),
                    )
                    for layer in manifest.layers
                )
                return SavedImage(digests[0], digests[-1], config, layers, contents.close)
            case _:
                break
    raise ContentRefused(f"index.json in {path} does not lead to an image")


def _docker_archive(contents: _Contents, path: Path, platform: Platform) -> SavedImage:
    body = _read(contents, "manifest.json", limits.MANIFEST_BYTES_MAX, path)
    try:
        entries = _SAVED_ENTRIES.validate_json(body)
    except ValidationError as error:
        raise ContentRefused(f"manifest.json in {path} is not a list of saved images") from error
    if len(entries) != 1:
        raise ContentRefused(
            f"{path} holds {len(entries)} images", hint="save the one that is wanted into a file of its own"
        )
    saved = entries[0]
    config = _config(contents, saved.config, path, platform)
    if config.diff_ids and len(config.diff_ids) != len(saved.layers):
        raise ContentRefused(f"{path} lists {len(saved.layers)} layers and {len(config.diff_ids)} checksums")
    promised = config.diff_ids or (None,) * len(saved.layers)
    layers = tuple(
        _saved_layer(contents, name, diff_id, path)
        for name, diff_id in zip(saved.layers, promised, strict=True)
    )
    image_id = digest_of_bytes(_read(contents, saved.config, limits.CONFIG_BYTES_MAX, path))
    return SavedImage(image_id, image_id, config, layers, contents.close)


def _saved_layer(contents: _Contents, name: str, diff_id: str | None, path: Path) -> SavedLayer:
    size = contents.size(name)
    if size is None:
        raise ContentRefused(f"{path} lacks {name!r}, which its manifest lists")
    opener = _opener(contents, name, path)
    with opener() as file:
        packed = file.read(4).startswith(_PACKED)
    # The checksums of a saved image are of plain layers; a packed one cannot be compared yet.
    return SavedLayer(name, None if packed else diff_id, size, _LAYER, opener)


def _config(contents: _Contents, name: str, path: Path, platform: Platform) -> ImageConfig:
    config = parse_config(_read(contents, name, limits.CONFIG_BYTES_MAX, path), str(path))
    if not fits(config.platform, platform):
        raise PlatformMissing(f"{path}: {why_unfit([config.platform], platform)}")
    return config


def _read(contents: _Contents, name: str, bytes_max: int, path: Path) -> bytes:
    size = contents.size(name)
    if size is None:
        raise ContentRefused(f"{path} lacks {name!r}")
    if size > bytes_max:
        raise ContentRefused(f"{name!r} in {path} is larger than {bytes_max} bytes")
    with contents.open(name) as file:
        return file.read()


def _opener(contents: _Contents, name: str, path: Path) -> Callable[[], BinaryIO]:
    def opened() -> BinaryIO:
        if contents.size(name) is None:
            raise ContentRefused(f"{path} lacks {name!r}, which its manifest lists")
        return contents.open(name)

    return opened


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


class _FolderContents:
    def __init__(self, root: Path) -> None:
        self._root = root

    def size(self, name: str) -> int | None:
        path = self._inside(name)
        return path.stat().st_size if path is not None and path.is_file() else None

    def open(self, name: str) -> BinaryIO:
        path = self._inside(name)
        assert path is not None, "asked for its size before"
        return path.open("rb")

    def close(self) -> None:
        pass

    def _inside(self, name: str) -> Path | None:
        """None for what leaves the folder, by its name or by a link."""
        if "\0" in name:
            return None
        root = os.path.realpath(self._root)
        path = os.path.realpath(os.path.join(root, name))
        return Path(path) if path.startswith(f"{root}{os.sep}") else None


class _TarContents:
    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        self._tar = tarfile.open(path, "r:gz" if packed else "r:")  # noqa: SIM115 - closed with the image.
        self._members: dict[str, tarfile.TarInfo] = {}
        for number, member in enumerate(self._tar):
            if number >= limits.ARCHIVE_MEMBERS_MAX:
                raise ContentRefused(f"{path} has more than {limits.ARCHIVE_MEMBERS_MAX} entries")
            self._members[posixpath.normpath(member.name)] = member

    def size(self, name: str) -> int | None:
        member = self._member(name)
        return member.size if member is not None else None

    def open(self, name: str) -> BinaryIO:
        member = self._member(name)
        assert member is not None, "asked for its size before"
        file = self._tar.extractfile(member)
        assert file is not None, "it is a plain file"
        return file  # type: ignore[return-value] # typeshed says IO[bytes]

    def close(self) -> None:
        self._tar.close()

    def _member(self, name: str) -> tarfile.TarInfo | None:
        """A plain file, or what a link points to: layers that repeat are saved as links to the first."""
        name = posixpath.normpath(name)
        member = self._members.get(name)
        if member is not None and member.issym():
            target = posixpath.join(posixpath.dirname(name), member.linkname)
            member = self._members.get(posixpath.normpath(target))
        return member if member is not None and member.isreg() else None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ContentRefused(f"{path} is not a tar archive that can be read: {error}") from error
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror or error}") from error


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
    remote = HttpFile(client, URL(archive.location, encoded=True), store, checked=digest is not None)
    wanted = WantedBlob(remote.name, digest or place_key(remote.name), digest, None)

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


async def _copy_archive(
    client: RegistryClient, path: Path, digest: str | None, store: BlobStore, on_progress: OnProgress
) -> Image:
    size = await run_sync(_size_of, path)

    def on_bytes(done: int) -> None:
        on_progress(FileProgress(str(path), done, size))

    wanted = WantedBlob(str(path), digest or place_key(str(path)), digest, size)
    opened = local_stream(lambda: path.open("rb"), size)
    await run_sync(require_headroom, store.root, size, str(path))
    return _of_one_layer(
        str(path), await fetch_blob(opened, wanted, store, client.retry, client.entropy, on_bytes), store
    )


async def _import_layer(
    client: RegistryClient, path: Path, layer: SavedLayer, store: BlobStore, on_progress: OnProgress
) -> Descriptor:
    def on_bytes(done: int) -> None:
        on_progress(FileProgress(layer.name, done, layer.size))

    key = layer.digest or place_key(f"{path}/{layer.name}")
    wanted = WantedBlob(f"{layer.name} in {path}", key, layer.digest, layer.size)
    await run_sync(require_headroom, store.root, layer.size, str(path))
    opened = local_stream(layer.open, layer.size)
    digest = await fetch_blob(opened, wanted, store, client.retry, client.entropy, on_bytes)
    return Descriptor(digest, layer.size, layer.media_type)


def local_stream(opener: Callable[[], BinaryIO], size: int | None) -> Open:
    """Reads what `opener` opens, from any offset."""

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


def place_key(place: str) -> str:
    """For bytes whose digest is not known yet: not two places at once, and no digest by its form."""
    return f"from:{hashlib.sha256(place.encode()).hexdigest()}"

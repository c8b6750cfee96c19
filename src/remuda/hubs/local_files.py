"""Files and folders of the frontend's own machine."""

import os
import stat
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from pathlib import Path

from anyio.to_thread import run_sync

from remuda.core.errors import Invalid, NotFound
from remuda.hubs.model import Offer, RemoteFile
from remuda.models.files import FILES_MAX, path_fault
from remuda.models.gguf import parts_of
from remuda.models.source_refs import LocalPath
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.disk import require_headroom
from remuda.oci.errors import VersionChanged
from remuda.oci.sources import local_stream
from remuda.oci.transport import BodyStream


class LocalSupplier:
    """A file is copied: its owner may change it at any time. Changed meanwhile it is VersionChanged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = ""
        self._size = 0

    @property
    def name(self) -> str:
        return str(self._path)

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> Offer:
        self._size, self._version = await run_sync(_version, self._path)
        await run_sync(require_headroom, store.root, self._size, self.name)
        return Offer(self._size, self._version)

    @asynccontextmanager
    async def opened(self, offset: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        await self._check_unchanged()
        async with local_stream(lambda: self._path.open("rb"), self._size)(offset, 0, frozenset()) as stream:

            async def chunks() -> AsyncIterator[bytes]:
                async for chunk in stream.chunks():
                    yield chunk
                await self._check_unchanged()

            yield BodyStream(stream.offset, stream.total, chunks)

    async def _check_unchanged(self) -> None:
        if (self._size, self._version) != await run_sync(_version, self._path):
            raise VersionChanged(f"{self._path} was changed while it was being read")


def list_files(source: LocalPath) -> tuple[RemoteFile, ...]:
    """A file with the other parts of its model, or all files of a folder. Blocks on the disk."""
    path = Path(source.path)
    if path.is_dir():
        return tuple(_walk(path))
    return tuple(_remote(path.with_name(name), name) for name in parts_of(path.name))


def _walk(folder: Path) -> list[RemoteFile]:
    """Hidden files and folders belong to tools (.git, .cache) and are left out; so are links to folders."""
    found: list[RemoteFile] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(root) / name
            found.append(_remote(path, path.relative_to(folder).as_posix()))
            if len(found) > FILES_MAX:
                raise Invalid(f"{folder} has more than {FILES_MAX} files", hint="name the model's own folder")
    if not found:
        raise NotFound(f"{folder} has no files")
    return found


def _remote(path: Path, name: str) -> RemoteFile:
    if fault := path_fault(name):
        raise Invalid(f"{path} cannot be used: {fault}", hint="rename the file")
    size, _ = _version(path)
    return RemoteFile(name, size, "", (str(LocalPath(str(path))),))


def _version(path: Path) -> tuple[int, str]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # Opening a pipe would wait for a writer.
            raise Invalid(f"{path} is neither a file nor a folder")
        with path.open("rb"):
            pass
    except OSError as error:
        raise NotFound(
            f"{path} cannot be read: {error.strerror}", hint="it must be on the machine of the frontend"
        ) from error
    return status.st_size, f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"

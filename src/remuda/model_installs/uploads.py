"""Files that people upload to this frontend, until an install has made a model of them. What has arrived is
on the disk, so an upload can be resumed after any break, also after the frontend was killed. Nothing of it is
in the folder of models.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.from_thread import check_cancelled
from anyio.to_thread import run_sync
from pydantic import TypeAdapter, ValidationError

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Conflict, Invalid, NotFound, RequestIncomplete, Unavailable
from remuda.host.folder import write_private
from remuda.hubs.model import AskRoom, RemoteFile, Resolved
from remuda.model_installs import upload_rules as rules
from remuda.model_installs.library import ModelLibrary
from remuda.model_installs.ports import ModelHub
from remuda.model_installs.upload_rules import AnnouncedFile, UploadProgress
from remuda.models.source_refs import HubModel, ModelSource, UploadedFiles
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.disk import Writeback, appending, disk_trouble_explained
from remuda.oci.errors import ContentRefused

log = structlog.get_logger(__name__)

_NOTE: Final = TypeAdapter(AnnouncedFile)
_OVER: Final = "over"  # A mark in the folder of an upload: its install has ended, and nothing needs it.
_READ_BYTES: Final = 1 << 20
_PREFIX: Final = "upload:"


class ChecksumWrong(ContentRefused):
    """As the protocol has it."""

    http_status = 460


class _GrowingUpload:
    """One file that is being written, by one request at a time."""

    def __init__(self, path: Path, file: AnnouncedFile) -> None:
        self._file = file
        self._folder = path.parent
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise Unavailable("another process writes to this upload") from None
        self.size = os.lseek(self._descriptor, 0, os.SEEK_END)
        self._writeback = Writeback(self._descriptor, self.size)

    def append(self, data: bytes) -> None:
        """DiskFull when it does not fit; what did fit counts and is kept."""
        view = memoryview(data)
        what = f"the upload of {self._file.path}"
        with disk_trouble_explained(what, self._folder, self._file.size - self.size):
            while view:
                written = os.write(self._descriptor, view)
                self.size += written
                view = view[written:]
        self._writeback.reached(self.size)

    def cut_to(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self.size = os.lseek(self._descriptor, size, os.SEEK_SET)

    def close(self) -> None:
        """What was written is still there after a power cut."""
        try:
            os.fdatasync(self._descriptor)
        finally:
            os.close(self._descriptor)


@dataclass(slots=True)
class _Writer:
    """A request that brings bytes. Cancelling `receiving` makes it keep what it has."""

    receiving: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class ModelUploads:
    """Of this frontend alone: other frontends have uploads of their own."""

    def __init__(self, library: ModelLibrary, clock: Clock, entropy: Entropy) -> None:
        self._library = library
        self._root = library.blobs.root / "uploads"
        self._clock = clock
        self._entropy = entropy
        self._writers: dict[str, _Writer] = {}
        self._changing = anyio.Lock()

    def new_id(self) -> str:
        return self._entropy.uuid()

    async def create(self, wanted: AnnouncedFile) -> UploadProgress:
        """The upload of this file: a new one, or the one that was begun before under the same id. DiskFull,
        with the numbers, where it does not fit beside what else is on its way."""
        async with self._changing:
            return await run_sync(self._create, wanted)

    async def listing(self) -> list[UploadProgress]:
        """What is not installed yet."""
        return await run_sync(lambda: list(self._all()))

    async def files(self, upload: str) -> list[UploadProgress]:
        """NotFound for an upload that this frontend does not have."""
        found = await run_sync(lambda: list(self._of(upload)))
        if not found:
            raise NotFound(
                f"this frontend has no upload {upload[:80]!r}",
                hint="it may have expired, or another frontend has it; begin it anew",
            )
        return found

    async def look(self, file_id: str) -> UploadProgress:
        upload, _, key = file_id.partition(".")
        found = next((one for one in await self.files(upload) if one.file.key == key), None)
        if found is None:
            raise NotFound(f"upload {upload} has no such file", hint="begin it anew")
        return found

    async def append(
        self,
        file_id: str,
        offset: int,
        chunks: AsyncIterator[bytes],
        *,
        announced: int | None = None,
        checksum: bytes | None = None,
    ) -> UploadProgress:
        """Write a part. What came of it before a failure is kept, unless the part is not what its checksum
        says, or goes beyond the whole."""
        await self.look(file_id)
        async with self._alone(file_id) as writer:
            before = await self.look(file_id)
            rules.check_part(before, offset, announced)
            if before.complete:
                return before
            growing = await run_sync(self._opened, before)
            try:
                await self._receive(growing, before, chunks, writer, checksum)
            finally:
                with anyio.CancelScope(shield=True):
                    await run_sync(growing.close)
                    await run_sync(self._touch, before.file)
        return await self.look(file_id)

    async def discard(self, upload: str, key: str = "") -> None:
        """One file, or without `key` all that belongs to the upload."""
        for one in await self.files(upload):
            if key in ("", one.file.key):
                async with self._alone(one.file.id):
                    await run_sync(self._remove, one.file)

    async def complete(self, upload: str) -> list[UploadProgress]:
        """Its files, all of which are here. Conflict, with what is missing, where they are not."""
        found = await self.files(upload)
        rules.check_complete(upload, found)
        async with self._changing:  # It is about to be installed, perhaps once more.
            await run_sync(self._touch, found[0].file)
        return found

    async def over(self, upload: str) -> None:
        """Its install has ended and will not be tried again: the next sweep removes it."""
        with suppress(OSError):
            await run_sync((self._root / upload / _OVER).touch)

    async def sweep(self, needed: Collection[str]) -> None:
        """Remove what has expired or is over, except for uploads that operations still need."""
        async with self._changing:
            await run_sync(self._sweep, needed)

    # What an install takes.

    async def resolve(self, source: UploadedFiles) -> Resolved:
        files = [one.file for one in await self.complete(source.upload)]
        return Resolved(source, source.upload, tuple(_remote(file) for file in files))

    async def take(self, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes) -> str:
        """Have it in the blob store, and answer its digest. ContentRefused for other bytes than promised."""
        upload, _, path = file.urls[0].removeprefix(_PREFIX).partition("/")
        found = next((one for one in await self.files(upload) if one.file.path == path), None)
        if found is None or not found.complete:
            raise NotFound(f"{path} of the upload {upload} is not here any more", hint="upload it again")
        return await run_sync(self._adopted, found, file, blobs, on_bytes, abandon_on_cancel=False)

    def _adopted(self, found: UploadProgress, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes) -> str:
        place = self._data(found.file)
        sha256 = _hashed(place, on_bytes)
        promised = file.sha256 or found.file.sha256
        if promised and sha256 != promised:
            raise ContentRefused(
                f"{found.file.path} arrived with the checksum {sha256}, and not {promised}",
                hint="the file was changed during the upload; upload it again",
            )
        digest = f"sha256:{sha256}"
        if blobs.find(digest) is None and not blobs.adopt(place, digest, verified=True):
            raise ContentRefused(f"{found.file.path} cannot be linked within {blobs.root}")
        return digest

    # On the disk: all of this blocks.

    def _create(self, wanted: AnnouncedFile) -> UploadProgress:
        (self._root / wanted.upload / _OVER).unlink(missing_ok=True)
        there = list(self._all())
        before = rules.check_creation(wanted, there)
        if before is not None:
            self._touch(before.file)
            return self._progress(before.file)
        folder = self._root / wanted.upload
        if not self._linked(wanted):
            missing = rules.missing_bytes(wanted, there)
            also = ", with all other unfinished uploads," if missing > wanted.size else ""
            self._library.check_room(f"the upload of {wanted.path}{also}", missing, missing)
            with disk_trouble_explained(f"the upload of {wanted.path}", self._root, wanted.size):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._data(wanted).touch(mode=0o600)
        write_private(self._note(wanted), _NOTE.dump_json(wanted).decode())  # Last: with it, it is there.
        self._touch(wanted)
        return self._progress(wanted)

    def _linked(self, wanted: AnnouncedFile) -> bool:
        """Whether the very same content is here already, of another model or an earlier upload."""
        blob = self._library.blobs.find(f"sha256:{wanted.sha256}") if wanted.sha256 else None
        if blob is None or blob.stat().st_size != wanted.size:
            return False
        try:
            self._data(wanted).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._data(wanted).unlink(missing_ok=True)
            self._data(wanted).hardlink_to(blob)
        except OSError:
            return False
        return True

    def _opened(self, at: UploadProgress) -> _GrowingUpload:
        with disk_trouble_explained(f"the upload of {at.file.path}", self._root, at.file.size - at.offset):
            growing = _GrowingUpload(self._data(at.file), at.file)
        if growing.size != at.offset:
            growing.close()
            raise Conflict(f"{at.file.path} has {growing.size} bytes", hint="ask with HEAD where to go on")
        return growing

    def _all(self) -> Iterator[UploadProgress]:
        for folder in sorted(self._root.glob("*")):
            if not (folder / _OVER).exists():
                yield from self._of(folder.name)

    def _of(self, upload: str) -> Iterator[UploadProgress]:
        if not upload or "/" in upload or upload.startswith("."):
            return
        for note in sorted((self._root / upload).glob("*.json")):
            try:
                file = _NOTE.validate_json(note.read_bytes())
                yield self._progress(file)
            except (FileNotFoundError, ValidationError):  # Removed meanwhile, or of a later release.
                continue

    def _progress(self, file: AnnouncedFile) -> UploadProgress:
        touched = datetime.fromtimestamp(self._note(file).stat().st_mtime, UTC)
        return UploadProgress(file, self._data(file).stat().st_size, touched + rules.IDLE_MAX)

    def _touch(self, file: AnnouncedFile) -> None:
        """Used just now: what expires is counted from here."""
        now = self._clock.now().timestamp()
        with suppress(FileNotFoundError):
            (self._root / file.upload / _OVER).unlink(missing_ok=True)
            os.utime(self._note(file), (now, now))

    def _remove(self, file: AnnouncedFile) -> None:
        self._note(file).unlink(missing_ok=True)
        self._data(file).unlink(missing_ok=True)
        try:
            self._note(file).parent.rmdir()
        except OSError as error:  # It has other files.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def _sweep(self, needed: Collection[str]) -> None:
        now = self._clock.now()
        for folder in self._root.glob("*"):
            files = list(self._of(folder.name))
            if folder.name in needed or any(one.file.id in self._writers for one in files):
                continue
            expired = all(one.expires_at <= now for one in files)
            if expired or (folder / _OVER).exists():
                shutil.rmtree(folder, ignore_errors=True)
                log.info("upload_removed", upload=folder.name, expired=expired)

    def _data(self, file: AnnouncedFile) -> Path:
        return self._root / file.upload / f"{file.key}.data"

    def _note(self, file: AnnouncedFile) -> Path:
        return self._root / file.upload / f"{file.key}.json"

    # Receiving.

    @asynccontextmanager
    async def _alone(self, file_id: str) -> AsyncIterator[_Writer]:
        """A newer request takes over: the caller of the one before has most often lost its connection, which
        we have not noticed yet."""
        try:
            with anyio.fail_after(rules.TAKEOVER_S):
                while (other := self._writers.get(file_id)) is not None:
                    other.receiving.cancel()
                    await other.ended.wait()
        except TimeoutError:
            raise Unavailable("an earlier part of this file is still being written") from None
        if len(self._writers) >= rules.WRITERS_MAX:
            raise Unavailable(f"{rules.WRITERS_MAX} files are being uploaded; try again later")
        writer = self._writers[file_id] = _Writer()
        try:
            yield writer
        finally:
            del self._writers[file_id]
            writer.ended.set()

    async def _receive(
        self,
        growing: _GrowingUpload,
        before: UploadProgress,
        chunks: AsyncIterator[bytes],
        writer: _Writer,
        checksum: bytes | None,
    ) -> None:
        hashed = None if checksum is None else hashlib.sha256()
        async with appending(growing) as appender:
            with writer.receiving:
                while chunk := await _next(chunks):
                    if appender.size + len(chunk) > before.file.size:
                        break
                    if hashed is not None:
                        hashed.update(chunk)
                    await appender.give(chunk)
        if writer.receiving.cancelled_caught:
            raise Conflict("another request goes on with this upload")
        if chunk:
            await run_sync(growing.cut_to, before.offset)
            raise Invalid(f"the body goes beyond the {before.file.size} bytes of Upload-Length")
        if hashed is not None and hashed.digest() != checksum:
            await run_sync(growing.cut_to, before.offset)
            raise ChecksumWrong("the body is not what Upload-Checksum says", hint="send this part again")


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    """Empty at the end."""
    try:
        with anyio.fail_after(rules.SILENCE_S):
            async for chunk in chunks:
                if chunk:
                    return chunk
    except TimeoutError:
        raise RequestIncomplete(
            f"no byte came for {rules.SILENCE_S:.0f} s; what came before is kept"
        ) from None
    return b""


def _remote(file: AnnouncedFile) -> RemoteFile:
    return RemoteFile(file.path, file.size, file.sha256, (f"{_PREFIX}{file.upload}/{file.path}",))


def _hashed(place: Path, on_bytes: OnBytes) -> str:
    hashed, done = hashlib.sha256(), 0
    with place.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            check_cancelled()
            hashed.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return hashed.hexdigest()


def uploaded(source: str) -> str:
    """The id of the upload that a source names; empty: it is another kind of source."""
    return source.removeprefix(_PREFIX) if source.startswith(_PREFIX) else ""


def is_uploaded(file: RemoteFile) -> bool:
    return bool(file.urls) and bool(uploaded(file.urls[0]))


class HubsAndUploads:
    """Implements ports.ModelHub: what was uploaded here, and all else from the hubs."""

    def __init__(self, hubs: ModelHub, uploads: ModelUploads) -> None:
        self._hubs = hubs
        self._uploads = uploads

    async def resolve(self, source: ModelSource, room: AskRoom) -> Resolved:
        if isinstance(source, UploadedFiles):
            return await self._uploads.resolve(source)
        return await self._hubs.resolve(source, room)

    async def snapshot(self, source: HubModel) -> Resolved:
        return await self._hubs.snapshot(source)

    async def fetch(self, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes) -> str:
        if is_uploaded(file):
            return await self._uploads.take(file, blobs, on_bytes)
        return await self._hubs.fetch(file, blobs, on_bytes)

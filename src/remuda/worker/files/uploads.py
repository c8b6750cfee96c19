"""Takes in a file: whole, or a range of it that continues what arrived before.

One upload at a time writes to a file. A newer one takes over from one that is still waiting for bytes: its
caller has most often lost the connection, which we have not noticed yet.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.entropy import Entropy
from remuda.core.errors import Internal, Invalid, RequestIncomplete, TooLarge, Unavailable
from remuda.oci.disk import appending, require_headroom
from remuda.oci.errors import disk_full
from remuda.worker.files import limits
from remuda.worker.files.areas import FileAreas, FoundFile, find_in
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import FilePlace, partial_name, whole_name
from remuda.worker.files.partial_file import PartialFile
from remuda.worker.files.sidecars import adopt, remove_partials
from remuda.worker.files.upload_rules import (
    Accept,
    AllThere,
    ContentRange,
    Existing,
    OtherContent,
    PartialFacts,
    WrongStart,
    judge,
)

log = structlog.get_logger(__name__)

ReceiveBody = Callable[[], Awaitable[MutableMapping[str, Any]]]
WriteBytes = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Stored:
    """200: the file is whole."""

    local_path: str


@dataclass(frozen=True, slots=True)
class Continues:
    """308: so much of it is there. `gave_up`: not all of this request was taken."""

    size: int
    gave_up: bool = False


UploadOutcome = Stored | Continues | WrongStart | OtherContent


class _Ending(Enum):
    WHOLE = auto()
    LOST = auto()  # The caller is gone.
    STALLED = auto()
    OVERLONG = auto()
    TAKEN_OVER = auto()


@dataclass(slots=True)
class _Upload:
    """One that is under way. Cancelling `receiving` makes it keep what it has."""

    receiving: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class EphemeralUse:
    """How many bytes of request inputs are on the disk; counted anew by each sweep."""

    def __init__(self) -> None:
        self.bytes = 0


class Uploads:
    def __init__(
        self, areas: FileAreas, hashes: Hashes, entropy: Entropy, ephemeral: EphemeralUse | None = None
    ) -> None:
        self._areas = areas
        self._hashes = hashes
        self._entropy = entropy
        self._ephemeral = ephemeral or EphemeralUse()
        self._under_way: dict[FilePlace, _Upload] = {}

    async def put(
        self,
        place: FilePlace,
        wanted: ContentRange | None,
        sha256: str,
        announced: int | None,
        receive: ReceiveBody,
    ) -> UploadOutcome:
        """Without `wanted` the body is the whole file. `announced` is the length of the body, if known."""
        if announced is not None and announced > limits.BODY_BYTES_MAX:
            raise _too_large()
        if wanted is not None and announced is not None and announced > wanted.length:
            raise Invalid("the body is longer than its Content-Range")
        await run_sync(self._areas.refuse_checksum, place)
        async with self._alone(place) as upload:
            if wanted is None:
                return await self._whole(place, sha256, announced, receive, upload)
            return await self._range(place, wanted, sha256, receive, upload)

    async def remove(self, place: FilePlace) -> None:
        """A file of a request, whole or not. NotFound when there is none."""
        async with self._alone(place):
            size = await run_sync(self._areas.remove, place)
        if place.ephemeral:
            self._ephemeral.bytes = max(self._ephemeral.bytes - size, 0)

    @asynccontextmanager
    async def _alone(self, place: FilePlace) -> AsyncIterator[_Upload]:
        try:
            with anyio.fail_after(limits.TAKEOVER_S):
                while (other := self._under_way.get(place)) is not None:
                    other.receiving.cancel()
                    await other.ended.wait()
        except TimeoutError:
            raise Unavailable("another upload of this file is being finished") from None
        if len(self._under_way) >= limits.UPLOADS_AT_ONCE_MAX:
            raise Unavailable(f"{limits.UPLOADS_AT_ONCE_MAX} uploads are under way; try again later")
        upload = self._under_way[place] = _Upload()
        try:
            yield upload
        finally:
            del self._under_way[place]
            upload.ended.set()

    async def _range(
        self, place: FilePlace, wanted: ContentRange, sha256: str, receive: ReceiveBody, upload: _Upload
    ) -> UploadOutcome:
        begun = await run_sync(self._begin, place, wanted, sha256)
        if not isinstance(begun, tuple):
            return begun
        partial, target = begun
        try:
            if partial.size == wanted.total:
                return await self._finish(place, partial, target)
            ending = await _receive_into(partial, receive, upload, wanted.length)
            if ending is _Ending.OVERLONG:
                await run_sync(partial.cut_to, wanted.start)
                raise Invalid("the body is longer than its Content-Range")
            if ending is _Ending.LOST:
                raise Internal("the connection was lost; what arrived is kept")
            if ending is not _Ending.WHOLE:
                return Continues(partial.size, gave_up=True)
            if partial.size <= wanted.end:
                raise Invalid("the body is shorter than its Content-Range; what arrived is kept")
            if not wanted.last:
                return Continues(partial.size)
            return await self._finish(place, partial, target)
        finally:
            partial.close()

    async def _whole(
        self, place: FilePlace, sha256: str, announced: int | None, receive: ReceiveBody, upload: _Upload
    ) -> UploadOutcome:
        partial = await run_sync(self._begin_whole, place, announced)
        try:
            ending = await _receive_into(partial, receive, upload, limits.BODY_BYTES_MAX)
            match ending:
                case _Ending.WHOLE:
                    return await self._finish(place, partial, sha256)
                case _Ending.OVERLONG:
                    raise _too_large()
                case _Ending.LOST:
                    raise Internal("the connection was lost")
                case _:
                    raise RequestIncomplete("the upload was given up: no bytes arrived, or another began")
        finally:
            with suppress(OSError):
                partial.discard()

    async def _finish(self, place: FilePlace, partial: PartialFile, target: str) -> Stored:
        reading = None if partial.hashed else self._hashes.threads
        digest = await run_sync(partial.digest, limiter=reading)
        if target and digest != target:
            await run_sync(partial.discard)
            log.warning("upload_refused", file=self._areas.local_path(place), sha256=digest, expected=target)
            raise Invalid(f"hash mismatch: expected {target}, got {digest}")
        await run_sync(partial.publish, digest)
        path = self._areas.local_path(place)
        log.info("file_received", file=path, size=partial.size, sha256=digest)
        return Stored(path)

    def _begin(
        self, place: FilePlace, wanted: ContentRange, sha256: str
    ) -> tuple[PartialFile, str] | WrongStart | OtherContent:
        """Look, decide and prepare, in one thread. Blocks on the disk."""
        tree = self._areas.tree(place)
        with tree.open_folder(place.parts[:-1], make=True) as folder:
            found = find_in(tree, folder, place, self._hashes)
            verdict = judge(wanted, sha256, _existing(found))
            if isinstance(verdict, WrongStart):
                return verdict
            if isinstance(verdict, OtherContent):
                remove_partials(folder, place.name)
                return verdict
            entry = _prepared(folder, place, found, verdict)
            expected = wanted.total if isinstance(verdict, AllThere) else wanted.start
            self._require_room(place, wanted.total - expected)
            partial = self._opened(folder, place, entry, wanted.total)
        if partial.size != expected:  # Something else wrote to it.
            partial.close()
            return WrongStart(partial.size)
        return partial, verdict.target

    def _begin_whole(self, place: FilePlace, announced: int | None) -> PartialFile:
        tree = self._areas.tree(place)
        with tree.open_folder(place.parts[:-1], make=True) as folder:
            find_in(tree, folder, place, self._hashes)
            self._require_room(place, announced)
            entry = whole_name(place.name, self._entropy.token(12))
            return self._opened(folder, place, entry, announced or 0)

    def _opened(self, folder: int, place: FilePlace, entry: str, total: int) -> PartialFile:
        return PartialFile(
            folder,
            place.name,
            entry,
            where=self._areas.tree(place).path,
            what=f"the upload of {place.name}",
            total=total,
            hashes=self._hashes,
        )

    def _require_room(self, place: FilePlace, size: int | None) -> None:
        path = self._areas.tree(place).path
        what = f"the upload of {place.name}"
        require_headroom(path, size, what)
        if place.ephemeral:
            left = limits.EPHEMERAL_BYTES_MAX - self._ephemeral.bytes
            if (size or 0) > left:
                raise disk_full(what, path / place.parts[0], size or 0, max(left, 0))
            self._ephemeral.bytes += size or 0


def _existing(found: FoundFile) -> Existing:
    found_partial = found.partial
    partial = None if found_partial is None else PartialFacts(found_partial.size, found_partial.target)
    if found.whole is None:
        return Existing(partial)
    return Existing(partial, found.whole.size, found.whole.sha256)


def _prepared(folder: int, place: FilePlace, found: FoundFile, verdict: Accept | AllThere) -> str:
    """The name of the partial file, with what goes on in it and nothing else."""
    if found.partial is not None and (isinstance(verdict, AllThere) or not verdict.restart):
        return adopt(folder, place.name, found.partial, verdict.target)
    remove_partials(folder, place.name)
    return partial_name(place.name, verdict.target)


async def _receive_into(
    partial: PartialFile, receive: ReceiveBody, upload: _Upload, bytes_max: int
) -> _Ending:
    """However it ends, what has arrived is in the file."""
    async with appending(partial) as appender:
        ending = _Ending.TAKEN_OVER
        with upload.receiving:
            ending = await _receive_body(receive, appender.give, bytes_max)
    return ending


async def _receive_body(receive: ReceiveBody, give: WriteBytes, bytes_max: int) -> _Ending:
    gathered, received = _Gathered(give), 0
    try:
        while True:
            message: MutableMapping[str, Any] | None = None
            with anyio.move_on_after(limits.GATHER_S if gathered.size else limits.STALL_S):
                message = await receive()
            if message is None:
                if not gathered.size:
                    return _Ending.STALLED
                await gathered.write()
                continue
            if message["type"] == "http.disconnect":
                return _Ending.LOST
            body: bytes = message.get("body", b"")
            received += len(body)
            if received > bytes_max:
                return _Ending.OVERLONG
            await gathered.add(body)
            if not message.get("more_body"):
                return _Ending.WHOLE
    finally:
        if gathered.size:
            with anyio.CancelScope(shield=True):
                await gathered.write()


class _Gathered:
    """Bytes on their way to the disk, which gets many at once where they come fast. What comes slowly is
    written soon: a worker that is killed loses what it has gathered."""

    def __init__(self, give: WriteBytes) -> None:
        self.size = 0
        self._give = give
        self._chunks: list[bytes] = []
        self._written_at = 0.0

    async def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.size += len(data)
        late = anyio.current_time() - self._written_at >= limits.GATHER_S
        if self.size >= limits.WRITE_BYTES or late:
            await self.write()

    async def write(self) -> None:
        data, self._chunks, self.size = b"".join(self._chunks), [], 0
        self._written_at = anyio.current_time()
        await self._give(data)


def _too_large() -> TooLarge:
    return BodyTooLarge(f"the body is larger than {limits.BODY_BYTES_MAX >> 30} GiB")


class BodyTooLarge(TooLarge):
    """As LocalAI's workers answer it."""

    http_status = 500

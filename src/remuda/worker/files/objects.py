"""`files.ensure / stage / temp / listdir`: files between this worker and the object storage of the fleet.

Subscribed only where storage is configured. What is fetched lies in the cache folder under its key, and is
used from then on without another look at the storage, as LocalAI's workers have it.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Final, Protocol

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid, NotFound, Rejected
from remuda.core.os_errors import os_reason
from remuda.oci.disk import appending, require_headroom
from remuda.s3.client import ObjectChanged, ObjectFacts
from remuda.wire import subjects
from remuda.wire.files import (
    FilesEnsure,
    FilesEnsureReply,
    FilesListdir,
    FilesListdirReply,
    FilesStage,
    FilesStageReply,
    FilesTemp,
    FilesTempReply,
)
from remuda.worker.commands.dispatch import Answering, Command
from remuda.worker.files import limits
from remuda.worker.files.areas import FileAreas
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import (
    STAGING_TMP,
    Area,
    FilePlace,
    check_object_key,
    checked_parts,
    partial_name,
    place_of,
)
from remuda.worker.files.partial_file import PartialFile
from remuda.worker.files.sidecars import remove_other_partials
from remuda.worker.files.tree import NotAFolder, Tree, list_files

log = structlog.get_logger(__name__)

_MALFORMED: Final = "invalid request"
_OUTSIDE: Final = "path outside allowed directories"


class SharedStorage(Protocol):
    """Raises NotFound, or a PeerFailed that says what is wrong."""

    async def facts(self, key: str) -> ObjectFacts: ...

    async def read(
        self, key: str, facts: ObjectFacts, start: int, give: Callable[[bytes], Awaitable[None]]
    ) -> None: ...

    async def write(self, key: str, file: IO[bytes], created_at: datetime) -> None: ...


class ObjectFiles:
    def __init__(
        self, areas: FileAreas, hashes: Hashes, storage: SharedStorage, clock: Clock, entropy: Entropy
    ) -> None:
        self._areas = areas
        self._hashes = hashes
        self._storage = storage
        self._clock = clock
        self._entropy = entropy
        self._fetching: dict[FilePlace, anyio.Event] = {}
        self._at_once = anyio.CapacityLimiter(limits.OBJECTS_AT_ONCE_MAX)

    def commands(self) -> Sequence[Answering]:
        return (
            Command(subjects.files_ensure, FilesEnsure, self.ensure, FilesEnsureReply, _MALFORMED),
            Command(subjects.files_stage, FilesStage, self.stage, FilesStageReply, _MALFORMED),
            Command(subjects.files_temp, FilesTemp, self.temp, FilesTempReply, _MALFORMED),
            Command(subjects.files_listdir, FilesListdir, self.listdir, FilesListdirReply, _MALFORMED),
        )

    async def ensure(self, request: FilesEnsure) -> FilesEnsureReply:
        place = FilePlace(Area.CACHE, checked_parts(request.key))
        while (other := self._fetching.get(place)) is not None:
            await other.wait()
        done = self._fetching[place] = anyio.Event()
        try:
            with _disk_trouble():
                if not await run_sync(self._is_there, place):
                    async with self._at_once:
                        await self._fetch(place, request.key)
        finally:
            del self._fetching[place]
            done.set()
        return FilesEnsureReply(local_path=self._areas.local_path(place))

    async def stage(self, request: FilesStage) -> FilesStageReply:
        check_object_key(request.key)
        tree, parts = self._allowed(request.local_path)
        async with self._at_once:
            with _disk_trouble():
                try:
                    file = await run_sync(_opened, tree, parts)
                except Invalid:
                    raise Invalid(_OUTSIDE) from None
            with file:
                await self._storage.write(request.key, file, self._clock.now())
        log.info("file_staged", file=request.local_path, object=request.key)
        return FilesStageReply(key=request.key)

    async def temp(self, _: FilesTemp) -> FilesTempReply:
        name = f"localai-staging-{self._entropy.token(12)}.tmp"
        with _disk_trouble():
            path = await run_sync(self._areas.temporary, Area.CACHE, (STAGING_TMP,), name)
        return FilesTempReply(local_path=path)

    async def listdir(self, request: FilesListdir) -> FilesListdirReply:
        try:
            place = place_of(request.key_prefix, otherwise=Area.CACHE, folder=True)
            with _disk_trouble():
                files = await run_sync(list_files, self._areas.tree(place), place.parts)
        except NotAFolder as error:
            raise Rejected(error.message) from None
        except Invalid:
            raise Invalid("invalid key prefix") from None
        return FilesListdirReply(files=tuple(files))

    def _is_there(self, place: FilePlace) -> bool:
        """Makes the cache as well."""
        with self._areas.make(Area.CACHE).open_folder(place.parts[:-1], make=True):
            pass
        try:
            with self._areas.tree(place).open_file(place.parts):
                return True
        except NotFound:
            return False

    async def _fetch(self, place: FilePlace, key: str) -> None:
        for reading in range(1, limits.OBJECT_READINGS_MAX + 1):
            facts = await self._storage.facts(key)
            partial = await run_sync(self._partial, place, facts)
            try:
                async with appending(partial) as appender:
                    await self._storage.read(key, facts, partial.size, appender.give)
                await run_sync(partial.publish, "")
                log.info("object_fetched", object=key, size=facts.size)
                return
            except ObjectChanged:
                await run_sync(partial.discard)
                if reading == limits.OBJECT_READINGS_MAX:
                    raise
            finally:
                partial.close()

    def _partial(self, place: FilePlace, facts: ObjectFacts) -> PartialFile:
        """What came of this very object before, to go on with."""
        tree = self._areas.tree(place)
        version = hashlib.sha256(f"{facts.size} {facts.etag}".encode()).hexdigest()
        entry = partial_name(place.name, version)
        with tree.open_folder(place.parts[:-1], make=True) as folder:
            remove_other_partials(folder, place.name, entry)
            what = f"the object {'/'.join(place.parts)}"
            partial = PartialFile(
                folder, place.name, entry, where=tree.path, what=what, total=facts.size, hashes=self._hashes
            )
        try:
            if partial.size > facts.size:
                partial.cut_to(0)
            require_headroom(tree.path, facts.size - partial.size, what)
        except BaseException:
            partial.close()
            raise
        return partial

    def _allowed(self, path: str) -> tuple[Tree, tuple[str, ...]]:
        for area in (Area.CACHE, Area.MODELS):
            tree = self._areas.trees[area]
            parts = tree.parts_of(path)
            if parts is not None:
                try:
                    return tree, checked_parts("/".join(parts))
                except Invalid:
                    break
        raise Invalid(_OUTSIDE)


def _opened(tree: Tree, parts: Sequence[str]) -> IO[bytes]:
    with tree.open_file(parts) as descriptor:
        return os.fdopen(os.dup(descriptor), "rb")


@contextmanager
def _disk_trouble() -> Iterator[None]:
    """An OSError as a refusal in words."""
    try:
        yield
    except OSError as error:
        raise Rejected(os_reason(error)) from error

"""Model files that this worker has fetched, as its reports tell of them, and `files.drop`, which removes some
of them to make room: never one that a loaded model needs, that a load has needed since the frontend looked,
or that has changed.
"""

import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, NotFound
from remuda.core.os_errors import os_reason
from remuda.models.files import path_fault
from remuda.oci.blobs import BlobStore
from remuda.oci.reference import parse_digest
from remuda.wire.files import FilesDrop, FilesDropReply, KeptFile, UnusedFile, WantedFile
from remuda.wire.nodes import ArrivedFile, ModelFile
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import checked_parts
from remuda.worker.files.sidecars import file_facts, remove_file
from remuda.worker.files.tree import NotAFolder, Tree, remove_empty_folders
from remuda.worker.staging.placed import NOT_PLACED, PlacedFile, PlacedFiles
from remuda.worker.staging.placing import store_root
from remuda.worker.staging.unplaced import UnplacedFiles

log = structlog.get_logger(__name__)

DROPPED_MAX: Final = 2_000  # In one request.
_NOTED_EVERY_MS: Final = 10 * 60 * 1000  # That a model is still loaded.
_NOT_OURS: Final = "this worker has not fetched it, or it was replaced since"
_CHANGED: Final = "its content has changed since it was fetched"
_NEEDED: Final = "a load has needed it since"


class FetchedFiles:
    """`loaded` tells the models that have a process here."""

    def __init__(
        self, models: Path, hashes: Hashes, clock: Clock, loaded: Callable[[], Collection[str]]
    ) -> None:
        self._models = models
        self._hashes = hashes
        self._clock = clock
        self._loaded = loaded

    def _placed(self) -> PlacedFiles:
        return PlacedFiles(self._models, store_root(self._models))

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    # For reports, and for loads. These block on the disk.

    def noted(self, files: Sequence[ModelFile]) -> tuple[tuple[ModelFile, ...], int]:
        """The same, with what is known of those that were fetched; and what these take on the disk, those
        that are not among them included."""
        if not self._models.is_dir():
            return tuple(files), 0
        placed = self._placed()
        placed.in_use(self._loaded(), self._now_ms(), _NOTED_EVERY_MS)
        here = placed.here()
        return tuple(self._noted(file, here) for file in files), _bytes_of(here.values())

    def _noted(self, file: ModelFile, here: Mapping[str, PlacedFile]) -> ModelFile:
        ours = here.get(file.path, NOT_PLACED)
        sha256, inode = "", ours.inode
        try:
            path = self._models / file.path
            facts = path.stat()
            inode = facts.st_ino
            sha256 = self._hashes.recalled(facts) or self._hashes.told(path)
        except OSError:  # It has just gone.
            pass
        return ModelFile(
            path=file.path,
            size=file.size,
            sha256=sha256 or ours.sha256,
            brought=file.path in here,
            used_ms=ours.used_ms,
            models=ours.models,
            inode=inode,
        )

    def partial(self) -> tuple[ArrivedFile, ...]:
        """What is here of files that have no place in the folder yet, the largest first, after letting go of
        what no model needs any more."""
        if not self._models.is_dir():
            return ()
        store = store_root(self._models)
        unplaced = UnplacedFiles(store)
        unplaced.tidy()
        unplaced.sweep(self._clock.now())
        found = BlobStore(store).unplaced().items()
        ordered = sorted(found, key=lambda one: (-one[1], one[0]))
        return tuple(ArrivedFile(sha256=digest.partition(":")[2], size=size) for digest, size in ordered)

    def needed(self, files: Sequence[WantedFile], model: str, *, verified: bool = False) -> None:
        """Before a load looks for them, so that none is dropped under it; and when they have come."""
        digests = {file.path: file.sha256 for file in files}
        if not verified:
            coming = {file.path: f"sha256:{file.sha256}" for file in files}
            UnplacedFiles(store_root(self._models)).wanted(coming)
        self._placed().needed(digests, model, self._now_ms(), verified=verified)

    # files.drop

    async def drop(self, request: FilesDrop) -> FilesDropReply:
        """Raises Invalid, before anything goes, for what cannot be a file there."""
        if (count := len(request.files) + len(request.parts)) > DROPPED_MAX:
            raise Invalid(f"{count} files at once; at most {DROPPED_MAX} are accepted")
        parts = [parse_digest(f"sha256:{one}") for one in request.parts]
        for file in request.files:
            if fault := path_fault(file.path):
                raise Invalid(f"{file.path[:200]!r} cannot be used as a file's path: {fault}")
        placed = await run_sync(self._placed)
        removed: list[str] = []
        kept: list[KeptFile] = []
        freed = 0
        for file in request.files:
            why, size = await self._drop(placed, file)
            if why:
                kept.append(KeptFile(path=file.path, why=why))
            else:
                removed.append(file.path)
                freed += size
        gone, of_parts = await run_sync(self._drop_parts, parts)
        freed += of_parts
        log.info(
            "model_files_dropped", files=removed, parts=gone, kept=[one.path for one in kept], freed=freed
        )
        free = (await run_sync(shutil.disk_usage, self._models)).free
        left = _bytes_of((await run_sync(placed.here)).values())
        return FilesDropReply(
            removed=tuple(removed),
            kept=tuple(kept),
            parts=gone,
            freed=freed,
            available_disk=free,
            fetched_bytes=left,
        )

    def _drop_parts(self, digests: Sequence[str]) -> tuple[tuple[str, ...], int]:
        gone, freed = UnplacedFiles(store_root(self._models)).drop(digests)
        return tuple(digest.removeprefix("sha256:") for digest in gone), freed

    async def _drop(self, placed: PlacedFiles, file: UnusedFile) -> tuple[str, int]:
        """Why it stays, or nothing and the bytes that are free now."""
        parts, tree = checked_parts(file.path), Tree(self._models)
        try:
            ours = (await run_sync(placed.here)).get(file.path)
            if ours is None:
                gone = not await run_sync(os.path.lexists, self._models / file.path)
                return ("", 0) if gone else (_NOT_OURS, 0)
            if using := sorted(set(ours.models) & set(self._loaded())):
                return f"{using[0]} is loaded", 0
            if (await self._hashes.of(tree, parts)).sha256 != file.sha256:
                return _CHANGED, 0
            freed: list[int] = []
            remove = partial(_remove, tree, parts, freed)
            if not await run_sync(placed.remove_unused, file.path, file.used_ms, remove):
                return _NEEDED, 0
        except (NotFound, NotAFolder):
            return "", 0
        except OSError as error:
            return f"it cannot be removed: {os_reason(error)}", 0
        return "", sum(freed)


def _bytes_of(files: Iterable[PlacedFile]) -> int:
    """Two links to one file take room once."""
    return sum({file.inode: file.size for file in files}.values())


def _remove(tree: Tree, parts: Sequence[str], freed: list[int]) -> None:
    with tree.open_folder(parts[:-1]) as folder:
        facts = file_facts(folder, parts[-1])
        remove_file(folder, parts[-1])
        if facts is not None and facts.st_nlink == 1:
            freed.append(facts.st_size)
    remove_empty_folders(tree, parts[:-1])


class DropCommand:
    """`look` has the report tell what is there by now."""

    def __init__(self, files: FetchedFiles, look: Callable[[], Awaitable[None]]) -> None:
        self._files = files
        self._look = look

    async def drop(self, request: FilesDrop) -> FilesDropReply:
        reply = await self._files.drop(request)
        await self._look()
        return reply

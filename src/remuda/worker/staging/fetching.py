"""Fetches the files of a model, several at once: verified by their hashes, resumed where an earlier life
broke off, and put into the folder of models only once all of them are whole. What is there already is taken
if it is the same. If it is not, what this worker has fetched itself is replaced; what a person has put there
never is.
"""

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.errors import Conflict, Invalid, RemudaError
from remuda.core.tasks import side_by_side
from remuda.models.file_hashes import FileHashes
from remuda.models.files import ManifestFile, path_fault
from remuda.oci.blobs import BlobStore, OnBytes, WantedBlob
from remuda.oci.client import RegistryClient
from remuda.oci.disk import Partial, require_headroom
from remuda.oci.fetch import fetch_blob
from remuda.wire.files import FilePhase, WantedFile
from remuda.wire.sizes import install_size
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import checked_parts
from remuda.worker.files.sidecars import keep_hash
from remuda.worker.files.tree import Tree
from remuda.worker.staging.placed import PlacedFiles
from remuda.worker.staging.placing import Copying, place, store_root
from remuda.worker.staging.sources import (
    SOURCES_MAX,
    FileSources,
    NamedSource,
    OnTaken,
    SourcesOfFile,
    checked_source,
)
from remuda.worker.staging.unplaced import UnplacedFiles

log = structlog.get_logger(__name__)

FILES_MAX: Final = 2_000  # Of one request.
FILES_AT_ONCE_MAX: Final = 4
_TELL_EVERY_S: Final = 0.5  # Of what is read or copied on this machine.

OnFile = Callable[[FilePhase, str, int], None]
"""How many bytes of a file are here, or were read again, by its path."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    file: ManifestFile
    parts: tuple[str, ...]
    sources: tuple[NamedSource, ...]

    @property
    def path(self) -> str:
        return self.file.path


class _Found(Enum):
    """What is in the folder of models under a file's name."""

    NOTHING = auto()
    SAME = auto()
    OUTDATED = auto()  # Another file, which this worker has fetched.


class ModelFetcher:
    """`frontend_url` is where this worker has registered. `client` reaches frontends and other workers;
    `own_storage` is the object storage that this worker's own settings name."""

    def __init__(
        self,
        models: Path,
        client: RegistryClient,
        hashes: Hashes,
        frontend_url: str,
        clock: Clock,
        own_storage: str = "",
    ) -> None:
        self._models = models
        self._tree = Tree(models)
        self._client = client
        self.hashes = hashes
        self._frontend = frontend_url.rstrip("/")
        self._own_storage = own_storage
        self.clock = clock
        self._reading = FileHashes()

    def checked(self, wanted: WantedFile) -> CheckedFile:
        """Invalid for what cannot be a file of the folder of models, or cannot be fetched."""
        if fault := path_fault(wanted.path):
            raise Invalid(f"{wanted.path[:200]!r} cannot be used as a file's path: {fault}")
        try:
            file = ManifestFile(path=wanted.path, size=wanted.size, sha256=wanted.sha256)
        except ValueError:
            raise Invalid(f"{wanted.path}: size and SHA-256 must be given") from None
        names = (*wanted.source_names, *("" for _ in wanted.sources))
        try:
            sources = [
                NamedSource(checked_source(url, self._frontend), name)
                for url, name in zip(wanted.sources[:SOURCES_MAX], names, strict=False)
            ]
        except Invalid as error:
            raise Invalid(f"{wanted.path}: {error.message}") from None
        return CheckedFile(file, checked_parts(wanted.path), tuple(sources))

    async def fetch(
        self, files: Sequence[CheckedFile], on_file: OnFile, on_taken: OnTaken = lambda *_: None
    ) -> None:
        """Raises Conflict for a file that a person has put there and that differs, DiskFull before the first
        byte, and what the sources said when none has a file."""
        store = BlobStore(await run_sync(store_root, self._models))
        await run_sync(UnplacedFiles(store.root).sweep, self.clock.now())
        found = {file.path: await self._look(file, store, on_file) for file in files}
        lacking = [file for file in files if found[file.path] is not _Found.SAME]
        if not lacking:
            return
        placed = PlacedFiles(self._models, store.root)
        alike = await run_sync(self._link, lacking, placed, store)
        await run_sync(_check_room, store, lacking)
        with ExitStack() as holds:
            blobs = await self._bring(lacking, store, holds, on_file, on_taken)
            hashes = {file.path: file.file.sha256 for file in lacking}
            await run_sync(self._check_replaceable, placed, found)
            await run_sync(placed.note, blobs, hashes)
            for file in lacking:
                outdated = found[file.path] is _Found.OUTDATED
                await self._place(file, blobs[file.path], outdated, on_file)
            # Copies, where links cannot be made, are files of their own.
            await run_sync(placed.note, {file.path: self._models / file.path for file in lacking}, hashes)
        await run_sync(self._settle, store, lacking, alike)

    def _link(
        self, files: Sequence[CheckedFile], placed: PlacedFiles, store: BlobStore
    ) -> Sequence[CheckedFile]:
        """Content that this worker has fetched under another name is linked to, and does not come again.
        Answers those other files."""
        here = placed.here()
        alike: list[CheckedFile] = []
        for file in files:
            known = store.find(file.file.digest) is not None
            for path in () if known else (path for path, one in here.items() if one.size == file.file.size):
                parts = checked_parts(path)
                if path == file.path or self._known_hash(parts) != file.file.sha256:
                    continue
                if store.adopt(self._models / path, file.file.digest, verified=True):
                    log.info("model_file_linked", file=file.path, same_as=path)
                    alike.append(CheckedFile(file.file.model_copy(update={"path": path}), parts, ()))
                    break
        return alike

    def _known_hash(self, parts: tuple[str, ...]) -> str:
        with suppress(RemudaError, OSError):
            return self.hashes.look(self._tree, parts).sha256
        return ""

    async def _bring(
        self,
        files: Sequence[CheckedFile],
        store: BlobStore,
        holds: ExitStack,
        on_file: OnFile,
        on_taken: OnTaken,
    ) -> dict[str, Path]:
        """The first failure ends the others: what has come of them is kept, and gone on with."""
        blobs: dict[str, Path] = {}
        sources = FileSources(self._client, self._frontend, store, self._own_storage)
        slots = anyio.CapacityLimiter(FILES_AT_ONCE_MAX)

        async def bring(place: int) -> None:
            file = files[place]
            async with slots:
                opened = partial(sources.of, file.path, file.file.size, file.sources, on_taken=on_taken)
                blobs[file.path] = await self._fetch(file, store, opened, holds, on_file)

        await side_by_side(len(files), bring)
        return blobs

    async def _look(self, file: CheckedFile, store: BlobStore, on_file: OnFile) -> _Found:
        """A file that a person has linked to from elsewhere on this machine counts as well."""
        path = Path(self._tree.local_path(file.parts))
        size = await run_sync(_size_of, path)
        if size is None:
            return _Found.NOTHING
        why = f"it has {size} bytes, and the model's has {file.file.size}"
        if size == file.file.size:
            sha256 = await self._hash(file, path, on_file)
            if sha256 == file.file.sha256:
                on_file(FilePhase.STAGING, file.path, file.file.size)
                return _Found.SAME
            why = f"its SHA-256 is {sha256}, and that of the model's is {file.file.sha256}"
        if not await run_sync(PlacedFiles(self._models, store.root).ours, (file.path,)):
            raise self._another(file, why)
        log.info("model_file_outdated", file=file.path, reason=why)
        return _Found.OUTDATED

    async def _hash(self, file: CheckedFile, path: Path, on_file: OnFile) -> str:
        """Reading it counts as progress."""
        try:
            known = (await run_sync(self.hashes.look, self._tree, file.parts)).sha256
        except Invalid:  # A link that leads out of the folder.
            return await self._reading.of(path, partial(on_file, FilePhase.HASHING, file.path))
        if not known:
            known = await self._reading.of(path, partial(on_file, FilePhase.HASHING, file.path))
            await run_sync(self._remember, file, known)
        return known

    def _check_replaceable(self, placed: PlacedFiles, found: dict[str, _Found]) -> None:
        """Fetching takes long enough for a person to put another file there."""
        outdated = [path for path, what in found.items() if what is _Found.OUTDATED]
        others = [path for path in outdated if (self._models / path).exists()]
        if others := sorted(set(others) - placed.ours(others)):
            raise Conflict(f"{self._models / others[0]} was replaced meanwhile", hint="try again")

    async def _place(self, file: CheckedFile, blob: Path, outdated: bool, on_file: OnFile) -> None:
        copying = Copying()
        put = partial(
            place, blob, file.file.sha256, self._tree, file.parts, replace=outdated, copying=copying
        )
        async with _telling(lambda: on_file(FilePhase.HASHING, file.path, copying.done)):
            await run_sync(put)

    def _another(self, file: CheckedFile, why: str) -> Conflict:
        path = self._tree.local_path(file.parts)
        return Conflict(
            f"{path} is another file than the model's {file.path}: {why}",
            hint="nothing was replaced; move that file away, or give one of the two another name",
        )

    async def _fetch(
        self,
        file: CheckedFile,
        store: BlobStore,
        sources: Callable[[OnBytes], SourcesOfFile],
        holds: ExitStack,
        on_file: OnFile,
    ) -> Path:
        digest, path = file.file.digest, file.path
        wanted = WantedBlob(path, digest, digest, file.file.size)
        reread: list[Partial] = []  # What an earlier life has left is hashed before more of it is fetched.

        def on_bytes(done: int) -> None:
            reread.clear()
            on_file(FilePhase.STAGING, path, done)

        def tell() -> None:
            for one in reread:
                on_file(FilePhase.HASHING, path, one.size)

        opened = sources(on_bytes).opened
        retry, entropy = self._client.retry, self._client.entropy
        while True:  # Once more if it was swept between arriving and being held.
            async with _telling(tell):
                await fetch_blob(opened, wanted, store, retry, entropy, on_bytes, reread.append)
            held = holds.enter_context(store.held(digest))
            if held is not None:
                return held

    def _settle(self, store: BlobStore, files: Sequence[CheckedFile], alike: Sequence[CheckedFile]) -> None:
        """They have a place of their own now. Their hashes are known, and are not computed again; nor are
        those of the files that they were linked to, which look changed by that."""
        for file in files:
            store.discard(file.file.digest)
            self._remember(file, file.file.sha256)
        for file in alike:
            with suppress(RemudaError, OSError):  # It may have gone meanwhile.
                self._remember(file, file.file.sha256)
        log.info("model_files_placed", files=[file.path for file in files])

    def _remember(self, file: CheckedFile, sha256: str) -> None:
        with self._opened(file) as (folder, facts):
            self.hashes.remember(facts, sha256)
            keep_hash(folder, file.parts[-1], sha256)

    @contextmanager
    def _opened(self, file: CheckedFile) -> Iterator[tuple[int, os.stat_result]]:
        with (
            self._tree.open_file(file.parts) as descriptor,
            self._tree.open_folder(file.parts[:-1]) as folder,
        ):
            yield folder, os.fstat(descriptor)


def _size_of(path: Path) -> int | None:
    """None: there is nothing. Conflict for what is no file."""
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise Conflict(f"{path} is a link that leads nowhere", hint="remove it") from None
        return None
    if not stat.S_ISREG(facts.st_mode):
        raise Conflict(f"{path} is not a file, and the model has one of that name", hint="move it away")
    return facts.st_size


def _check_room(store: BlobStore, files: Sequence[CheckedFile]) -> None:
    missing = {file.file.digest: store.missing_bytes(file.file.digest, file.file.size) for file in files}
    whole = sum(file.file.size for file in files)
    what = f"{files[0].path}{f' and {len(files) - 1} more' if len(files) > 1 else ''} ({install_size(whole)})"
    require_headroom(store.root, sum(missing.values()), what)


@asynccontextmanager
async def _telling(tell: Callable[[], None]) -> AsyncIterator[None]:
    """Now and then, while the block runs."""
    failure: Exception | None = None

    async def keep_telling() -> None:
        while True:
            await anyio.sleep(_TELL_EVERY_S)
            tell()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_telling)
        try:
            yield
        except Exception as error:  # Raised below: a task group would wrap it.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure

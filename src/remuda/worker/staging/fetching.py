"""Fetches the files of a model: verified by their hashes, resumed where an earlier life broke off, and put
into the folder of models only once all of them are whole. What is there already is taken if it is the same,
and never replaced if it is not.
"""

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog
from anyio.to_thread import run_sync
from yarl import URL

from remuda.core.clock import Clock
from remuda.core.errors import (
    Conflict,
    Forbidden,
    Invalid,
    Misconfigured,
    NotFound,
    RemudaError,
    Unauthorized,
)
from remuda.models.file_hashes import FileHashes
from remuda.models.files import ManifestFile, path_fault
from remuda.oci.blobs import BlobStore, WantedBlob
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.errors import ContentRefused, RegistryFailed
from remuda.oci.fetch import fetch_blob
from remuda.oci.http_file import HttpFile
from remuda.oci.transport import BodyStream
from remuda.wire.files import WantedFile
from remuda.wire.sizes import install_size
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import checked_parts
from remuda.worker.files.sidecars import keep_hash
from remuda.worker.files.tree import Tree
from remuda.worker.staging.placed import PlacedFiles
from remuda.worker.staging.placing import place, store_root

log = structlog.get_logger(__name__)

FILES_MAX: Final = 2_000  # Of one request.
SOURCES_MAX: Final = 8
_UNUSED: Final = timedelta(days=3)  # Unfinished files of loads that nobody wants any more.
_NO_BUDGET: Final = 1 << 62
_ELSEWHERE: Final = (RegistryFailed, NotFound, Unauthorized, Forbidden, Misconfigured)
"""Failures after which another source may still have the file."""

OnFile = Callable[[str, int], None]
"""How many bytes of a file are here, by its path."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    file: ManifestFile
    parts: tuple[str, ...]
    urls: tuple[URL, ...]

    @property
    def path(self) -> str:
        return self.file.path


class ModelFetcher:
    """`frontend_url` is where this worker has registered. `client` reaches frontends and other workers."""

    def __init__(
        self, models: Path, client: RegistryClient, hashes: Hashes, frontend_url: str, clock: Clock
    ) -> None:
        self._models = models
        self._tree = Tree(models)
        self._client = client
        self._hashes = hashes
        self._frontend = frontend_url.rstrip("/")
        self.clock = clock
        self._linked = FileHashes()

    def checked(self, wanted: WantedFile) -> CheckedFile:
        """Invalid for what cannot be a file of the folder of models, or cannot be fetched."""
        if fault := path_fault(wanted.path):
            raise Invalid(f"{wanted.path[:200]!r} cannot be used as a file's path: {fault}")
        try:
            file = ManifestFile(path=wanted.path, size=wanted.size, sha256=wanted.sha256)
        except ValueError:
            raise Invalid(f"{wanted.path}: size and SHA-256 must be given") from None
        sources = (f"{self._frontend}{url}" if url.startswith("/") else url for url in wanted.sources)
        urls = tuple(URL(url, encoded=True) for url in sources)[:SOURCES_MAX]
        if not all(url.scheme in ("http", "https") and url.host for url in urls):
            raise Invalid(f"{wanted.path}: its sources must be HTTP addresses")
        return CheckedFile(file, checked_parts(wanted.path), urls)

    async def fetch(self, files: Sequence[CheckedFile], on_file: OnFile) -> None:
        """Raises Conflict for a file that is there and differs, DiskFull before the first byte, and what the
        last source said when none has a file."""
        store = BlobStore(await run_sync(store_root, self._models))
        await run_sync(self._sweep, store)
        lacking = [file for file in files if not await self._is_there(file, on_file)]
        if not lacking:
            return
        await run_sync(_check_room, store, lacking)
        with ExitStack() as holds:
            blobs: list[tuple[CheckedFile, Path]] = []
            for file in lacking:
                blobs.append((file, await self._fetch(file, store, holds, on_file)))
            placed = PlacedFiles(self._models, store.root)
            await run_sync(placed.note, {file.path: blob for file, blob in blobs})
            for file, blob in blobs:
                await run_sync(place, blob, file.file.sha256, self._tree, file.parts)
            # Copies, where links cannot be made, are files of their own.
            await run_sync(placed.note, {file.path: self._models / file.path for file in lacking})
        await run_sync(self._settle, store, lacking)

    async def _is_there(self, file: CheckedFile, on_file: OnFile) -> bool:
        """One that a person has linked to from elsewhere on this machine counts as well."""
        path = Path(self._tree.local_path(file.parts))
        try:
            size = await run_sync(_size_of, path)
            if size is None:
                return False
            if size != file.file.size:
                raise self._another(file, f"it has {size} bytes, and the model's has {file.file.size}")
            sha256 = (await self._hashes.of(self._tree, file.parts)).sha256
        except NotFound:
            return False
        except Invalid:
            sha256 = await self._linked.of(path)
        if sha256 != file.file.sha256:
            why = f"its SHA-256 is {sha256}, and that of the model's is {file.file.sha256}"
            raise self._another(file, why)
        on_file(file.path, file.file.size)
        return True

    def _another(self, file: CheckedFile, why: str) -> Conflict:
        path = self._tree.local_path(file.parts)
        return Conflict(
            f"{path} is another file than the model's {file.path}: {why}",
            hint="nothing was replaced; move that file away, or give one of the two another name",
        )

    async def _fetch(self, file: CheckedFile, store: BlobStore, holds: ExitStack, on_file: OnFile) -> Path:
        digest = file.file.digest
        wanted = WantedBlob(file.path, digest, digest, file.file.size)
        opened = _Sources(self._client, file, store).opened

        def on_bytes(done: int) -> None:
            on_file(file.path, done)

        while True:  # Once more if it was swept between arriving and being held.
            await fetch_blob(opened, wanted, store, self._client.retry, self._client.entropy, on_bytes)
            held = holds.enter_context(store.held(digest))
            if held is not None:
                return held

    def _settle(self, store: BlobStore, files: Sequence[CheckedFile]) -> None:
        """They have a place of their own now. Their hashes are known, and are not computed again."""
        for file in files:
            store.discard(file.file.digest)
            with self._opened(file) as (folder, facts):
                self._hashes.remember(facts, file.file.sha256)
                keep_hash(folder, file.parts[-1], file.file.sha256)
        log.info("model_files_placed", files=[file.path for file in files])

    @contextmanager
    def _opened(self, file: CheckedFile) -> Iterator[tuple[int, os.stat_result]]:
        with (
            self._tree.open_file(file.parts) as descriptor,
            self._tree.open_folder(file.parts[:-1]) as folder,
        ):
            yield folder, os.fstat(descriptor)

    def _sweep(self, store: BlobStore) -> None:
        store.sweep(frozenset(), _NO_BUDGET, self.clock.now() - _UNUSED)


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


class _Sources:
    """The bytes of one file from whoever has them, one at a time."""

    def __init__(self, client: RegistryClient, file: CheckedFile, store: BlobStore) -> None:
        self._file = file
        self._places = {
            str(url.origin()): HttpFile(client, url, store, checked=True) for url in reversed(file.urls)
        }

    @asynccontextmanager
    async def opened(self, offset: int, turn: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        left = [name for name in reversed(self._places) if name not in avoid]
        if not left:
            raise NotFound(f"nobody has sent {self._file.path} as it should be")
        turn %= len(left)
        failure: RemudaError | None = None
        async with AsyncExitStack() as stack:
            for name in (*left[turn:], *left[:turn]):
                try:
                    stream = await stack.enter_async_context(self._places[name].opened(offset))
                except _ELSEWHERE as error:
                    log.info("model_file_source_failed", file=self._file.path, reason=error.message)
                    failure = failure if isinstance(failure, RegistryFailed) else error
                    continue
                log.info("model_file_fetched_from", file=self._file.path, source=name, offset=offset)
                yield BodyStream(stream.offset, stream.total, stream.chunks, name)
                return
        raise failure or ContentRefused(f"{self._file.path} has no source")

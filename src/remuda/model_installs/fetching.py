"""The files of a model that is installed, several at once, and how far they are. The first failure ends the
others: what has come of them is kept, and gone on with.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import anyio

from remuda.core.tasks import side_by_side
from remuda.hubs.model import RemoteFile
from remuda.hubs.packed_layers import in_archive
from remuda.model_installs.ports import ModelHub
from remuda.models.files import ManifestFile
from remuda.oci.blobs import BlobStore
from remuda.ops.model import Step
from remuda.wire.backends import InstallPhase, InstallProgress

CHECKING: Final = "checking"
FILES_AT_ONCE_MAX: Final = 4
_FETCHED_SHARE: Final = 98.0  # Per cent of the whole; checking what came is soon over.

OnFetched = Callable[[Sequence[ManifestFile | None]], Awaitable[None]]
"""The files that have come, each at its place in the list of all. One call at a time."""


@dataclass(frozen=True, slots=True)
class FetchShown:
    """How far an install is, as people see it: of its files the first one that is on its way."""

    phase: str = InstallPhase.RESOLVING
    file_name: str = ""
    number: int = 0
    count: int = 0
    file_bytes: int = 0
    file_size: int = 0
    done_bytes: int = 0  # Of all.
    total_bytes: int = 0  # 0: not known.

    def event(self, step: Step, seq: int) -> InstallProgress:
        share = self.done_bytes / self.total_bytes if self.total_bytes else 0.0
        overall = 99.0 if self.phase == CHECKING else _FETCHED_SHARE * min(share, 1.0)
        return InstallProgress(
            op_id=step.op,
            node_id=step.node,
            file_name=self.file_name,
            phase=self.phase,
            percentage=round(overall, 2),
            seq=seq,
            current_bytes=self.done_bytes,
            total_bytes=self.total_bytes,
            overall=overall,
            file_number=self.number,
            file_count=self.count,
            file_bytes=self.file_bytes,
            file_size=self.file_size,
        )


class FetchProgress:
    """Of files that come side by side."""

    def __init__(self, files: Sequence[RemoteFile] = ()) -> None:
        self._files = files
        self._done = [0] * len(files)
        self._under_way: set[int] = set()
        self._last = 0
        self._waits = ""
        self._phase: str = InstallPhase.DOWNLOADING if files else InstallPhase.RESOLVING
        sizes = [file.size for file in files]
        self._total = sum(size for size in sizes if size is not None) if None not in sizes else 0

    def begins(self, place: int) -> None:
        self._under_way.add(place)

    def reached(self, place: int, done_bytes: int) -> None:
        self._done[place] = done_bytes

    def ended(self, place: int, size: int) -> None:
        self._done[place] = size
        self._under_way.discard(place)
        self._last = place

    def waits(self, why: str) -> None:
        """For its source to be reached; empty: it goes on."""
        self._waits = why

    def checking(self) -> None:
        self._phase = CHECKING

    @property
    def fetched_bytes(self) -> int:
        return sum(self._done)

    def shown(self) -> FetchShown:
        if not self._files:
            return FetchShown(self._waits or self._phase)
        place = min(self._under_way, default=self._last)
        return FetchShown(
            self._phase,
            self._files[place].path,
            place + 1,
            len(self._files),
            self._done[place],
            self._files[place].size or 0,
            self.fetched_bytes,
            self._total,
        )


class SideBySide:
    """`folder` is where the model's files are to be, below the folder of models; empty: that itself."""

    def __init__(self, hub: ModelHub, blobs: BlobStore, folder: str, progress: FetchProgress) -> None:
        self._hub = hub
        self._blobs = blobs
        self._folder = folder
        self._progress = progress
        self._slots = anyio.CapacityLimiter(FILES_AT_ONCE_MAX)
        self._unpacking = anyio.Lock()
        self._noting = anyio.Lock()

    async def all(
        self, files: Sequence[RemoteFile], holds: ExitStack, on_fetched: OnFetched
    ) -> Sequence[ManifestFile]:
        """In the order that they have; each is held until `holds` is closed."""
        fetched: list[ManifestFile | None] = [None] * len(files)

        async def bring(place: int) -> None:
            fetched[place] = await self._one(files[place], place, holds)
            async with self._noting:
                await on_fetched(tuple(fetched))

        await side_by_side(len(files), bring)
        return [file for file in fetched if file is not None]

    async def _one(self, file: RemoteFile, place: int, holds: ExitStack) -> ManifestFile:
        """Files of one archive come one after another: it is let go with the last of them."""
        if not in_archive(file):
            async with self._slots:
                return await self._bring(file, place, holds)
        async with self._unpacking, self._slots:
            return await self._bring(file, place, holds)

    async def _bring(self, file: RemoteFile, place: int, holds: ExitStack) -> ManifestFile:
        self._progress.begins(place)

        def on_bytes(done: int) -> None:
            self._progress.reached(place, done)

        while True:  # Once more if it was removed between arriving and being held.
            digest = await self._hub.fetch(file, self._blobs, on_bytes)
            path = holds.enter_context(self._blobs.held(digest))
            if path is not None:
                break
        size = path.stat().st_size
        self._progress.ended(place, size)
        where = f"{self._folder}/{file.path}" if self._folder else file.path
        sha256 = digest.removeprefix("sha256:")
        return ManifestFile(path=where, size=size, sha256=sha256, origin=file.public_url)

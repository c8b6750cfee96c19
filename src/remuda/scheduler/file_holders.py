"""Who has the files of models: this frontend, others, object storage, nodes, and where they came from.

Nodes tell in their reports; frontends tell each other what is in their folders; the storage is asked. None of
it is stored. A lost message costs one interval.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import anyio
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from remuda.core.broadcast import DebouncedBroadcast
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId
from remuda.fleet.verdicts import ObservedNode
from remuda.models.file_hashes import FileHashes
from remuda.models.files import NeededFile, path_fault
from remuda.ops.broadcast import FrontendSubject
from remuda.ops.ports import BusPort
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue, names_file
from remuda.scheduler.ports import StoredFiles
from remuda.scheduler.staging import told_by_nodes
from remuda.wire import subjects
from remuda.wire.files import FilesHeld, HeldFile

FILES_HELD_MAX: Final = 2_000  # In one message.
_GAP_S: Final = 0.1
_PUBLISH_EVERY_S: Final = 10.0
_FORGOTTEN_S: Final = 35.0
STORAGE: Final = "object storage"
ORIGIN: Final = "where it was installed from"
ANOTHER_FRONTEND: Final = "another frontend"
_ANSWERED_S: Final = 5.0  # By other frontends; a large file takes longer to be read.
_ASK_AGAIN_S: Final = 15.0
_ASKED_AT_ONCE_MAX: Final = 8  # Of object storage.
_ASKED_S: Final = 5.0  # For all of them.


@dataclass(frozen=True, slots=True)
class ModelsFile:
    model: str
    file: NeededFile


@dataclass(frozen=True, slots=True)
class _Announced:
    at_s: float
    url: str
    files: tuple[HeldFile, ...]


class FileHolders:
    """`url` is where others reach this frontend. `run` it once."""

    def __init__(
        self,
        frontend: FrontendId,
        url: Callable[[], str],
        catalogue: ModelCatalogue,
        hashes: FileHashes,
        bus: BusPort,
        clock: Clock,
        stored: StoredFiles | None = None,
        answered_s: float = _ANSWERED_S,
    ) -> None:
        self._answered_s = answered_s
        self._frontend = frontend
        self._url = url
        self._catalogue = catalogue
        self._hashes = hashes
        self._clock = clock
        self._stored = stored
        self._subject = FrontendSubject(bus, subjects.FILES_HELD, frontend, FilesHeld)
        self._broadcast = DebouncedBroadcast(self._publish, gap_s=_GAP_S, every_s=_PUBLISH_EVERY_S)
        self._announced: dict[FrontendId, _Announced] = {}
        self._news = anyio.Event()
        self._asked: dict[str, float] = {}
        self._answers = False

    async def needed(self, model: Catalogued, nodes: Sequence[ObservedNode]) -> tuple[NeededFile, ...]:
        """What a load of it needs on a node, and who else has what this frontend has not. Empty where that is
        not known."""
        files = await self._known(model, nodes)
        if not files and names_file(model.config):
            await self._ask(model.config.id)
            files = await self._known(model, nodes)
        return tuple([file if file.here else await self._located(model, file) for file in files])

    async def _known(self, model: Catalogued, nodes: Sequence[ObservedNode]) -> tuple[NeededFile, ...]:
        files = await self._catalogue.files(model)
        manifest = model.stored.manifest
        beside = manifest is not None and bool(manifest.fetched) and names_file(model.config)
        if not files or (beside and not _has_main(files, model.config.file)):
            files = self._held_elsewhere(model.config.id)
        return files if files or not model.config.file else told_by_nodes(model.config, nodes)

    async def _ask(self, model: str) -> None:
        """Wait until another frontend says that it has the files of a model, which may have been added there
        just now. Once in a while: the files that are nowhere are looked for again and again."""
        now_s = self._clock.monotonic()
        self._asked = {name: at_s for name, at_s in self._asked.items() if now_s < at_s + _ASK_AGAIN_S}
        if not self._fresh():
            return
        if model not in self._asked:
            self._asked[model] = now_s
            if not await self._publish(asks=True):
                return
        with anyio.move_on_after(self._asked[model] + self._answered_s - now_s):
            while not self._held_elsewhere(model):
                await self._news.wait()

    async def stored_at(self, model: str, file: NeededFile) -> str:
        """A signed address in object storage; empty: it is not there."""
        return "" if self._stored is None else await self._stored.address(model, file)

    def frontends(self, file: NeededFile) -> list[str]:
        """The URLs of frontends that have this very file, where there are several."""
        others = self._fresh()
        own = [self._url()] if others and file.here else []
        return [*own, *(one.url for one in others if any(_is(file, held) for held in one.files))]

    async def copies(self, wanted: Sequence[ModelsFile]) -> frozenset[tuple[str, int, str]]:
        """Path, size and SHA-256 of what other frontends have, and of those of the `wanted` that are in
        object storage. What that does not answer in time is not known to be there."""
        found = {(one.path, one.size, one.sha256) for other in self._fresh() for one in other.files}
        slots = anyio.CapacityLimiter(_ASKED_AT_ONCE_MAX)

        async def ask(one: ModelsFile, copy: tuple[str, int, str]) -> None:
            async with slots:
                if await self.stored_at(one.model, one.file):
                    found.add(copy)

        with anyio.move_on_after(_ASKED_S):
            async with anyio.create_task_group() as asking:
                for one in wanted:
                    copy = (one.file.path, one.file.size, one.file.sha256)
                    if self._stored is not None and copy not in found:
                        asking.start_soon(ask, one, copy)
        return frozenset(found)

    async def _located(self, model: Catalogued, file: NeededFile) -> NeededFile:
        elsewhere = ""
        if await self.stored_at(model.config.id, file):
            elsewhere = STORAGE
        elif self.frontends(file):
            elsewhere = ANOTHER_FRONTEND
        elif file.origin:
            elsewhere = ORIGIN
        return replace(file, elsewhere=elsewhere)

    def _held_elsewhere(self, model: str) -> tuple[NeededFile, ...]:
        """Of a model without a manifest, whose files only another frontend has."""
        for other in self._fresh():
            files = [one for one in other.files if one.model == model and not path_fault(one.path)]
            if files:
                return tuple(NeededFile(one.path, one.size, one.sha256, here=False) for one in files)
        return ()

    def _fresh(self) -> list[_Announced]:
        since_s = self._clock.monotonic() - _FORGOTTEN_S
        self._announced = {key: one for key, one in self._announced.items() if one.at_s > since_s}
        return [self._announced[one] for one in sorted(self._announced)]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._subject.listen, self._receive)
            task_status.started()
            await self._broadcast.run()

    async def _publish(self, *, asks: bool = False) -> bool:
        if self._answers:  # The model may be newer than the last look.
            self._answers = False
            with suppress(RemudaError):
                await self._catalogue.refresh()
        files = tuple(await self._held())
        message = FilesHeld(frontend=self._frontend, url=self._url(), files=files, asks=asks)
        return await self._subject.publish(message)

    async def _held(self) -> list[HeldFile]:
        """A model's files all or none: a part would be taken for the whole."""
        held: list[HeldFile] = []
        for name, model in sorted(self._catalogue.configured.items()):
            found: list[HeldFile] = []
            files = await self._catalogue.files(model)
            for file in files:
                sha256 = await self._sha256(file)
                if sha256:
                    found.append(HeldFile(model=name, path=file.path, size=file.size, sha256=sha256))
            if len(found) == len(files) and len(held) + len(found) <= FILES_HELD_MAX:
                held += found
        return held

    async def _sha256(self, file: NeededFile) -> str:
        """Files that people have put here are read once, if there are others to tell of them."""
        if file.sha256 or not file.here:
            return file.sha256 if file.here else ""
        path = self._catalogue.models_path / file.path
        try:
            if self._fresh():
                return await self._hashes.of(path)
            return await run_sync(self._hashes.recalled, path)
        except RemudaError:  # It has just gone, or is being written.
            return ""

    def _receive(self, message: FilesHeld) -> None:
        received = _Announced(self._clock.monotonic(), message.url.rstrip("/"), tuple(message.files))
        self._announced[FrontendId(message.frontend)] = received
        self._news.set()
        self._news = anyio.Event()
        if message.asks:
            self._answers = True
            self._broadcast.send()


def _has_main(files: Sequence[NeededFile], main: str) -> bool:
    """Whether the model's own file is among them, or its folder."""
    path = main.strip("/")
    return any(file.path == path or file.path.startswith(f"{path}/") for file in files)


def _is(file: NeededFile, held: HeldFile) -> bool:
    return (held.path, held.size, held.sha256) == (file.path, file.size, file.sha256)

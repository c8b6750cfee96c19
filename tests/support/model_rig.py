"""Frontends that install models in this process: the real store, reconciler, hubs and disk, on a bus in
memory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from remuda.bus.client import Bus
from remuda.core.clock import Clock, SystemClock
from remuda.core.entropy import SeededEntropy, SystemEntropy
from remuda.core.ids import FrontendId
from remuda.core.retry import Backoff
from remuda.fleet.health import Standing
from remuda.gallery.model import Reading
from remuda.gallery.model_configs import ComposedModel, compose
from remuda.gallery.model_entries import FoundModel, ModelEntry, read_model_index
from remuda.gallery.sources import REMUDA_MODELS
from remuda.hubs.hubs import HubAccess, Hubs, open_hubs
from remuda.hubs.quantisations import NodeRoom
from remuda.model_installs.configured import begin
from remuda.model_installs.installer import Installer, InstallerDeps
from remuda.model_installs.library import ModelLibrary
from remuda.model_installs.remover import Remover
from remuda.model_installs.service import HoldingFrontend, InstallRequest, ModelInstalls
from remuda.model_installs.uploads import HubsAndUploads, ModelUploads
from remuda.model_installs.wanted_files import WantedFiles
from remuda.model_installs.work import BoardTeller, ModelFileWork
from remuda.models.file_hashes import FileHashes
from remuda.models.reading import read_model
from remuda.oci.transport import RetryPolicy
from remuda.ops.model import OpId, State, Step, StepPolicy
from remuda.ops.ports import View
from remuda.ops.progress_board import ProgressBoard
from remuda.ops.reconciler import Pace
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.scheduler.claimed_names import ClaimedNames
from remuda.scheduler.model import ADDED, StoredModel, file_origin
from remuda.store.database import Database
from remuda.store.ops import SqlOpStore
from remuda.store.replicas import SqlModelStore
from tests.support.ops_rig import OpsFrontend, ops_frontend
from tests.support.waiting import wait_until

QUICK: Final = Pace(timedelta(seconds=0.2), timedelta(seconds=0.2), open_for=timedelta(seconds=1))
SOON: Final = StepPolicy(
    backoff_first=timedelta(milliseconds=20),
    backoff_most=timedelta(milliseconds=40),
    unanswered_backoff_most=timedelta(milliseconds=40),
    failures_max=3,
)
ONCE_MORE: Final = RetryPolicy(
    attempts_max=2, backoff=Backoff(timedelta(milliseconds=5), timedelta(milliseconds=10))
)


class _Rows:
    def rows_changed(self) -> None:
        """Nothing is routed here."""


@dataclass(slots=True)
class ModelFrontend:
    ops: OpsFrontend
    installs: ModelInstalls
    library: ModelLibrary
    store: SqlModelStore
    database: Database
    rows: "_Rows"
    uploads: ModelUploads
    holder: HoldingFrontend
    catalogue: ModelCatalogue
    wanted: WantedFiles

    async def configured(self, text: str, file: str = "") -> OpId | None:
        """The operation for a model with this text, which is added, or described by this file of the folder;
        None: nothing is to be fetched."""
        config = read_model(text)
        origin = file_origin(self.holder.frontend, "", file) if file else ADDED
        await self.store.put_model(StoredModel(config.id, text, config.revision, origin))
        view = await self.wanted.begin(config.id, "admin")
        return None if view is None else view.operation.id

    async def install(self, what: str, name: str = "", **more: Any) -> OpId:
        return (await self.installs.install(InstallRequest(what, name, "admin", **more))).operation.id

    async def remove(self, name: str, *, files: bool = False) -> OpId:
        return (await self.installs.remove(name, "admin", files=files)).operation.id

    async def tidy(self, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        await Remover(self.library, self.store, self.ops.store, _Rows(), self.uploads, clock).tidy()

    async def step(self, op: OpId) -> Step:
        return (await self.ops.store.view(op)).steps[0]

    async def ended(self, op: OpId, within: float = 10) -> Step:
        async def over() -> bool:
            return (await self.step(op)).state.final

        await wait_until(over, within=within, what=f"{op} to end")
        return await self.step(op)

    async def installed(self, op: OpId) -> StoredModel:
        step = await self.ended(op)
        assert step.state is State.SUCCEEDED, step
        name = step.source.name
        return next(one for one in await self.store.models() if one.name == name)

    async def view(self, op: OpId) -> View:
        return await self.ops.store.view(op)

    def visible(self) -> list[str]:
        """What a backend may read."""
        found = self.library.models.rglob("*")
        return sorted(str(one.relative_to(self.library.models)) for one in found if one.is_file())


@asynccontextmanager
async def model_frontend(
    bus: Bus,
    database: Database,
    root: Path,
    hubs: Hubs,
    *,
    name: str = "frontend-1",
    gallery: str = "",
    local_sources: bool = True,
    asked: "ModelFrontend | None" = None,
) -> AsyncIterator[ModelFrontend]:
    """At work while the block lasts, in a folder of its own. `asked`: the frontend that people's requests
    have gone to, of which only what it wrote into the store is left."""
    store, library, clock = (
        SqlModelStore(database),
        ModelLibrary(root / "model-store", root / "models"),
        SystemClock(),
    )

    uploads = ModelUploads(library, clock, SystemEntropy())

    def work(ops: SqlOpStore, board: ProgressBoard) -> ModelFileWork:
        teller = BoardTeller(board, bus, clock)
        deps = InstallerDeps(
            HubsAndUploads(hubs, uploads), library, store, _room, teller, _Rows(), FrontendId(name)
        )
        return ModelFileWork(
            Installer(deps, begin), Remover(library, store, ops, _Rows(), uploads, clock), uploads
        )

    async def galleries(_: str) -> Sequence[Reading[ModelEntry]]:
        return [Reading(REMUDA_MODELS, read_model_index(gallery.encode()))] if gallery else []

    async def composed(found: FoundModel, called: str) -> ComposedModel:
        return compose(found.entry, name=called)

    async with ops_frontend(
        bus, database, clock, name=name, pace=QUICK, policy=SOON, frontend_work=work
    ) as ops:
        installs = ModelInstalls(
            ops.store,
            store,
            galleries,
            composed,
            _nobody,
            clock=clock,
            entropy=SystemEntropy(),
            signal=ops.signal,
            models_path=library.models,
            uploads=uploads if asked is None else asked.uploads,
            holder=_holder(name) if asked is None else asked.holder,
            local_sources=local_sources,
            claims=ClaimedNames(ops.store, ops.signal, library.models, FileHashes().of),
        )
        catalogue = ModelCatalogue(store, library.models)
        wanted = _wanted(ops, catalogue, name, local_sources=local_sources)
        yield ModelFrontend(
            ops, installs, library, store, database, _Rows(), uploads, _holder(name), catalogue, wanted
        )


def _wanted(ops: OpsFrontend, catalogue: ModelCatalogue, name: str, *, local_sources: bool) -> WantedFiles:
    return WantedFiles(
        ops.store,
        catalogue,
        clock=SystemClock(),
        signal=ops.signal,
        holder=_holder(name),
        local_sources=local_sources,
        refresh=catalogue.refresh,
    )


def _holder(name: str) -> HoldingFrontend:
    return HoldingFrontend(FrontendId(name), f"host-of-{name}")


@asynccontextmanager
async def impatient_hubs(env: dict[str, str] | None = None) -> AsyncIterator[Hubs]:
    async with open_hubs(
        SystemClock(), SeededEntropy(1), HubAccess(env=env or {}), retry=ONCE_MORE, idle_read_s=1.0
    ) as hubs:
        yield hubs


async def _room() -> Sequence[NodeRoom]:
    return [NodeRoom("big", 64 << 30)]


async def _nobody() -> Sequence[Standing]:
    return []

"""Loads one replica: room on its node, its backend, the process, the model in it. The frontend that does this
owns the replica's row; one that dies over it is replaced, and what it had begun is stopped first.

Work that moves bytes has no fixed end: each byte pushes the deadline on, up to a limit.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import PurePath
from typing import Final

import anyio
import structlog

from remuda.core import limits
from remuda.core.errors import BackendFailed, Invalid, NodeUnreachable, Problem, RemudaError
from remuda.core.ids import NodeId
from remuda.core.reach import host_and_port
from remuda.fleet.health import Standing
from remuda.fleet.identity import NodeTokens, is_its_own
from remuda.fleet.model import Node
from remuda.fleet.node_views import current_report
from remuda.fleet.verdicts import is_localai
from remuda.models.config import ModelConfig
from remuda.models.memory import effective_context
from remuda.models.paths import check_absolute_paths
from remuda.ops.model import DoneWithNote, Ending, Kind, NotNeeded, Step
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue, names_file
from remuda.scheduler.measured_speed import MoveTimed, Rate, TimeTaken, not_timed
from remuda.scheduler.model import HTTP, Place, Replica, ReplicaState, endpoint_of, target_of, worker_endpoint
from remuda.scheduler.ports import (
    LoadProgress,
    ReplicaEngine,
    ReplicaStore,
    RoutingTable,
    WorkerCommands,
    WorkerHttp,
)
from remuda.scheduler.stager import BACK_WITHIN_S, Staged, Stager
from remuda.scheduler.staging import taken_words
from remuda.scheduler.unloader import DRAIN, Unloader
from remuda.scheduler.worker_calls import Installing, is_back, stop_given_up, stop_process, until_vanished
from remuda.wire.backends import BackendInstall, BackendInstallReply

log = structlog.get_logger(__name__)

_STOP_S: Final = 20.0  # A worker that does not answer by then loses the process at a later look.
_FORGET_S: Final = 10.0
_LOOK_S: Final = 1.0
LOADING: Final = "loading"  # The phase in which the backend reads its model: how far it is is not known.
_GIB: Final = 1 << 30
_LOAD_BASE: Final = timedelta(minutes=5)
_LOAD_PER_GIB: Final = timedelta(seconds=20)
_LOAD_MOST: Final = timedelta(hours=6)
_STALL: Final = timedelta(minutes=5)
_FIRST_LEAST: Final = timedelta(minutes=25)
_PEER_THREADS: Final = 4  # The contract wants a number, and the number of cores is not known.


@dataclass(frozen=True, slots=True)
class LoadLimits:
    install: timedelta = timedelta(minutes=15)
    load: timedelta | None = None  # None: by the size of the model.
    room: timedelta = DRAIN + timedelta(minutes=1)  # For those that make room: what they answer ends first.


@dataclass(frozen=True, slots=True)
class LoaderDeps:
    """What a load needs. `tokens` open backends. `shared`: nodes have our folder of models."""

    store: ReplicaStore
    worker: WorkerCommands
    worker_http: WorkerHttp
    engine: ReplicaEngine
    catalogue: ModelCatalogue
    standings: Callable[[], Awaitable[Sequence[Standing]]]
    progress: LoadProgress
    table: RoutingTable
    tokens: NodeTokens
    shared: bool = False
    limits: LoadLimits = LoadLimits()
    stager: Stager | None = None  # None: every node has the files it needs.
    timed: MoveTimed = not_timed  # Told how long bytes took.
    took: TimeTaken = not_timed  # Told how long an install took.


class Loader:
    def __init__(self, deps: LoaderDeps) -> None:
        self._deps = deps

    async def load(self, step: Step) -> Ending:
        """None or a note when the replica answers. Any other end leaves no row, and no process: one that
        refused its model would hold memory unseen."""
        found = await self._claimed(step)
        if not isinstance(found, tuple):
            return found
        if found[0].state is ReplicaState.LOADED:  # The frontend that loaded it died before it could say so.
            return None
        task = _Load(self._deps, step, *found)
        over = False
        try:
            problem = await task.run()
            over = True
        finally:
            if not over:  # Cancelled: it is not wanted any more.
                await self._abandon(task.replica, stop=True)
        if problem is not None:
            stop = not task.vanished and (task.overdue or bool(task.replica.address))
            await self._abandon(task.replica, stop=stop)
            return problem
        words = taken_words(task.staged.taken, task.staged.before)
        return DoneWithNote(words) if words else None

    async def _claimed(self, step: Step) -> tuple[Replica, Catalogued] | Problem | NotNeeded:
        key = target_of(step).key
        rows = (await self._deps.store.replicas()).rows
        replica = next((row for row in rows if row.key == key and row.op == step.op), None)
        if replica is None or replica.state is ReplicaState.UNLOADING:
            return NotNeeded(f"{key} is not wanted any more")
        await self._deps.catalogue.refresh()
        model = self._deps.catalogue.find(key.model)
        if model is None or model.config.revision != replica.revision:
            await self._abandon(replica, stop=step.attempt > 1)
            return Problem("model_changed", f"{key.model} was changed or removed while it was being loaded")
        return replica, model

    async def _abandon(self, replica: Replica, *, stop: bool) -> None:
        with anyio.CancelScope(shield=True):
            if stop:
                await self._stop(replica)
            with anyio.move_on_after(_FORGET_S):
                try:
                    await self._deps.store.remove(replica)
                except RemudaError as error:  # Upkeep finds that no frontend loads it any more.
                    log.warning("replica_not_forgotten", replica=str(replica.key), reason=error.message)
            self._deps.table.rows_changed()

    async def _stop(self, replica: Replica) -> None:
        """If its worker does not, its report will show the process, and it is stopped then."""
        with anyio.move_on_after(_STOP_S) as scope:
            try:
                await stop_given_up(self._deps.worker, replica)
            except RemudaError as error:
                log.warning("abandoned_replica_not_stopped", replica=str(replica.key), reason=error.message)
        if scope.cancelled_caught:
            log.warning("abandoned_replica_not_stopped", replica=str(replica.key), reason="no answer")


class _Load:
    """One load, with the row as it is by now."""

    def __init__(self, deps: LoaderDeps, step: Step, replica: Replica, model: Catalogued) -> None:
        self.replica = replica
        self.overdue = False  # What its worker has started by now is not known.
        self.vanished = False  # There is no worker to tell that anything is to be stopped.
        self._deps = deps
        self._step = step
        self._model = model
        self.staged = Staged()
        self._staging = False  # Nothing runs on its node yet, and what has arrived there stays.
        self._load_limit = load_limit(model.need().weights_bytes, deps.limits.load)
        self._installing = Installing(deps.worker, step, self._standing, deps.progress)

    async def run(self) -> Problem | None:
        began_s = anyio.current_time()
        budget = first_limit(self._deps.limits.install, self._load_limit)
        with anyio.CancelScope(deadline=began_s + budget.total_seconds()) as scope:
            async with anyio.create_task_group() as watch:
                watch.start_soon(self._push_deadline, scope, began_s)
                watch.start_soon(self._watch_machine, watch.cancel_scope)
                problem = await self._go(scope)
                watch.cancel_scope.cancel()
                return problem
            self.vanished = True
            return self._no_machine()
        self.overdue = True
        return Problem(
            "load_timed_out",
            f"{self.replica.key} was not loaded on {self._step.node_name} in time",
            hint="look at the backend's log there; --model-load-timeout gives it longer",
        )

    async def _push_deadline(self, scope: anyio.CancelScope, began_s: float) -> None:
        """Bytes that move on the worker are progress, however slow."""
        last = 0.0
        while True:
            await anyio.sleep(_LOOK_S)
            moved = self._deps.progress.moved(self._step)
            if moved != last:  # What a part of a load counts begins at nothing.
                last = moved
                scope.deadline = pushed(anyio.current_time(), scope.deadline, began_s)

    async def _watch_machine(self, load: anyio.CancelScope) -> None:
        """One that vanishes while files are copied to it may come back: copying goes on where it was."""
        worker, http = self._deps.worker, self._deps.worker_http
        while True:
            try:
                node = (await self._standing()).node
            except RemudaError:  # The load meets the same trouble, and says so.
                return
            server = worker_endpoint(node, self._deps.tokens)
            if server is None:
                return
            await until_vanished(node.id, server, worker, http)
            if not self._staging or not await is_back(node.id, server, worker, http, BACK_WITHIN_S):
                load.cancel()
                return
            log.info("machine_is_back", op=self._step.op, node=self._step.node_name)

    def _no_machine(self) -> Problem:
        name = self._step.node_name
        return Problem(
            NodeUnreachable.code,
            f"{name} answers neither over HTTP nor over the bus",
            hint=f"check that {name} is on and connected to the network",
        )

    async def _go(self, scope: anyio.CancelScope) -> Problem | None:
        try:
            if self._step.attempt > 1:  # Another frontend began this, and is gone.
                await stop_process(self._deps.worker, self.replica)
            self._check_paths(await self._standing())
            await self._room()
            if self._deps.stager is not None and not self._deps.shared:
                began_s, self._staging = anyio.current_time(), True
                self.staged = await self._deps.stager.stage(self._step, self._model, self._installing)
                self._staging = False
                if self._step.attempt == 1:  # Later ones count what came in those before, too.
                    self._timed(Rate.COPY, sum(self.staged.taken.values()), began_s)
            standing = await self._standing()
            reply = await self._timed_process(standing)
            await self._write(_running(self.replica, reply, standing))
            scope.deadline = load_entered(anyio.current_time(), scope.deadline, self._load_limit)
            self._deps.progress.enter(self._step, LOADING)
            began_s = anyio.current_time()
            await self._load_model(standing)
            self._timed(Rate.LOAD, self._model.need().weights_bytes, began_s)
            await self._write(replace(self.replica, state=ReplicaState.LOADED))
        except RemudaError as error:
            return replace(error.problem(), retryable=False)
        return None

    def _timed(self, kind: Rate, size_bytes: int, began_s: float) -> None:
        node, model = self.replica.node, self.replica.key.model
        self._deps.timed(kind, node, model, size_bytes, anyio.current_time() - began_s)

    def _check_paths(self, standing: Standing) -> None:
        """What an earlier release stored, or another frontend, was perhaps never checked."""
        config, stored = self._model.config, self._model.stored
        folders = {self._place(standing).models_path, str(self._deps.catalogue.models_path)} - {""}
        try:
            check_absolute_paths(config, *map(PurePath, sorted(folders)))
        except Invalid as error:
            where = f" ({stored.file})" if stored.file else ""
            raise Invalid(f"{config.id}{where}: {error.message}", hint=error.hint) from None

    async def _room(self) -> None:
        """Until those that go for this one are gone."""
        with anyio.move_on_after(self._deps.limits.room.total_seconds()):
            while True:
                rows = (await self._deps.store.replicas()).rows
                if not any(self._in_the_way(row) for row in rows):
                    return
                await anyio.sleep(_LOOK_S)
        raise BackendFailed(f"those that were to make room on {self._step.node_name} did not go in time")

    def _in_the_way(self, row: Replica) -> bool:
        room_for = None if row.why is None else row.why.for_replica
        return row.state is ReplicaState.UNLOADING and room_for == self.replica.key

    async def _standing(self) -> Standing:
        for standing in await self._deps.standings():
            if standing.node.id == self.replica.node:
                return standing
        raise BackendFailed(f"{self._step.node_name} is no longer in the fleet")

    async def _timed_process(self, standing: Standing) -> BackendInstallReply:
        """Reported where the node had to install the backend for it."""
        began_s, replica = anyio.current_time(), self.replica
        lacks = _lacks_backend(standing.node, self._model.config.backend)
        reply = await self._process(standing)
        if lacks:
            took_s = anyio.current_time() - began_s
            self._deps.took(Rate.INSTALL, replica.node, replica.key.model, took_s)
        return reply

    async def _process(self, standing: Standing) -> BackendInstallReply:
        config, place = self._model.config, self._place(standing)
        request = BackendInstall(
            backend=config.backend,
            model_id=config.id,
            backend_galleries=self._step.source.galleries,
            replica_index=self.replica.key.index,
            op_id=self._step.op,
            attempt=self._step.attempt,
            protocol=HTTP,
            model_path=place.model_file or config.file,  # Else a name that the server understands.
            options=_options(config, place),
            gpus=self.replica.gpus,
        )
        reply = await self._installing.ask(request, standing)
        if not reply.success:
            raise BackendFailed(f"{config.backend} on {self._step.node_name}: {reply.error}")
        if reply.address and host_and_port(reply.address) is None:
            raise BackendFailed(
                f"{self._step.node_name} says that {config.backend} listens on {reply.address!r}, which is "
                "not HOST:PORT"
            )
        if not is_its_own(reply.address, standing.node, http=reply.protocol == HTTP):
            raise BackendFailed(
                f"{self._step.node_name} says that {config.backend} listens on {reply.address}, which is not "
                "the host it has registered",
                hint=_same_host(standing.node),
            )
        return reply

    async def _load_model(self, standing: Standing) -> None:
        endpoint = endpoint_of(self.replica, standing.node, self._deps.tokens)
        with anyio.move_on_after(self._load_limit.total_seconds()):
            await self._deps.engine.load(endpoint, self._model.config, self._place(standing))
            return
        raise BackendFailed(
            f"{self._model.config.id} was not loaded on {self._step.node_name} within "
            f"{self._load_limit.total_seconds():.0f} s",
            hint="a larger --model-load-timeout gives it longer",
        )

    async def _write(self, after: Replica) -> None:
        written = await self._deps.store.move(self.replica, after)
        if written is None:
            raise BackendFailed(f"{self.replica.key} was given up while it was being loaded")
        self.replica = written
        self._deps.table.rows_changed()

    def _place(self, standing: Standing) -> Place:
        """A worker of ours says where its folder of models is; one that has not yet has the frontend's. Of a
        peer's folder nothing is known unless it is shared or files were pushed there: its backend finds the
        model by its name. Nor does
        a peer know how many threads are good for its machine."""
        config, report = self._model.config, current_report(standing.node)
        context = effective_context(config, self._model.weights.header)
        if is_localai(standing.node) and not self._deps.shared:
            folder = self.staged.folder
            pushed = f"{folder}/{config.file.lstrip('/')}" if folder else ""
            return Place(folder, pushed, context, _PEER_THREADS)
        folder = "" if report is None else report.models_path
        if self._deps.shared or not folder:
            folder = str(self._deps.catalogue.models_path)
        return Place(
            folder,
            f"{folder}/{config.file.lstrip('/')}" if names_file(config) else "",
            context,
            0 if standing.node.version else _PEER_THREADS,
        )


def _same_host(node: Node) -> str:
    backends = node.setting("--advertise-addr", "LOCALAI_ADVERTISE_ADDR")
    http = node.setting("--advertise-http-addr", "LOCALAI_ADVERTISE_HTTP_ADDR")
    return f"start its worker with the same host in {backends} and {http}"


def _options(config: ModelConfig, place: Place) -> tuple[str, ...]:
    """What a server that speaks HTTP is started with; gRPC's hear of it when they load."""
    sizes = {"context_size": place.context, "parallel": config.parallel}
    return (*config.options, *(f"{name}:{count}" for name, count in sizes.items() if count))


def _running(replica: Replica, reply: BackendInstallReply, standing: Standing) -> Replica:
    return replace(
        replica,
        state=ReplicaState.LOADING,
        address=reply.address or standing.node.address,
        protocol=reply.protocol,
        path=reply.path,
        instance=reply.instance,
        boot=standing.node.boot_id,
    )


# Deadlines.


def _lacks_backend(node: Node, backend: str) -> bool:
    """By what it has reported; of one that has reported nothing it is not known."""
    report = current_report(node)
    return report is not None and not any(backend in (one.name, one.alias) for one in report.installed)


def load_limit(weights_bytes: int, given: timedelta | None = None) -> timedelta:
    """For the backend's own load call. A limit that was given wins, be it shorter or longer."""
    if given is not None:
        return given
    return min(_LOAD_BASE + _LOAD_PER_GIB * (weights_bytes / _GIB), _LOAD_MOST)


def first_limit(install: timedelta, load: timedelta) -> timedelta:
    """For everything before the load call, as long as nothing is known to move."""
    return max(install + load + _STALL, _FIRST_LEAST)


def pushed(now_s: float, expires_s: float, began_s: float) -> float:
    """The deadline after something has moved: never earlier than before, and never later than a day after the
    beginning."""
    return min(max(expires_s, now_s + _STALL.total_seconds()), began_s + limits.LOAD_WHOLE_S)


def load_entered(now_s: float, expires_s: float, load: timedelta) -> float:
    """The deadline once the load call is made: its own limit and a little."""
    return max(expires_s, now_s + (load + _STALL).total_seconds())


_ON_ITS_WAY = (ReplicaState.STAGING, ReplicaState.LOADING)  # Their loader finds out by itself.


class ReplicaWork:
    """Implements ops.ports.ModelWork."""

    def __init__(
        self,
        loader: Loader,
        unloader: Unloader,
        store: ReplicaStore,
        table: RoutingTable,
        took: TimeTaken = not_timed,
    ) -> None:
        self._took = took
        self._loader = loader
        self._unloader = unloader
        self._store = store
        self._table = table

    async def carry_out(self, step: Step) -> Ending:
        return await (self._loader.load(step) if step.kind is Kind.LOAD else self._unloader.unload(step))

    async def latest_change(self) -> int:
        return (await self._store.replicas()).change

    async def forget_stopped(self, node: NodeId, keys: Collection[str], known: int) -> None:
        for row in (await self._store.replicas()).rows:
            meant = row.node == node and str(row.key) in keys and row.change <= known
            if meant and row.state not in _ON_ITS_WAY and await self._store.remove(row):
                log.info("replica_forgotten", replica=str(row.key), reason="its backend was changed")
                self._table.rows_changed()

    def backend_installed(self, node: NodeId, backend: str, seconds: float) -> None:
        self._took(Rate.BACKEND, node, backend, seconds)

"""Loads one replica: room on its node, its backend, the process, the model in it. Whoever does this owns the
replica's row; a frontend that dies over it is replaced, and what it had begun is stopped first."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import PurePath
from typing import Final

import anyio
import structlog

from remuda.core.errors import BackendFailed, Invalid, NodeUnreachable, Problem, RemudaError
from remuda.core.reach import host_and_port
from remuda.fleet.fleet import Standing
from remuda.fleet.identity import is_its_own
from remuda.fleet.model import Node
from remuda.fleet.tokens import NodeTokens
from remuda.models.config import ModelConfig
from remuda.models.memory import effective_context
from remuda.models.reading import check_absolute_paths
from remuda.ops.holdings import foreign
from remuda.ops.model import Ending, NotNeeded, Step
from remuda.ops.reports import current_report
from remuda.scheduler.catalogue import Catalogue, Catalogued, names_file
from remuda.scheduler.deadlines import first_limit, load_entered, load_limit, pushed
from remuda.scheduler.endpoints import HTTP, endpoint_of, worker_endpoint
from remuda.scheduler.installing import Installing
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.ports import Engine, Place, ReplicaStore, Worker, WorkerHttp
from remuda.scheduler.vanished import until_vanished
from remuda.scheduler.wishes import target_of
from remuda.wire.backends import BackendInstall, BackendInstallReply
from remuda.wire.models import ModelStop, ModelStopReply

log = structlog.get_logger(__name__)

_STOP_S: Final = 20.0  # A worker that does not answer by then loses the process at a later look.
_FORGET_S: Final = 10.0
_LOOK_S: Final = 1.0
LOADING: Final = "loading"  # The phase in which the backend reads its model: nobody knows how far it is.
_PEER_THREADS: Final = 4  # The contract wants a number, and nobody has told how many cores there are.


@dataclass(frozen=True, slots=True)
class LoadLimits:
    install: timedelta = timedelta(minutes=15)
    load: timedelta | None = None  # None: by the size of the model.
    room: timedelta = timedelta(minutes=2)  # For those that make room to be gone.


@dataclass(frozen=True, slots=True)
class Tools:
    """What a load needs. `moved`: how far the bytes of a step are, as heard from its worker. `entered` shows
    its phase, `changed` tells everybody that a row was written, `tokens` open backends. `shared`: nodes have
    our folder of models."""

    store: ReplicaStore
    worker: Worker
    worker_http: WorkerHttp
    engine: Engine
    catalogue: Catalogue
    standings: Callable[[], Awaitable[Sequence[Standing]]]
    moved: Callable[[Step], float]
    changed: Callable[[], None]
    tokens: NodeTokens
    shared: bool = False
    limits: LoadLimits = LoadLimits()
    entered: Callable[[Step, str], None] = lambda step, phase: None


class Loader:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def load(self, step: Step) -> Ending:
        """None when the replica answers. Any other end leaves no row, and no process: one that refused its
        model would hold memory that nobody sees."""
        found = await self._claimed(step)
        if not isinstance(found, tuple):
            return found
        if found[0].state is ReplicaState.LOADED:  # Whoever loaded it died before it could say so.
            return None
        task = _Load(self._tools, step, *found)
        over = False
        try:
            problem = await task.run()
            over = True
        finally:
            if not over:  # Cancelled: nobody wants it any more.
                await self._abandon(task.replica, stop=True)
        if problem is not None:
            stop = not task.vanished and (task.overdue or bool(task.replica.address))
            await self._abandon(task.replica, stop=stop)
        return problem

    async def _claimed(self, step: Step) -> tuple[Replica, Catalogued] | Problem | NotNeeded:
        key = target_of(step).key
        rows = (await self._tools.store.replicas()).rows
        replica = next((row for row in rows if row.key == key and row.op == step.op), None)
        if replica is None or replica.state is ReplicaState.UNLOADING:
            return NotNeeded(f"{key} is not wanted any more")
        await self._tools.catalogue.refresh()
        model = self._tools.catalogue.find(key.model)
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
                    await self._tools.store.remove(replica)
                except RemudaError as error:  # Upkeep finds that nobody loads it any more.
                    log.warning("replica_not_forgotten", replica=str(replica.key), reason=error.message)
            self._tools.changed()

    async def _stop(self, replica: Replica) -> None:
        """If its worker does not, its report will show the process, and it is stopped then."""
        with anyio.move_on_after(_STOP_S) as patience:
            try:
                await stop_given_up(self._tools.worker, replica)
            except RemudaError as error:
                log.warning("abandoned_replica_not_stopped", replica=str(replica.key), reason=error.message)
        if patience.cancelled_caught:
            log.warning("abandoned_replica_not_stopped", replica=str(replica.key), reason="no answer")


async def stop_given_up(worker: Worker, replica: Replica) -> None:
    """As `stop_process`; also what its worker may have started without anybody having heard of it."""
    if replica.address or replica.instance:
        await stop_process(worker, replica)
    else:
        await worker.stop_unheard(replica.node, replica.key)


async def stop_key(worker: Worker, replica: Replica) -> None:
    """Whatever its worker runs under this key, also a process that it started when the one we knew crashed.
    Only while the row stands: then nobody else may use the key."""
    order = _stop_order(replica)
    if not replica.instance:
        await stop_given_up(worker, replica)
        return
    reply = await worker.stop(replica.node, order)
    if _is_another(reply) and reply.address:
        successor = order.model_copy(update={"instance": "", "expected_address": reply.address})
        reply = await worker.stop(replica.node, successor)
    _check_stopped(replica, reply)


async def stop_process(worker: Worker, replica: Replica) -> None:
    """This very process, if there is one. BackendFailed when it does not end."""
    if replica.address or replica.instance:
        _check_stopped(replica, await worker.stop(replica.node, _stop_order(replica)))


def _stop_order(replica: Replica) -> ModelStop:
    return ModelStop(
        model_name=replica.key.model,
        process_key=str(replica.key),
        expected_address=_as_recorded(replica),
        instance=replica.instance,
        config_revision=replica.revision,
    )


def _check_stopped(replica: Replica, reply: ModelStopReply) -> None:
    if reply.matched and not reply.terminated and not _is_another(reply):
        raise BackendFailed(f"{replica.key} was not stopped: {reply.error or 'its worker gives no reason'}")


def _is_another(reply: ModelStopReply) -> bool:
    """The worker has another process under this key than the one that was meant."""
    return reply.matched and not reply.terminated and "mismatch" in reply.error


def _as_recorded(replica: Replica) -> str:
    """A worker that tells no instances compares the address with the one it gave its process itself."""
    return replica.address if replica.instance else f"127.0.0.1:{replica.address.rpartition(':')[2]}"


class _Load:
    """One load, with the row as it is by now."""

    def __init__(self, tools: Tools, step: Step, replica: Replica, model: Catalogued) -> None:
        self.replica = replica
        self.overdue = False  # Nobody heard what its worker has started by now.
        self.vanished = False  # There is no worker to tell that anything is to be stopped.
        self._tools = tools
        self._step = step
        self._model = model
        self._load_limit = load_limit(model.need().weights_bytes, tools.limits.load)
        self._installing = Installing(tools.worker, step, self._standing, lambda: tools.moved(step))

    async def run(self) -> Problem | None:
        began_s = anyio.current_time()
        budget = first_limit(self._tools.limits.install, self._load_limit)
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
            moved = self._tools.moved(self._step)
            if moved > last:
                last = moved
                scope.deadline = pushed(anyio.current_time(), scope.deadline, began_s)

    async def _watch_machine(self, load: anyio.CancelScope) -> None:
        try:
            node = (await self._standing()).node
        except RemudaError:  # The load meets the same trouble, and says so.
            return
        server = worker_endpoint(node, self._tools.tokens)
        if server is not None:
            await until_vanished(node.id, server, self._tools.worker, self._tools.worker_http)
            load.cancel()

    def _no_machine(self) -> Problem:
        name = self._step.node_name
        return Problem(
            NodeUnreachable.code,
            f"{name} answers neither over HTTP nor over the bus",
            hint=f"check that {name} is on and connected to the network",
        )

    async def _go(self, scope: anyio.CancelScope) -> Problem | None:
        try:
            if self._step.attempt > 1:  # Somebody else began this, and is gone.
                await stop_process(self._tools.worker, self.replica)
            self._check_paths(await self._standing())
            await self._room()
            standing = await self._standing()
            reply = await self._process(standing)
            await self._write(_running(self.replica, reply, standing))
            scope.deadline = load_entered(anyio.current_time(), scope.deadline, self._load_limit)
            self._tools.entered(self._step, LOADING)
            await self._model_in_it(standing)
            await self._write(replace(self.replica, state=ReplicaState.LOADED))
        except RemudaError as error:
            return replace(error.problem(), retryable=False)
        return None

    def _check_paths(self, standing: Standing) -> None:
        """What an earlier release stored, or another frontend, was perhaps never checked."""
        config, stored = self._model.config, self._model.stored
        folders = {self._place(standing).models_path, str(self._tools.catalogue.models_path)} - {""}
        try:
            check_absolute_paths(config, *map(PurePath, sorted(folders)))
        except Invalid as error:
            where = f" ({stored.file})" if stored.file else ""
            raise Invalid(f"{config.id}{where}: {error.message}", hint=error.hint) from None

    async def _room(self) -> None:
        """Until those that go for this one are gone."""
        with anyio.move_on_after(self._tools.limits.room.total_seconds()):
            while True:
                rows = (await self._tools.store.replicas()).rows
                if not any(self._in_the_way(row) for row in rows):
                    return
                await anyio.sleep(_LOOK_S)
        raise BackendFailed(f"those that were to make room on {self._step.node_name} did not go in time")

    def _in_the_way(self, row: Replica) -> bool:
        room_for = None if row.why is None else row.why.for_replica
        return row.state is ReplicaState.UNLOADING and room_for == self.replica.key

    async def _standing(self) -> Standing:
        for standing in await self._tools.standings():
            if standing.node.id == self.replica.node:
                return standing
        raise BackendFailed(f"{self._step.node_name} is no longer in the fleet")

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

    async def _model_in_it(self, standing: Standing) -> None:
        endpoint = endpoint_of(self.replica, standing.node, self._tools.tokens)
        with anyio.move_on_after(self._load_limit.total_seconds()):
            await self._tools.engine.load(endpoint, self._model.config, self._place(standing))
            return
        raise BackendFailed(
            f"{self._model.config.id} was not loaded on {self._step.node_name} within "
            f"{self._load_limit.total_seconds():.0f} s",
            hint="a larger --model-load-timeout gives it longer",
        )

    async def _write(self, after: Replica) -> None:
        written = await self._tools.store.move(self.replica, after)
        if written is None:
            raise BackendFailed(f"{self.replica.key} was given up while it was being loaded")
        self.replica = written
        self._tools.changed()

    def _place(self, standing: Standing) -> Place:
        """A worker of ours says where its folder of models is; one that has not yet has the frontend's. Of a
        peer's folder nothing is known unless it is shared: its backend finds the model by its name. Nor does
        a peer know how many threads are good for its machine."""
        config, report = self._model.config, current_report(standing.node)
        context = effective_context(config, self._model.weights.header)
        if foreign(standing.node) and not self._tools.shared:
            return Place("", "", context, _PEER_THREADS)
        folder = "" if report is None else report.models_path
        if self._tools.shared or not folder:
            folder = str(self._tools.catalogue.models_path)
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

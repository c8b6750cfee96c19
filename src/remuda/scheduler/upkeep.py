"""Reconciles replicas: removes those that are gone, stops processes without a replica, unloads those that
are not wanted. It takes no input; a signal only wakes it, and every frontend may run it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import Conflict, RemudaError
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.verdicts import ObservedNode, why_no_vram
from remuda.ops.model import Kind, UnloadReason
from remuda.ops.ports import Live
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.scheduler.drift import DriftMemory, Drop, Scene, Stray, compare, stands_for, to_ask
from remuda.scheduler.model import Replica, Replicas, ReplicaState, target_of
from remuda.scheduler.ports import NodeHistory, ReplicaStore, RoutingTable, WorkerCommands
from remuda.scheduler.unloader import UnloadRequests
from remuda.scheduler.upkeep_rules import Forget, Unload, UpkeepInputs, actions, idle_next
from remuda.wire.models import ModelStop, RunningModel

log = structlog.get_logger(__name__)

_EVERY_S: Final = 5.0
BY: Final = "remuda"


class ModelLoads(Protocol):
    async def load_again(self, name: str, by: str) -> object:
        """Begin to load another in place of one that was lost, unless its model has as many as it may.
        RemudaError when that cannot be done now."""


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    keep_alive: timedelta = timedelta(minutes=30)


class Upkeep:
    """`in_flight` counts over all frontends."""

    def __init__(
        self,
        store: ReplicaStore,
        live: Callable[[], Awaitable[Live]],
        catalogue: ModelCatalogue,
        drift: "DriftRepair",
        unloads: UnloadRequests,
        *,
        in_flight: Callable[[ReplicaKey], int],
        table: RoutingTable,
        habits: UpkeepPolicy,
    ) -> None:
        self._store = store
        self._live = live
        self._catalogue = catalogue
        self._drift = drift
        self._unloads = unloads
        self._in_flight = in_flight
        self._table = table
        self._habits = habits

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            news, pause_s = self._table.next_change, _EVERY_S
            try:
                pause_s = min(pause_s, await self.pass_once())
            except RemudaError as error:  # The store is away, which is not a bug.
                log.warning("upkeep_failed", reason=error.message)
            except Exception:
                log.exception("upkeep_broke")
            await anyio.sleep(_EVERY_S / 5)
            with anyio.move_on_after(pause_s):
                await news.wait()

    async def pass_once(self) -> float:
        """Seconds until a replica may be idle for long enough."""
        replicas = await self._store.replicas()
        await self._drift.look(replicas)
        if not replicas.rows:
            return _EVERY_S
        await self._catalogue.refresh()
        around = await self._circumstances(replicas)
        for action in actions(replicas.rows, around):
            match action:
                case Forget(replica):
                    await self._forget(replica)
                case Unload(replica, why):
                    await self._unload(replica, why)
        due = idle_next(replicas.rows, around)
        return _EVERY_S if due is None else max((due - replicas.now).total_seconds(), 0.0)

    async def _circumstances(self, replicas: Replicas) -> UpkeepInputs:
        moving = any(row.state is not ReplicaState.LOADED for row in replicas.rows)
        live = await self._live() if moving else None
        return UpkeepInputs(
            now=replicas.now,
            configs={name: one.config for name, one in self._catalogue.models.items()},
            unreadable=self._catalogue.unreadable,
            live=set() if live is None else {operation.id for operation in live.operations},
            leaving=set() if live is None else _leaving(live),
            usual_keep_alive=self._habits.keep_alive,
            in_flight=self._in_flight,
            claimed=self._drift.claimed,
            drained=self._drift.drained,
        )

    async def _forget(self, replica: Replica) -> None:
        if await self._store.remove(replica):
            log.info("replica_forgotten", replica=str(replica.key), reason="its load is over")
            self._table.rows_changed()

    async def _unload(self, replica: Replica, why: UnloadReason) -> None:
        if replica.state is ReplicaState.UNLOADING and await self._store.move(replica, replica) is None:
            return  # Another frontend has just seen to it.
        try:
            await self._unloads.ask(replica, BY, why)
            log.info("replica_unloading", replica=str(replica.key), reason=str(why))
        except Conflict as error:
            log.info("replica_not_unloaded", replica=str(replica.key), reason=error.message)


def _leaving(live: Live) -> set[tuple[NodeId, ReplicaKey]]:
    return {
        (step.node, target_of(step).key)
        for step in live.steps
        if step.kind is Kind.UNLOAD and not step.state.final
    }


class DriftRepair:
    """Compares rows with what workers say, forgets what is gone, loads again what crashed, and stops what
    is on no record. What counts only when it is seen twice is remembered here, so each
    frontend comes to its own conclusion; rows are compared and removed as they were seen, so that of several
    frontends one forgets a row, and has its model loaded again if it crashed."""

    def __init__(
        self,
        store: ReplicaStore,
        worker: WorkerCommands,
        nodes: Callable[[], Awaitable[Sequence[ObservedNode]]],
        live: Callable[[], Awaitable[Live]],
        table: RoutingTable,
        models: ModelLoads,
        history: NodeHistory,
    ) -> None:
        self._store = store
        self._worker = worker
        self._nodes = nodes
        self._live = live
        self._table = table
        self._models = models
        self._history = history
        self._memory = DriftMemory()
        # As of the last look, those whose GPUs others use, and those that are drained.
        self.claimed: frozenset[NodeId] = frozenset()
        self.drained: frozenset[NodeId] = frozenset()

    async def look(self, replicas: Replicas) -> None:
        nodes = {view.standing.node.id: view for view in await self._nodes()}
        self.claimed = frozenset(node for node, view in nodes.items() if why_no_vram(view))
        self.drained = frozenset(node for node, view in nodes.items() if view.standing.node.drained)
        reported = any(view.report and view.report.replicas for view in nodes.values())
        asked = to_ask(replicas, nodes, self._memory)
        if not replicas.rows and not reported and not asked:
            return
        answers = await self._ask(asked)
        found = compare(Scene(replicas, nodes, await self._loading(), asked, answers), self._memory)
        self._memory = found.memory
        for drop in found.drops:
            await self._forget(drop)
        for stray in found.strays:
            await self._stop(stray)

    async def _loading(self) -> set[tuple[NodeId, ReplicaKey]]:
        live = await self._live()
        return {
            (step.node, target_of(step).key)
            for step in live.steps
            if step.kind is Kind.LOAD and not step.state.final
        }

    async def _ask(self, nodes: Sequence[NodeId]) -> Mapping[NodeId, Sequence[RunningModel]]:
        """All at once; one that does not answer says nothing."""
        answers: dict[NodeId, Sequence[RunningModel]] = {}

        async def ask(node: NodeId) -> None:
            try:
                reply = await self._worker.running(node)
            except RemudaError as error:
                log.debug("running_models_not_told", node=node, reason=error.message)
                return
            if not reply.error:
                answers[node] = reply.models

        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(ask, node)
        return answers

    async def _forget(self, drop: Drop) -> None:
        if await self._store.remove(drop.replica):
            log.warning("replica_forgotten", replica=str(drop.replica.key), reason=drop.why)
            self._table.rows_changed()
            if drop.noted:
                await self._history.note_lost(drop.replica.node, str(drop.replica.key), drop.why)
            if drop.reload:
                await self._load_again(drop.replica.key)

    async def _load_again(self, key: ReplicaKey) -> None:
        """The worker has restarted the process, but a model is loaded only by a frontend. If there is no
        place for it now, the next request looks for one."""
        try:
            await self._models.load_again(key.model, BY)
        except RemudaError as error:
            log.warning("replica_not_reloaded", replica=str(key), reason=error.message)

    async def _stop(self, stray: Stray) -> None:
        if stands_for((await self._store.replicas()).rows, stray):
            return  # A load has been given this very process since.
        log.warning("stray_replica_found", replica=str(stray.key), node=stray.node)
        order = ModelStop(
            model_name=stray.key.model,
            process_key=str(stray.key),
            expected_address=stray.address,
            instance=stray.instance,
        )
        try:
            await self._worker.stop(stray.node, order)
        except RemudaError as error:
            log.warning("stray_replica_not_stopped", replica=str(stray.key), reason=error.message)

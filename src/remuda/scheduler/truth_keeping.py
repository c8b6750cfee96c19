"""Compares rows with what workers say, forgets what is gone, loads again what crashed, and stops what nobody
knows."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
import structlog

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.ops.model import Kind
from remuda.ops.ports import Live
from remuda.ops.sightings import NodeView
from remuda.scheduler.model import ReplicaKey, Replicas
from remuda.scheduler.ports import NoteLost, ReplicaStore, Worker
from remuda.scheduler.truth import Drop, Memory, Scene, Stray, compare, to_ask
from remuda.scheduler.wishes import target_of
from remuda.wire.models import ModelStop, RunningModel

log = structlog.get_logger(__name__)


class TruthKeeper:
    """Implements scheduler.upkeep.Truth. What counts only when it is seen twice is remembered here, so each
    frontend comes to its own conclusion; rows are compared and removed as they were seen, so that of several
    frontends one forgets a row, and has its model loaded again (`reload`) if it crashed."""

    def __init__(
        self,
        store: ReplicaStore,
        worker: Worker,
        nodes: Callable[[], Awaitable[Sequence[NodeView]]],
        live: Callable[[], Awaitable[Live]],
        changed: Callable[[], None],
        reload: Callable[[str], Awaitable[object]],
        note_lost: NoteLost,
    ) -> None:
        self._store = store
        self._worker = worker
        self._nodes = nodes
        self._live = live
        self._changed = changed
        self._reload = reload
        self._note_lost = note_lost
        self._memory = Memory()

    async def look(self, replicas: Replicas) -> None:
        nodes = {view.standing.node.id: view for view in await self._nodes()}
        if not replicas.rows and not any(view.report and view.report.replicas for view in nodes.values()):
            return
        answers = await self._ask(to_ask(replicas, nodes, self._memory))
        found = compare(Scene(replicas, nodes, await self._loading(), answers), self._memory)
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
            self._changed()
            if drop.reload:
                await self._note_lost(drop.replica.node, f"{drop.replica.key}: {drop.why}")
                await self._load_again(drop.replica.key)

    async def _load_again(self, key: ReplicaKey) -> None:
        """The worker has restarted the process, but a model is loaded only by a frontend. If there is no
        place for it now, the next request looks for one."""
        try:
            await self._reload(key.model)
        except RemudaError as error:
            log.warning("replica_not_reloaded", replica=str(key), reason=error.message)

    async def _stop(self, stray: Stray) -> None:
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

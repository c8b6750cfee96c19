"""Replicas that failed a request: looked at once more, and forgotten when they are not what they were.

One that cannot be reached, on a node whose worker does not answer either, is not forgotten, for nobody has
said that it is gone; but it is not waited for: its model may be loaded elsewhere meanwhile.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from remuda.core.errors import NodeUnreachable, RemudaError
from remuda.core.ids import NodeId
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.router.current import Tables
from remuda.router.table import Route, RouteId
from remuda.scheduler.model import Replica
from remuda.scheduler.ports import Engine, NodeHistory, ReplicaStore, RoutingTable, Worker
from remuda.scheduler.worker_calls import stop_process

log = structlog.get_logger(__name__)

_PROBES: Final = 2  # A connection that is refused so often in a row is no accident.
_PROBE_S: Final = 2.0
_BETWEEN_S: Final = 0.3
_VERDICT_S: Final = 10.0
_WORKER_S: Final = 2.0
_AGAIN_S: Final = 2.0
_OUT_OF_REACH: Final = "it could not be reached a moment ago"


class State(Enum):
    WELL = auto()  # Or busy.
    GONE = auto()
    OUT_OF_REACH = auto()


class Doubts:
    """`run` owns the looks, one for each replica."""

    def __init__(
        self,
        tables: Tables,
        store: ReplicaStore,
        engine: Engine,
        worker: Worker,
        *,
        table: RoutingTable,
        history: NodeHistory,
    ) -> None:
        self._tables = tables
        self._store = store
        self._engine = engine
        self._worker = worker
        self._table = table
        self._history = history
        self._tasks: TaskGroup | None = None
        self._open: dict[RouteId, anyio.Event] = {}
        self._away: dict[RouteId, NodeId] = {}

    def nodes_out_of_reach(self) -> Mapping[NodeId, str]:
        """With the reason why nothing is to be loaded there now."""
        return dict.fromkeys(self._away.values(), _OUT_OF_REACH)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    def add(self, route: Route, why: UpstreamFailed) -> None:
        """From now on it is not chosen here, until it has shown that it is well."""
        if self._tasks is None or route.id in self._open:
            return
        log.warning("replica_in_doubt", replica=str(route.key), node=route.node_name, reason=why.message)
        self._open[route.id] = anyio.Event()
        self._tables.leave_out(route)
        self._tasks.start_soon(self._look, route, why.fault)

    async def verdict(self, route: Route) -> bool:
        """Whether it is gone, once that is known."""
        looking = self._open.get(route.id)
        if looking is not None:
            with anyio.move_on_after(_VERDICT_S):
                await looking.wait()
        return not self._tables.has(route)

    async def _look(self, route: Route, fault: Fault) -> None:
        forgotten: Replica | None = None
        try:
            match await self._state(route, fault):
                case State.GONE:
                    forgotten = await self._forget(route)
                    await self._table.refresh()
                case State.WELL:
                    self._tables.take_back(route)
                case State.OUT_OF_REACH:
                    log.warning("replica_out_of_reach", replica=str(route.key), node=route.node_name)
                    self._away[route.id] = route.node
                    self._tables.leave_out(route, away=True)
        except RemudaError as error:  # The store is away: what is true is found out later.
            log.warning("doubt_not_settled", replica=str(route.key), reason=error.message)
            self._tables.take_back(route)
        except Exception:
            log.exception("doubt_broke", replica=str(route.key))
            self._tables.take_back(route)
        finally:
            self._open.pop(route.id).set()
        # For what follows nobody has to wait.
        if forgotten is not None and fault is Fault.NOT_LOADED:
            await self._stop(forgotten)
        elif forgotten is not None:
            await self._history.note_lost(
                route.node, f"{route.key}: its process on {route.node_name} is gone"
            )
        if route.id in self._away:
            await self._until_back(route)

    async def _state(self, route: Route, fault: Fault) -> State:
        if fault is Fault.NOT_LOADED:
            return State.GONE
        if fault is Fault.UNREACHABLE:
            return await self._unreachable(route)
        return State.GONE if await self._answers(route) is False else State.WELL

    async def _unreachable(self, route: Route) -> State:
        """Replica and worker are asked at once: of a machine that is gone neither answers, and a request
        waits for this. What the replica itself says counts more."""
        said: list[State] = []

        async def ask_worker() -> None:
            said.append(await self._as_its_worker_says(route))

        async with anyio.create_task_group() as asking:
            asking.start_soon(ask_worker)
            answers = await self._answers(route)
            if answers is not None:
                asking.cancel_scope.cancel()
        if answers is not None:
            return State.WELL if answers else State.GONE
        return said[0]

    async def _answers(self, route: Route) -> bool | None:
        """False when it refuses connections; None when it says nothing, for busy is not dead."""
        for probe in range(_PROBES):
            if probe:
                await anyio.sleep(_BETWEEN_S)
            healthy: bool | None = None
            with anyio.move_on_after(_PROBE_S):
                healthy = await self._engine.healthy(route.endpoint)
            if healthy is not False:
                return healthy
        return False

    async def _as_its_worker_says(self, route: Route) -> State:
        """A machine that is gone answers nobody, on no line."""
        with anyio.move_on_after(_WORKER_S):
            try:
                reply = await self._worker.running(route.node)
            except NodeUnreachable:
                return State.OUT_OF_REACH
            except RemudaError:  # It is the bus that cannot be used, and says nothing of the node.
                return State.WELL
            same = (one for one in reply.models if route.key == (one.model_id, one.replica_index))
            runs = any(one.instance in ("", route.instance) for one in same)
            return State.WELL if runs or reply.error else State.GONE
        return State.OUT_OF_REACH

    async def _until_back(self, route: Route) -> None:
        """Or no longer in the table: by then its node is known to be away."""
        try:
            while route.id in {each.id for each in self._tables.routes()}:
                await anyio.sleep(_AGAIN_S)
                if await self._engine.healthy(route.endpoint):
                    log.info("replica_back", replica=str(route.key), node=route.node_name)
                    self._tables.take_back(route)
                    return
        finally:
            del self._away[route.id]

    async def _forget(self, route: Route) -> Replica | None:
        """As it was stored; None when it is not any more, or is another by now."""
        replica = await self._row(route)
        if replica is None or not await self._store.remove(replica):
            return None
        log.warning("replica_forgotten", replica=str(route.key), node=route.node_name)
        self._table.rows_changed()
        return replica

    async def _stop(self, replica: Replica) -> None:
        """It holds memory and serves nothing we know."""
        try:
            await stop_process(self._worker, replica)
        except RemudaError as error:
            log.warning("doubtful_replica_not_stopped", replica=str(replica.key), reason=error.message)
        except Exception:
            log.exception("doubtful_replica_not_stopped", replica=str(replica.key))

    async def _row(self, route: Route) -> Replica | None:
        rows = (await self._store.replicas()).rows
        return next((row for row in rows if (row.key, row.change) == route.id), None)

"""Replicas that failed a request: looked at once more, and forgotten when they are not what they were."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from remuda.core.errors import RemudaError
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.router.current import Tables
from remuda.router.table import Route, RouteId
from remuda.scheduler.loader import stop_process
from remuda.scheduler.model import Replica
from remuda.scheduler.ports import Engine, ReplicaStore, Worker

log = structlog.get_logger(__name__)

_PROBES: Final = 2  # A connection that is refused so often in a row is no accident.
_PROBE_S: Final = 2.0
_BETWEEN_S: Final = 0.3
_VERDICT_S: Final = 10.0


class Doubts:
    """`run` owns the looks, one for each replica. `changed` tells everybody of a row that is gone."""

    def __init__(
        self,
        tables: Tables,
        store: ReplicaStore,
        engine: Engine,
        worker: Worker,
        *,
        changed: Callable[[], None],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._tables = tables
        self._store = store
        self._engine = engine
        self._worker = worker
        self._changed = changed
        self._refresh = refresh
        self._tasks: TaskGroup | None = None
        self._open: dict[RouteId, anyio.Event] = {}

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
            if fault is Fault.NOT_LOADED or not await self._answers(route):
                forgotten = await self._forget(route)
                await self._refresh()
            else:
                self._tables.take_back(route)
        except RemudaError as error:  # The store is away: what is true is found out later.
            log.warning("doubt_not_settled", replica=str(route.key), reason=error.message)
            self._tables.take_back(route)
        except Exception:
            log.exception("doubt_broke", replica=str(route.key))
            self._tables.take_back(route)
        finally:
            self._open.pop(route.id).set()
        if forgotten is not None and fault is Fault.NOT_LOADED:  # For which nobody has to wait.
            await self._stop(forgotten)

    async def _answers(self, route: Route) -> bool:
        """Busy is not dead."""
        for probe in range(_PROBES):
            if probe:
                await anyio.sleep(_BETWEEN_S)
            with anyio.move_on_after(_PROBE_S):
                if await self._engine.healthy(route.endpoint) is not False:
                    return True
                continue
            return True
        return False

    async def _forget(self, route: Route) -> Replica | None:
        """As it was stored; None when it is not any more, or is another by now."""
        replica = await self._row(route)
        if replica is None or not await self._store.remove(replica):
            return None
        log.warning("replica_forgotten", replica=str(route.key), node=route.node_name)
        self._changed()
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

"""Replicas that failed a request: left out of the table until scheduler.inspection has looked at them.

One that is out of reach is not waited for: its model may be loaded elsewhere meanwhile. It is asked now and
then, and routed to again when it answers.
"""

from collections.abc import Mapping
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.core.tasks import TaskOwner
from remuda.inference.failures import UpstreamFailed
from remuda.router.live_table import Tables
from remuda.router.table import Route, RouteId
from remuda.scheduler.inspection import Inspection, Inspector, ReplicaHealth, Suspect
from remuda.scheduler.ports import RoutingTable

log = structlog.get_logger(__name__)

_VERDICT_S: Final = 10.0
_AGAIN_S: Final = 2.0
_OUT_OF_REACH: Final = "it could not be reached a moment ago"


class Suspects:
    """`run` owns the looks, one for each replica."""

    def __init__(self, tables: Tables, table: RoutingTable, inspector: Inspector) -> None:
        self._tables = tables
        self._table = table
        self._inspector = inspector
        self._tasks = TaskOwner()
        self._open: dict[RouteId, anyio.Event] = {}
        self._away: dict[RouteId, NodeId] = {}

    def nodes_out_of_reach(self) -> Mapping[NodeId, str]:
        """With the reason why nothing is to be loaded there now."""
        return dict.fromkeys(self._away.values(), _OUT_OF_REACH)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._tasks.run(task_status=task_status)

    def add(self, route: Route, why: UpstreamFailed) -> None:
        """From now on it is not chosen here, until it has shown that it is well."""
        if not self._tasks.is_open or route.id in self._open or route.id in self._away:
            return
        log.warning("replica_suspected", replica=str(route.key), node=route.node_name, reason=why.message)
        self._open[route.id] = anyio.Event()
        self._tables.leave_out(route)
        self._tasks.start(self._look, route, _suspect(route, why))

    async def fence(self, route: Route, why: UpstreamFailed) -> None:
        """Not to be chosen any more; returns when it is known what becomes of it."""
        self.add(route, why)
        await self.verdict(route)

    async def verdict(self, route: Route) -> bool:
        """Whether it is gone, once that is known."""
        looking = self._open.get(route.id)
        if looking is not None:
            with anyio.move_on_after(_VERDICT_S):
                await looking.wait()
        return not self._tables.has(route)

    async def _look(self, route: Route, suspect: Suspect) -> None:
        try:
            found = await self._settle(route, suspect)
            # No request waits for what follows.
            if found is not None:
                await self._inspector.follow_up(suspect, found)
            if route.id in self._away:
                await self._until_back(route, suspect)
        except Exception:  # It concerns one replica, and the frontend goes on.
            log.exception("inspection_crashed", replica=str(route.key))
            self._tables.take_back(route)
        finally:
            self._away.pop(route.id, None)

    async def _settle(self, route: Route, suspect: Suspect) -> Inspection | None:
        """What was found, acted upon; None: nothing could be found out."""
        try:
            found = await self._inspector.inspect(suspect)
            await self._go_by(route, found.health)
        except RemudaError as error:  # The store is away: what is true is found out later.
            log.warning("inspection_failed", replica=str(route.key), reason=error.message)
            self._tables.take_back(route)
            return None
        finally:
            self._open.pop(route.id).set()
        return found

    async def _go_by(self, route: Route, health: ReplicaHealth) -> None:
        match health:
            case ReplicaHealth.GONE:
                await self._table.refresh()
            case ReplicaHealth.WELL:
                self._tables.take_back(route)
            case ReplicaHealth.OUT_OF_REACH:
                log.warning("replica_out_of_reach", replica=str(route.key), node=route.node_name)
                self._away[route.id] = route.node
                self._tables.leave_out(route, away=True)

    async def _until_back(self, route: Route, suspect: Suspect) -> None:
        """Or no longer in the table: by then its node is known to be away."""
        while route.id in {each.id for each in self._tables.routes()}:
            await anyio.sleep(_AGAIN_S)
            if await self._inspector.answers(suspect):
                log.info("replica_back", replica=str(route.key), node=route.node_name)
                self._tables.take_back(route)
                return


def _suspect(route: Route, why: UpstreamFailed) -> Suspect:
    return Suspect(
        route.key,
        route.change,
        route.node,
        route.node_name,
        route.endpoint,
        route.instance,
        why.fault,
        why.message,
    )

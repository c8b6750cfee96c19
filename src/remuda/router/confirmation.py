"""Asks workers which replicas are still there while the store cannot be read.

A table that cannot be refreshed goes on serving, but others may unload what is in it. So every routed
replica has to be confirmed: by its worker, which names the very process, over the bus if that can be used,
else over the worker's HTTP server. A health call proves less: another model may have the port by now. It is
for peers that name no process, and for workers of an older release. Requests never wait for any of this.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId, ReplicaKey
from remuda.router.live_table import Tables
from remuda.router.table import Route, RouteId
from remuda.scheduler.ports import ReplicaEngine, WorkerCommands, WorkerHttp
from remuda.wire.models import ModelsRunningReply

log = structlog.get_logger(__name__)

_EVERY_S: Final = 5.0
_UNCONFIRMED_S: Final = 15.0
_STALE_S: Final = 5.0  # A table that was read from the store so long ago needs to be confirmed.

Answers = Mapping[RouteId, bool | None]
"""Whether it is there; None: no answer."""


def confirmed_at(
    routes: Iterable[Route], answers: Answers, before: Mapping[RouteId, float], now_s: float, read_s: float
) -> dict[RouteId, float]:
    """When each replica was last known to be there. One that was denied never was. Pure."""
    at: dict[RouteId, float] = {}
    for route in routes:
        match answers.get(route.id):
            case True:
                at[route.id] = now_s
            case False:
                at[route.id] = float("-inf")
            case None:
                at[route.id] = before.get(route.id, read_s)
    return at


def unconfirmed(at: Mapping[RouteId, float], now_s: float) -> frozenset[RouteId]:
    return frozenset(route for route, at_s in at.items() if now_s - at_s >= _UNCONFIRMED_S)


class Confirming:
    """`read_s` is when the table was last read from the store, by `clock`."""

    def __init__(
        self,
        tables: Tables,
        worker: WorkerCommands,
        worker_http: WorkerHttp,
        engine: ReplicaEngine,
        clock: Clock,
        *,
        read_s: Callable[[], float],
        every_s: float = _EVERY_S,
        stale_s: float = _STALE_S,
    ) -> None:
        """It looks every so often. A table is stale when it was read from the store so long ago."""
        self._tables = tables
        self._worker = worker
        self._worker_http = worker_http
        self._engine = engine
        self._clock = clock
        self._read_s = read_s
        self._every_s = every_s
        self._stale_s = stale_s
        self._at: Mapping[RouteId, float] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await anyio.sleep(self._every_s)
            await self.look()

    async def look(self) -> None:
        """Ask, if the table is stale; otherwise the table itself is what is known."""
        read_s = self._read_s()
        answers: Answers = {}
        routes = self._tables.replicas()
        if self._is_stale(read_s):
            answers = await self._ask(routes)
        if not self._is_stale(self._read_s()):  # The store may have come back meanwhile.
            self._at = {}
            self._tables.hold_back(frozenset())
            return
        now_s = self._clock.monotonic()
        self._at = confirmed_at(routes, answers, self._at, now_s, read_s)
        gone = unconfirmed(self._at, now_s)
        if gone != self._tables.held_back:
            log.warning("replicas_unconfirmed", replicas=sorted(str(key) for key, _ in gone))
        self._tables.hold_back(gone)

    def _is_stale(self, read_s: float) -> bool:
        return self._clock.monotonic() - read_s >= self._stale_s

    async def _ask(self, routes: Iterable[Route]) -> Answers:
        """One question for each node of ours, one for each other replica; a slow one holds up no other."""
        answers: dict[RouteId, bool | None] = {}
        by_node: dict[NodeId, list[Route]] = {}
        for route in routes:
            by_node.setdefault(route.node, []).append(route)
        few = anyio.CapacityLimiter(limits.CONFIRMATIONS_AT_ONCE_MAX)

        async def ask(node: NodeId, routes: Sequence[Route]) -> None:
            async with few:
                answers.update(await self._ask_node(node, routes))

        async with anyio.create_task_group() as tasks:
            for node, its_routes in by_node.items():
                tasks.start_soon(ask, node, its_routes)
        return answers

    async def _ask_node(self, node: NodeId, routes: Sequence[Route]) -> Answers:
        named = [route for route in routes if route.instance]
        answers = await self._ask_worker(node, named) if named else {}
        for route in routes:
            if route.id not in answers:
                answers[route.id] = await self._engine.healthy(route.endpoint)
        return answers

    async def _ask_worker(self, node: NodeId, routes: Sequence[Route]) -> dict[RouteId, bool | None]:
        """Without an answer nothing is known of any of them; empty: this worker cannot be asked."""
        reply = await self._over_bus(node)
        if reply is None and (server := routes[0].worker) is not None:
            try:
                reply = await self._worker_http.running(server)
            except RemudaError as error:
                log.debug("worker_not_asked", node=node, reason=error.message)
                return dict.fromkeys((route.id for route in routes), None)
        if reply is None:
            return {}
        return {route.id: None if reply.error else _runs(route, reply) for route in routes}

    async def _over_bus(self, node: NodeId) -> ModelsRunningReply | None:
        """None: it did not answer, or could not tell."""
        with anyio.move_on_after(limits.CONFIRMATION_S):
            try:
                reply = await self._worker.running(node)
            except RemudaError as error:
                log.debug("worker_not_asked_over_bus", node=node, reason=error.message)
                return None
            return None if reply.error else reply
        return None


def _runs(route: Route, reply: ModelsRunningReply) -> bool:
    return any(
        route.key == ReplicaKey(one.model_id, one.replica_index) and one.instance in ("", route.instance)
        for one in reply.models
    )

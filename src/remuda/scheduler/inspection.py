"""Inspects a replica that failed a request, and removes it when its process is gone or another.

One that cannot be reached, on a node whose worker does not answer either, is not forgotten, for no one has
said that it is gone.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import anyio
import structlog

from remuda.core.errors import NodeUnreachable, RemudaError
from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.failures import Fault
from remuda.inference.model import ReplicaEndpoint
from remuda.scheduler.model import Replica
from remuda.scheduler.ports import NodeHistory, ReplicaEngine, ReplicaStore, RoutingTable, WorkerCommands
from remuda.scheduler.worker_calls import stop_process

log = structlog.get_logger(__name__)

_PROBES: Final = 2  # A connection that is refused so often in a row is no accident.
_PROBE_S: Final = 2.0
_BETWEEN_S: Final = 0.3
_WORKER_S: Final = 2.0


class ReplicaHealth(Enum):
    WELL = auto()  # Or busy.
    GONE = auto()
    OUT_OF_REACH = auto()


@dataclass(frozen=True, slots=True)
class Suspect:
    """A replica as requests were routed to it, and how the last one failed."""

    key: ReplicaKey
    change: int  # Of its row: after another load at the same place it is another replica.
    node: NodeId
    node_name: str
    endpoint: ReplicaEndpoint
    instance: str
    fault: Fault
    why: str = ""  # It failed, in words.


@dataclass(frozen=True, slots=True)
class Inspection:
    health: ReplicaHealth
    forgotten: Replica | None = None  # Its row, if it was forgotten just now.


class Inspector:
    def __init__(
        self,
        store: ReplicaStore,
        engine: ReplicaEngine,
        worker: WorkerCommands,
        *,
        table: RoutingTable,
        history: NodeHistory,
    ) -> None:
        self._store = store
        self._engine = engine
        self._worker = worker
        self._table = table
        self._history = history

    async def inspect(self, suspect: Suspect) -> Inspection:
        """One that is gone is forgotten. Raises what the store raises."""
        health = await self._health(suspect)
        gone = health is ReplicaHealth.GONE
        return Inspection(health, await self._forget(suspect) if gone else None)

    async def follow_up(self, suspect: Suspect, found: Inspection) -> None:
        """What no request has to wait for: it is noted, and one that lost its model is stopped, for it holds
        memory and serves nothing we know."""
        if found.forgotten is None:
            return
        if suspect.fault is Fault.NOT_LOADED:
            why = f"taken out of service: {suspect.why}"
            await self._history.note_lost(suspect.node, str(suspect.key), why)
            await self._stop(found.forgotten)
        else:
            why = f"its process on {suspect.node_name} is gone"
            await self._history.note_lost(suspect.node, str(suspect.key), why, suspect.instance)

    async def answers(self, suspect: Suspect) -> bool:
        return bool(await self._engine.healthy(suspect.endpoint))

    async def _health(self, suspect: Suspect) -> ReplicaHealth:
        if suspect.fault is Fault.NOT_LOADED:
            return ReplicaHealth.GONE
        return await self._as_both_say(suspect)

    async def _as_both_say(self, suspect: Suspect) -> ReplicaHealth:
        """Replica and worker are asked at once: of a machine that is gone neither answers, and a request
        waits for this. What the replica itself says counts more."""
        healths: list[ReplicaHealth] = []

        async def ask_worker() -> None:
            healths.append(await self._as_its_worker_says(suspect))

        async with anyio.create_task_group() as asking:
            asking.start_soon(ask_worker)
            answers = await self._probe(suspect)
            if answers is not None:
                asking.cancel_scope.cancel()
        if answers is not None:
            return ReplicaHealth.WELL if answers else ReplicaHealth.GONE
        return healths[0]

    async def _probe(self, suspect: Suspect) -> bool | None:
        """False when it refuses connections; None when it says nothing, for busy is not dead."""
        for probe in range(_PROBES):
            if probe:
                await anyio.sleep(_BETWEEN_S)
            healthy: bool | None = None
            with anyio.move_on_after(_PROBE_S):
                healthy = await self._engine.healthy(suspect.endpoint)
            if healthy is not False:
                return healthy
        return False

    async def _as_its_worker_says(self, suspect: Suspect) -> ReplicaHealth:
        """A machine that is gone answers on no connection."""
        with anyio.move_on_after(_WORKER_S):
            try:
                reply = await self._worker.running(suspect.node)
            except NodeUnreachable:
                return ReplicaHealth.OUT_OF_REACH
            except RemudaError:  # It is the bus that cannot be used, and says nothing of the node.
                return ReplicaHealth.WELL
            same = (one for one in reply.models if suspect.key == (one.model_id, one.replica_index))
            runs = any(one.instance in ("", suspect.instance) for one in same)
            return ReplicaHealth.WELL if runs or reply.error else ReplicaHealth.GONE
        return ReplicaHealth.OUT_OF_REACH

    async def _forget(self, suspect: Suspect) -> Replica | None:
        """As it was stored; None when it is not any more, or is another by now."""
        rows = (await self._store.replicas()).rows
        its_row = (suspect.key, suspect.change)
        replica = next((row for row in rows if (row.key, row.change) == its_row), None)
        if replica is None or not await self._store.remove(replica):
            return None
        log.warning("replica_forgotten", replica=str(suspect.key), node=suspect.node_name)
        self._table.rows_changed()
        return replica

    async def _stop(self, replica: Replica) -> None:
        try:
            await stop_process(self._worker, replica)
        except RemudaError as error:
            log.warning("suspect_not_stopped", replica=str(replica.key), reason=error.message)
        except Exception:
            log.exception("suspect_not_stopped", replica=str(replica.key))

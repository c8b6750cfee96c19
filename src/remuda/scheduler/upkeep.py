"""Keeps replicas true: forgets those that are gone, stops those that nobody knows, unloads those that are not
wanted. It takes no input; a signal only wakes it, and every frontend may run it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import Conflict, RemudaError
from remuda.core.ids import NodeId
from remuda.ops.model import Kind, UnloadReason
from remuda.ops.ports import Live
from remuda.scheduler.catalogue import Catalogue
from remuda.scheduler.chores import Circumstances, Forget, Unload, chores, idle_next
from remuda.scheduler.model import Replica, ReplicaKey, Replicas, ReplicaState
from remuda.scheduler.ports import ReplicaStore
from remuda.scheduler.unloads import Unloads
from remuda.scheduler.wishes import target_of

log = structlog.get_logger(__name__)

_EVERY_S: Final = 5.0
BY: Final = "remuda"


class Truth(Protocol):
    """Compares rows with what workers say; see truth_keeping."""

    async def look(self, replicas: Replicas) -> None: ...


@dataclass(frozen=True, slots=True)
class Habits:
    keep_alive: timedelta = timedelta(minutes=30)


class Upkeep:
    """`in_flight` counts over all frontends; `changed` tells everybody that a row is gone."""

    def __init__(
        self,
        store: ReplicaStore,
        live: Callable[[], Awaitable[Live]],
        catalogue: Catalogue,
        truth: Truth,
        unloads: Unloads,
        *,
        in_flight: Callable[[ReplicaKey], int],
        changed: Callable[[], None],
        wake: Callable[[], anyio.Event],
        habits: Habits,
    ) -> None:
        self._store = store
        self._live = live
        self._catalogue = catalogue
        self._truth = truth
        self._unloads = unloads
        self._in_flight = in_flight
        self._changed = changed
        self._wake = wake
        self._habits = habits

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            news, pause_s = self._wake(), _EVERY_S
            try:
                pause_s = min(pause_s, await self.pass_once())
            except RemudaError as error:  # The store is away, and that is nobody's defect.
                log.warning("upkeep_failed", reason=error.message)
            except Exception:
                log.exception("upkeep_broke")
            await anyio.sleep(_EVERY_S / 5)
            with anyio.move_on_after(pause_s):
                await news.wait()

    async def pass_once(self) -> float:
        """Seconds until a replica may be idle for long enough."""
        replicas = await self._store.replicas()
        await self._truth.look(replicas)
        if not replicas.rows:
            return _EVERY_S
        await self._catalogue.refresh()
        around = await self._circumstances(replicas)
        for chore in chores(replicas.rows, around):
            match chore:
                case Forget(replica):
                    await self._forget(replica)
                case Unload(replica, why):
                    await self._unload(replica, why)
        due = idle_next(replicas.rows, around)
        return _EVERY_S if due is None else max((due - replicas.now).total_seconds(), 0.0)

    async def _circumstances(self, replicas: Replicas) -> Circumstances:
        moving = any(row.state is not ReplicaState.LOADED for row in replicas.rows)
        live = await self._live() if moving else None
        return Circumstances(
            now=replicas.now,
            configs={name: one.config for name, one in self._catalogue.models.items()},
            unreadable=self._catalogue.unreadable,
            live=set() if live is None else {operation.id for operation in live.operations},
            leaving=set() if live is None else _leaving(live),
            usual_keep_alive=self._habits.keep_alive,
            in_flight=self._in_flight,
        )

    async def _forget(self, replica: Replica) -> None:
        if await self._store.remove(replica):
            log.info("replica_forgotten", replica=str(replica.key), reason="its load is over")
            self._changed()

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

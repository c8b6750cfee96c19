"""Keeps as many replicas of each model as are declared: loads what is missing, removes what is too much.

It takes no input; a signal only wakes it, and every frontend may run it. Loads are only begun here, and
operations carry them out, so that a slow one delays no other model.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import Conflict, RemudaError
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.verdicts import ObservedNode, installed, is_up, may_take_work
from remuda.ops.model import OpId, UnloadReason
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.eviction import BESIDE, FIRST, Turn
from remuda.scheduler.measured_memory import MemoryBook
from remuda.scheduler.model import Replica, Replicas, ReplicaState, Unplaceable
from remuda.scheduler.node_room import RoomInputs, RoomLeft, grew, least, measured_room, room
from remuda.scheduler.ports import ReplicaRows, RoutingTable
from remuda.scheduler.replica_goals import (
    AddReplica,
    GoalInputs,
    RemoveReplica,
    cooldown_after,
    cools_down,
    goals,
    still_wanted,
)
from remuda.scheduler.scheduling import Cooldown, SchedulingStore
from remuda.scheduler.unloader import UnloadRequests

log = structlog.get_logger(__name__)

BY: Final = "remuda"
_EVERY_S: Final = 5.0
_GAP_S: Final = 1.0
_WHY_CHARS_MAX: Final = 1000
_LOAD_FAILED: Final = "its last load failed, or was cancelled; remuda ops shows why"
_HAS_ONE: Final = "it has a replica already"


class ReplicaPlaces(Protocol):
    async def begin(
        self,
        model: Catalogued,
        by: str,
        avoid: Mapping[NodeId, str],
        *,
        turn: Turn,
        wanted: Callable[[Replicas], bool] | None,
    ) -> Replica | Unplaceable | None:
        """As for demand, but beside other loads of the model, and only while it is `wanted`."""
        ...


@dataclass(frozen=True, slots=True)
class KeeperDeps:
    """`in_flight` counts over all frontends. `hot`: see GoalInputs. `memory`: as for placing."""

    replicas: ReplicaRows
    scheduling: SchedulingStore
    catalogue: ModelCatalogue
    nodes: Callable[[], Awaitable[Sequence[ObservedNode]]]
    placer: ReplicaPlaces
    unloads: UnloadRequests
    in_flight: Callable[[ReplicaKey], int]
    table: RoutingTable
    hot: Callable[[], Mapping[str, int]] = dict
    memory: Callable[[], MemoryBook] = MemoryBook


class ReplicaKeeper:
    def __init__(self, deps: KeeperDeps) -> None:
        self._deps = deps
        self._busy_since: Mapping[str, datetime] = {}
        self._refused: dict[str, RoomLeft] = {}  # What there was when a model was refused here last.
        self._begun: dict[OpId, str] = {}  # Loads that were begun here and are not over, by model.

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            news = self._deps.table.next_change
            try:
                await self.pass_once()
            except RemudaError as error:  # The store is away, which is not a bug.
                log.warning("replicas_not_kept", reason=error.message)
            except Exception:
                log.exception("replica_keeper_broke")
            await anyio.sleep(_GAP_S)
            with anyio.move_on_after(_EVERY_S - _GAP_S):
                await news.wait()

    def _scaled(self) -> dict[str, Catalogued]:
        known = self._deps.catalogue.models.items()
        return {
            name: one
            for name, one in known
            if one.config.scaled and not one.config.alias and not one.lacks_files
        }

    async def pass_once(self) -> None:
        if not self._scaled():
            return
        await self._deps.catalogue.refresh()  # Nothing is added to a model that was removed or changed since.
        models = self._scaled()
        seen = await self._deps.replicas.replicas()
        nodes = {view.standing.node.id: view for view in await self._deps.nodes()}
        found = goals(
            GoalInputs(
                seen.now,
                {name: one.config for name, one in models.items()},
                seen.rows,
                nodes,
                self._deps.in_flight,
                self._busy_since,
                self._deps.hot(),
            )
        )
        self._busy_since = found.busy_since
        for removal in found.remove:
            await self._remove(removal)
        cooldowns = await self._deps.scheduling.cooldowns()
        for model in cooldowns.keys() & found.settled:
            self._refused.pop(model, None)
            await self._deps.scheduling.put_cooldown(model, None)
        refused = set[str]()
        for model in self._failed(seen):
            if model in models:
                fleet = fingerprint(models[model], nodes.values())
                await self._cool_down(model, cooldowns.get(model), seen.now, fleet, _LOAD_FAILED)
                refused.add(model)
        look = _Look(seen, nodes)
        for one in found.add:
            if one.model not in refused and not await self._add(
                models[one.model], one, look, cooldowns.get(one.model)
            ):
                refused.add(one.model)

    def _failed(self, seen: Replicas) -> set[str]:
        """Models of which a load that was begun here has come to nothing."""
        rows = {row.op: row for row in seen.rows}
        failed = {model for op, model in self._begun.items() if op not in rows}
        self._begun = {
            op: model
            for op, model in self._begun.items()
            if op in rows and rows[op].state is not ReplicaState.LOADED
        }
        return failed

    async def _cool_down(
        self,
        model: str,
        before: Cooldown | None,
        now: datetime,
        fleet: str,
        why: str,
        *,
        waiting_helps: bool = False,
    ) -> None:
        later = cooldown_after(before, now, fleet, why, waiting_helps=waiting_helps)
        await self._deps.scheduling.put_cooldown(model, later)

    async def _add(
        self, model: Catalogued, one: AddReplica, look: "_Look", cooldown: Cooldown | None
    ) -> bool:
        """False: nothing more of this model is tried in this pass."""
        seen, nodes = look.seen, look.nodes
        fleet = fingerprint(model, nodes.values())
        if cools_down(cooldown, seen.now, fleet) and not self._has_more_room(one.model, look, cooldown):
            return False

        def wanted(seen_then: Replicas) -> bool:
            return still_wanted(one, model.config, seen_then.rows, nodes)

        avoid = dict.fromkeys(one.has_one, _HAS_ONE)
        try:
            turn = FIRST if one.evicts else BESIDE
            begun = await self._deps.placer.begin(model, BY, avoid, turn=turn, wanted=wanted)
        except Conflict:  # Another frontend was quicker.
            return False
        if isinstance(begun, Unplaceable):
            await self._refuse(one, begun, look, fleet, cooldown)
            return False
        if begun is None:
            return False
        self._begun[begun.op] = one.model
        log.info("replica_added", replica=str(begun.key), node=begun.node, reason=one.why)
        return True

    async def _refuse(
        self, one: AddReplica, found: Unplaceable, look: "_Look", fleet: str, before: Cooldown | None
    ) -> None:
        why = "; ".join(found.told(most=3))[:_WHY_CHARS_MAX]
        helps = found.waiting_helps
        await self._cool_down(one.model, before, look.seen.now, fleet, why, waiting_helps=helps)
        if before is None or before.why != why:
            log.info("replica_not_placed", model=one.model, wanted=one.why, reason=why)
        # It was refused some time between these two looks.
        nodes = {view.standing.node.id: view for view in await self._deps.nodes()}
        again = _Look(await self._deps.replicas.replicas(), nodes)
        self._refused[one.model] = least(self._room(one.model, look), self._room(one.model, again))

    def _has_more_room(self, model: str, look: "_Look", cooldown: Cooldown | None) -> bool:
        """Than when it was refused. What another frontend was refused is tried here once: what there was then
        is not known here."""
        if cooldown is not None and cooldown.why == _LOAD_FAILED:  # RoomLeft is not what it lacked.
            return False
        before = self._refused.get(model)
        return before is None or grew(before, self._room(model, look))

    def _room(self, model: str, look: "_Look") -> RoomLeft:
        known, memory = self._deps.catalogue.models.items(), self._deps.memory()
        if look.room is None:
            configs = {name: one.config for name, one in known}
            inputs = RoomInputs(look.seen, look.nodes, configs, self._deps.in_flight)
            look.room = room(inputs)
        return {**look.room, **measured_room(model, memory)}

    async def _remove(self, removal: RemoveReplica) -> None:
        replica, reason = removal.replica, UnloadReason(removal.cause)
        try:
            await self._deps.unloads.ask(replica, BY, reason)
            log.info("replica_removed", replica=str(replica.key), reason=str(reason))
        except Conflict as error:
            log.info("replica_not_removed", replica=str(replica.key), reason=error.message)


@dataclass(slots=True)
class _Look:
    """What was seen at one instant."""

    seen: Replicas
    nodes: Mapping[NodeId, ObservedNode]
    room: RoomLeft | None = None  # Computed only where something is refused.


def fingerprint(model: Catalogued, nodes: Iterable[ObservedNode]) -> str:
    """Of what could make it possible to place it: its configuration, and which nodes there are, whether they
    take work, their labels, slots, memory and backends."""
    config = model.config
    selector = sorted(config.selector.items())
    wish = (config.revision, config.min_replicas, config.max_replicas, config.everywhere, selector)
    facts = sorted(map(_facts, nodes))
    return hashlib.sha256(repr((wish, facts)).encode()).hexdigest()[:16]


def _facts(view: ObservedNode) -> tuple[object, ...]:
    node = view.standing.node
    return (
        node.id,
        view.boot or "",
        is_up(view.standing) and may_take_work(node),
        sorted((key, label.value) for key, label in node.labels.items()),
        node.effective_max_replicas,
        node.effective_budget,
        node.resources.total_vram,
        node.resources.total_ram,
        sorted(one.name for one in installed(view) or ()),
    )

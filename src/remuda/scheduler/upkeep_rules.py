"""What upkeep does about replicas that have lost their process, processes that have no replica, and
replicas that are idle, outdated, being unloaded, or left over from a load that ended. Pure.

Nothing is concluded from silence. A worker that says what became of a process is believed at once; one that
no longer mentions it has to do so twice. Busy is not dead.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Reachability
from remuda.fleet.model import Node
from remuda.fleet.verdicts import ObservedNode, is_up
from remuda.models.config import ModelConfig
from remuda.ops.model import OpId, UnloadCause, UnloadReason
from remuda.scheduler.model import Replica, Replicas, ReplicaState, why_stopped
from remuda.wire.models import RunningModel
from remuda.wire.nodes import Report, RunningReplica

_SAID_UNDER_WAY: Final = timedelta(seconds=5)  # What a node says may be older than its arrival by so much.
_FORGOTTEN_AFTER: Final = timedelta(minutes=10)  # Of a node that is away.
_ASKED_AFTER: Final = timedelta(minutes=2)  # A node without reports, about a row that nothing has confirmed.
_STRAY_FOR: Final = timedelta(seconds=30)
_RELOADED_AGAIN: Final = timedelta(minutes=5)  # One that crashes sooner again waits for the next request.
_ENDED: Final = frozenset({"waiting", "failed"})  # States of a key whose last process has ended by itself.

_Row = tuple[ReplicaKey, int]  # A row as it was written last.
_Process = tuple[NodeId, ReplicaKey, str]


@dataclass(frozen=True, slots=True)
class Drop:
    """A row to forget. `reload`: it served until its process ended by itself, and is to serve again. `noted`:
    the node's history tells of it."""

    replica: Replica
    why: str
    reload: bool = False
    noted: bool = False


@dataclass(frozen=True, slots=True)
class Stray:
    """A process to stop: this very instance, and no successor of it."""

    node: NodeId
    key: ReplicaKey
    instance: str
    address: str


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """When something was noticed first, and by which report, or at which time of asking."""

    at: datetime
    sequence: int


@dataclass(frozen=True, slots=True)
class DriftMemory:
    """What was noticed at earlier looks, and counts only if it is noticed again."""

    missing: Mapping[_Row, FirstSeen] = field(default_factory=dict)
    strays: Mapping[_Process, FirstSeen] = field(default_factory=dict)
    confirmed: Mapping[_Row, datetime] = field(default_factory=dict)  # By a node that was asked.
    reloads: Mapping[ReplicaKey, datetime] = field(default_factory=dict)  # Of crashed ones, lately.


@dataclass(frozen=True, slots=True)
class Drift:
    drops: tuple[Drop, ...]
    strays: tuple[Stray, ...]
    memory: DriftMemory  # For the next look.


@dataclass(frozen=True, slots=True)
class Scene:
    """`loading`: what live operations are about to load, where. `answers`: of nodes that were asked which
    replicas run there, and answered."""

    replicas: Replicas
    nodes: Mapping[NodeId, ObservedNode]
    loading: Collection[tuple[NodeId, ReplicaKey]] = ()
    answers: Mapping[NodeId, Sequence[RunningModel]] = field(default_factory=dict)


def to_ask(replicas: Replicas, nodes: Mapping[NodeId, ObservedNode], memory: DriftMemory) -> list[NodeId]:
    """Nodes without reports, with replicas that were not confirmed for a while, or since it registered
    again: that may have been a restart."""
    return sorted(
        {
            row.node
            for row in replicas.rows
            if (view := nodes.get(row.node)) is not None
            and not view.reports
            and is_up(view.standing)
            and row.state is ReplicaState.LOADED
            and _due(_heard_of(row, memory), view.standing.node, replicas.now)
        }
    )


def _due(heard_of: datetime, node: Node, now: datetime) -> bool:
    registered_since = node.registered_at is not None and node.registered_at > heard_of
    return registered_since or now - heard_of >= _ASKED_AFTER


def compare(scene: Scene, memory: DriftMemory) -> Drift:
    """What is stored against what is so. The rows are all there are, the nodes too."""
    missing: dict[_Row, FirstSeen] = {}
    confirmed: dict[_Row, datetime] = {}
    drops: list[Drop] = []
    for row in scene.replicas.rows:
        key = (row.key, row.change)
        verdict = _verdict(row, scene, memory)
        match verdict:
            case Drop():
                drops.append(verdict)
            case FirstSeen():
                missing[key] = verdict
            case datetime():
                confirmed[key] = verdict
            case None if key in memory.confirmed:
                confirmed[key] = memory.confirmed[key]
            case None:
                pass
    now = scene.replicas.now
    reloads = {key: at for key, at in memory.reloads.items() if now - at < _RELOADED_AGAIN}
    drops = [replace(drop, reload=drop.reload and drop.replica.key not in reloads) for drop in drops]
    reloads |= {drop.replica.key: now for drop in drops if drop.reload}
    strays, suspects = _strays(scene, memory)
    return Drift(tuple(drops), tuple(strays), DriftMemory(missing, suspects, confirmed, reloads))


# Rows.

_Verdict = Drop | FirstSeen | datetime | None
"""It goes; it is missing, but not for certain; when it was confirmed; or nothing."""


def _verdict(row: Replica, scene: Scene, memory: DriftMemory) -> _Verdict:
    now, view = scene.replicas.now, scene.nodes.get(row.node)
    if view is None:
        return Drop(row, "its node was removed")
    node = view.standing.node
    if row.boot is not None and row.boot != view.boot:
        return Drop(row, f"the worker on {node.name} was started anew")
    if view.standing.reachability in (Reachability.GONE, Reachability.DEPARTED):
        return Drop(row, f"{node.name} is away") if view.standing.silence >= _FORGOTTEN_AFTER else None
    if row.state in (ReplicaState.STAGING, ReplicaState.LOADING):
        return None  # Its operation answers for it, and upkeep for those whose operation is over.
    before = memory.missing.get((row.key, row.change))
    if not view.reports:
        return _asked(row, node.name, scene.answers.get(row.node), now, before)
    return None if view.report is None else _reported(row, view, view.report, now, before)


def _reported(
    row: Replica, view: ObservedNode, report: Report, now: datetime, before: FirstSeen | None
) -> _Verdict:
    if row.state is ReplicaState.LOADED and (why := why_stopped(row, report)):
        return Drop(row, why, noted=True)
    if not _reported_since(row, view):
        return None
    node = view.standing.node.name
    for reported in report.replicas:
        if row.key == ReplicaKey(reported.model_id, reported.replica_index):
            return _ended(row, reported, node)
    sequence = report.sequence
    if before is None or before.sequence == sequence:
        return before or FirstSeen(now, sequence)
    return Drop(row, f"its process on {node} is gone")  # It may have been stopped on purpose.


def _ended(row: Replica, reported: RunningReplica, node: str) -> Drop | None:
    """The worker names what it has under this key: if that is not the row's process, or that has ended, the
    row is false, and no second report is needed. One that is being unloaded is its operation's concern."""
    if row.state is ReplicaState.UNLOADING:
        return None
    replaced = bool(row.instance and reported.instance) and row.instance != reported.instance
    if not replaced and reported.state not in _ENDED:
        return None
    trouble = f": {reported.trouble}" if reported.trouble else ""
    return Drop(row, f"its process on {node} ended{trouble}", reload=True, noted=True)


def _asked(
    row: Replica, node: str, answer: Sequence[RunningModel] | None, now: datetime, before: FirstSeen | None
) -> _Verdict:
    if answer is None:
        return before
    if any(_is_of(row, one.model_id, one.replica_index, one.instance) for one in answer):
        return now
    if before is None:
        return FirstSeen(now, 1)
    return Drop(row, f"the worker on {node} says that it does not run")


def _reported_since(row: Replica, view: ObservedNode) -> bool:
    """Its report was taken after the row was written."""
    written = row.updated_at
    return written is not None and view.standing.node.last_heartbeat - _SAID_UNDER_WAY > written


def _is_of(row: Replica, model: str, index: int, instance: str) -> bool:
    same_process = not row.instance or not instance or row.instance == instance
    return row.key == ReplicaKey(model, index) and same_process


def _heard_of(row: Replica, memory: DriftMemory) -> datetime:
    written = row.updated_at
    assert written is not None, "the store says when it was written"
    return max(written, memory.confirmed.get((row.key, row.change), written))


# Processes.


def _strays(scene: Scene, memory: DriftMemory) -> tuple[list[Stray], Mapping[_Process, FirstSeen]]:
    found: list[Stray] = []
    suspects: dict[_Process, FirstSeen] = {}
    now = scene.replicas.now
    for stray, sequence in _unknown(scene):
        process = (stray.node, stray.key, stray.instance)
        first = memory.strays.get(process, FirstSeen(now, sequence))
        if now - first.at >= _STRAY_FOR and first.sequence != sequence:
            found.append(stray)
        suspects[process] = first
    return found, suspects


def _unknown(scene: Scene) -> Iterator[tuple[Stray, int]]:
    """Models' processes that have no row and no load under way, with the report that tells of them."""
    rows = {(row.node, row.key): row for row in scene.replicas.rows}
    for node, view in scene.nodes.items():
        if view.report is None or not is_up(view.standing):
            continue
        for replica in view.report.replicas:
            key = ReplicaKey(replica.model_id, replica.replica_index)
            row = rows.get((node, key))
            expected = (node, key) in scene.loading
            expected |= row is not None and _is_of(row, key.model, key.index, replica.instance)
            if not expected and _serves_model(replica):
                yield Stray(node, key, replica.instance, replica.address), view.report.sequence


def _serves_model(replica: RunningReplica) -> bool:
    """It is there for a model, will not go by itself, and can be told from its successor. A process under its
    backend's own name has no model in it: installs may start one."""
    return (
        replica.model_id not in ("", replica.backend)
        and bool(replica.instance)
        and replica.state != "stopping"
    )


_NEW: Final = timedelta(seconds=2)  # A row and its operation are written together, but not read together.
_STUCK: Final = timedelta(minutes=1)  # An unload that failed is asked for again so often.
_AWAITED: Final = timedelta(seconds=10)  # And one that makes room: who was to ask for it may be dead.


@dataclass(frozen=True, slots=True)
class Unload:
    replica: Replica
    why: UnloadReason


@dataclass(frozen=True, slots=True)
class Forget:
    """The frontend that was to load it no longer does."""

    replica: Replica


UpkeepAction = Unload | Forget


@dataclass(frozen=True, slots=True)
class UpkeepInputs:
    """`live` are the operations that are not over, `leaving` the replicas that some of them unload, where."""

    now: datetime
    configs: Mapping[str, ModelConfig]
    unreadable: Collection[str]  # Models whose configuration is there, but not understood here.
    live: Collection[OpId]
    leaving: Collection[tuple[NodeId, ReplicaKey]]
    usual_keep_alive: timedelta
    in_flight: Callable[[ReplicaKey], int]
    claimed: Collection[NodeId] = ()  # Nodes that give way to other programs in their GPUs.


def actions(rows: Iterable[Replica], around: UpkeepInputs) -> list[UpkeepAction]:
    every = tuple(rows)
    kept = kept_for_minimum(every, around.configs)
    return [action for row in every if (action := _action(row, around, kept)) is not None]


def kept_for_minimum(rows: Iterable[Replica], configs: Mapping[str, ModelConfig]) -> frozenset[ReplicaKey]:
    """The replicas of each model that want of use does not take away: as many as are always to be loaded, in
    the order of their numbers, so that all frontends keep the same ones."""
    kept = set[ReplicaKey]()
    count = Counter[str]()
    for row in sorted(rows, key=lambda row: (row.key.model, row.key.index)):
        config = configs.get(row.key.model)
        present = config is not None and row.revision == config.revision
        if config is None or not present or row.state is not ReplicaState.LOADED:
            continue
        if config.everywhere or count[row.key.model] < config.min_replicas:
            kept.add(row.key)
            count[row.key.model] += 1
    return frozenset(kept)


def idle_next(rows: Iterable[Replica], around: UpkeepInputs) -> datetime | None:
    """When the next replica is unloaded if it is not used; of one in use that may be past."""
    every = tuple(rows)
    kept = kept_for_minimum(every, around.configs)
    instants = (
        unloads_at(row, around.configs.get(row.key.model), around.usual_keep_alive)
        for row in every
        if row.state is ReplicaState.LOADED and row.key not in kept
    )
    return min(filter(None, instants), default=None)


def _action(row: Replica, around: UpkeepInputs, kept: Collection[ReplicaKey]) -> UpkeepAction | None:
    leaves = (row.node, row.key) in around.leaving
    age = timedelta() if row.updated_at is None else around.now - row.updated_at
    match row.state:
        case ReplicaState.STAGING | ReplicaState.LOADING:
            if row.op not in around.live:
                return Forget(row) if age >= _NEW else None
            why = _outdated(row, around)
            return Unload(row, why) if why and not leaves else None
        case ReplicaState.UNLOADING:
            why = row.why or UnloadReason(UnloadCause.UNKNOWN)
            long_enough = _AWAITED if why.cause is UnloadCause.MAKES_ROOM else _STUCK
            return Unload(row, why) if age >= long_enough and not leaves else None
        case ReplicaState.LOADED:
            why = _unwanted(row, around, kept)
            return Unload(row, why) if why and not leaves else None


def _unwanted(row: Replica, around: UpkeepInputs, kept: Collection[ReplicaKey]) -> UnloadReason | None:
    if why := _outdated(row, around):
        return why
    config = around.configs.get(row.key.model)
    pinned = config is not None and config.pinned
    if row.in_vram and row.node in around.claimed and not pinned and not around.in_flight(row.key):
        return UnloadReason(UnloadCause.GIVES_WAY)
    if row.key in kept:
        return None
    idle_at = unloads_at(row, config, around.usual_keep_alive)
    if idle_at is not None and idle_at <= around.now and not around.in_flight(row.key):
        return UnloadReason(UnloadCause.IDLE)
    return None


def _outdated(row: Replica, around: UpkeepInputs) -> UnloadReason | None:
    config = around.configs.get(row.key.model)
    if config is None:
        unreadable = row.key.model in around.unreadable
        return None if unreadable else UnloadReason(UnloadCause.MODEL_REMOVED)
    return None if config.revision == row.revision else UnloadReason(UnloadCause.OUTDATED)


_FIRST_USE: Final = timedelta(seconds=10)  # Those for whom it was loaded are on their way, on any frontend.
_NOTED_WITHIN: Final = timedelta(seconds=2)  # While it is used, that is written down so often at least.
_NOTED_LEAST: Final = timedelta(seconds=1)
_NOTED_MOST: Final = timedelta(seconds=10)


def unloads_at(replica: Replica, config: ModelConfig | None, usual: timedelta) -> datetime | None:
    """None: never. A model's own `keep_alive` counts before the usual one; less than nothing is for ever.

    Of a replica in use, every frontend that can write says so often enough for this never to be past, however
    short its `keep_alive` and whether or not that frontend is heard on the bus."""
    if config is None or config.pinned:
        return None
    keep = usual if config.keep_alive is None else config.keep_alive
    if keep < timedelta():
        return None
    if replica.last_used is not None:
        return replica.last_used + max(keep, _NOTED_WITHIN)
    return None if replica.updated_at is None else replica.updated_at + max(keep, _FIRST_USE)


def used_since(replica: Replica, asked_at: datetime) -> bool:
    """Whether it was used after its unload was asked for; both are the store's instants."""
    return replica.last_used is not None and replica.last_used > asked_at


def noted_every(keep: timedelta) -> timedelta:
    """How often the use of a replica is written down while it lasts."""
    return _NOTED_MOST if keep < timedelta() else min(max(keep / 4, _NOTED_LEAST), _NOTED_MOST)

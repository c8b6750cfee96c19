"""What upkeep does about replicas that have lost their process, and about processes that have no replica.
Pure.

Nothing is concluded from silence. A worker that says what became of a process is believed at once; one that
no longer mentions it has to do so twice. Busy is not dead.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Reachability
from remuda.fleet.model import Node
from remuda.fleet.verdicts import ObservedNode, installed, is_up
from remuda.scheduler.model import Replica, Replicas, ReplicaState, why_stopped
from remuda.wire.models import RunningModel
from remuda.wire.nodes import Report, RunningReplica

_SAID_UNDER_WAY: Final = timedelta(seconds=5)  # What a node says may be older than its arrival by so much.
_FORGOTTEN_AFTER: Final = timedelta(minutes=10)  # Of a node that is away.
_ASKED_AFTER: Final = timedelta(minutes=2)  # A node without reports, about a row that nothing has confirmed.
_STRAY_FOR: Final = timedelta(seconds=30)
_ASKED_AT_ONCE: Final = 64  # Nodes without reports at one look, about processes that no row stands for.
_RELOADED_AGAIN: Final = timedelta(minutes=5)  # One that crashes sooner again waits for the next request.
_ENDED: Final = frozenset({"waiting", "failed"})  # States of a key whose last process has ended by itself.

_Row = tuple[ReplicaKey, int]  # A row as it was written last.
_Process = tuple[NodeId, ReplicaKey, str]  # The last is its instance, or its address where that is not told.


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
class Asked:
    """When a node without reports was last asked what runs there."""

    at: datetime
    answered: bool


@dataclass(frozen=True, slots=True)
class DriftMemory:
    """What was noticed at earlier looks, and counts only if it is noticed again."""

    missing: Mapping[_Row, FirstSeen] = field(default_factory=dict)
    strays: Mapping[_Process, FirstSeen] = field(default_factory=dict)
    confirmed: Mapping[_Row, datetime] = field(default_factory=dict)  # By a node that was asked.
    reloads: Mapping[ReplicaKey, datetime] = field(default_factory=dict)  # Of crashed ones, lately.
    asked: Mapping[NodeId, Asked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drift:
    drops: tuple[Drop, ...]
    strays: tuple[Stray, ...]
    memory: DriftMemory  # For the next look.


@dataclass(frozen=True, slots=True)
class Scene:
    """`loading`: what live operations are about to load, where. `asked`: nodes that were asked just now which
    replicas run there; `answers`: of those that answered."""

    replicas: Replicas
    nodes: Mapping[NodeId, ObservedNode]
    loading: Collection[tuple[NodeId, ReplicaKey]] = ()
    asked: Collection[NodeId] = ()
    answers: Mapping[NodeId, Sequence[RunningModel]] = field(default_factory=dict)


def to_ask(replicas: Replicas, nodes: Mapping[NodeId, ObservedNode], memory: DriftMemory) -> list[NodeId]:
    """Nodes without reports, with replicas that were not confirmed for a while, or since it registered
    again: that may have been a restart. And those without replicas: they may run processes without a row."""
    silent = {node: view for node, view in nodes.items() if not view.reports and is_up(view.standing)}
    about_rows = {
        row.node
        for row in replicas.rows
        if (view := silent.get(row.node)) is not None
        and row.state is ReplicaState.LOADED
        and _due(_heard_of(row, memory), _ASKED_AFTER, view.standing.node, replicas.now)
    }
    watched = {node for node, _, _ in memory.strays}
    about_strays = [
        node
        for node, view in sorted(silent.items())
        if _due_for_strays(view.standing.node, memory.asked.get(node), replicas.now, watched=node in watched)
    ]
    return sorted(about_rows | set(about_strays[:_ASKED_AT_ONCE]))


def _due(heard_of: datetime, after: timedelta, node: Node, now: datetime) -> bool:
    registered_since = node.registered_at is not None and node.registered_at > heard_of
    return registered_since or now - heard_of >= after


def _due_for_strays(node: Node, asked: Asked | None, now: datetime, *, watched: bool) -> bool:
    """Sooner where a process is suspected, and where nothing was answered."""
    if asked is None:
        return True
    return _due(asked.at, _ASKED_AFTER if asked.answered and not watched else _STRAY_FOR, node, now)


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
    asked = {node: at for node, at in memory.asked.items() if node in scene.nodes}
    asked |= {node: Asked(now, node in scene.answers) for node in scene.asked}
    return Drift(tuple(drops), tuple(strays), DriftMemory(missing, suspects, confirmed, reloads, asked))


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
    """Those to stop now, and those that were seen; one that was asked to stop begins anew, and is asked again
    if it does not go."""
    found: list[Stray] = []
    suspects = {process: first for process, first in memory.strays.items() if _unheard(process[0], scene)}
    now = scene.replicas.now
    for stray, sequence in chain(_unknown(scene), _unknown_of_asked(scene)):
        process = (stray.node, stray.key, stray.instance or stray.address)
        first = memory.strays.get(process, FirstSeen(now, sequence))
        if now - first.at >= _STRAY_FOR and first.sequence != sequence:
            found.append(stray)
            first = FirstSeen(now, sequence)
        suspects[process] = first
    return found, suspects


def _unheard(node: NodeId, scene: Scene) -> bool:
    """It does not report, and has not been asked this time: what is suspected of it stands."""
    view = scene.nodes.get(node)
    return view is not None and not view.reports and node not in scene.answers


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


def _unknown_of_asked(scene: Scene) -> Iterator[tuple[Stray, int]]:
    """The same of nodes without reports, by their answers. What has a row is left alone, whichever process it
    is, for they tell no instances; and so is what may be a backend without a model, which they do not tell
    apart."""
    rows = {(row.node, row.key) for row in scene.replicas.rows}
    asking = int(scene.replicas.now.timestamp() * 1000)
    for node, answer in scene.answers.items():
        view = scene.nodes.get(node)
        listed = None if view is None or view.reports or not is_up(view.standing) else installed(view)
        if listed is None:
            continue
        backends = {name for one in listed for name in (one.name, one.alias)} | {""}
        for running in answer:
            key = ReplicaKey(running.model_id, running.replica_index)
            expected = (node, key) in rows or (node, key) in scene.loading
            if not expected and key.model not in backends and running.address:
                yield Stray(node, key, running.instance, running.address), asking


def _serves_model(replica: RunningReplica) -> bool:
    """It is there for a model, will not go by itself, and cannot be mistaken for its successor. A process
    under its backend's own name has no model in it: installs may start one."""
    return (
        replica.model_id not in ("", replica.backend)
        and bool(replica.instance)
        and replica.state != "stopping"
    )


def stands_for(rows: Iterable[Replica], stray: Stray) -> bool:
    """Whether one of these rows is about what was taken for a stray."""
    return any(row.node == stray.node and _is_of(row, *stray.key, stray.instance) for row in rows)

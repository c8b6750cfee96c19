"""Which replicas are only rows any more, and which processes nobody knows. Pure.

Nothing is concluded from silence: whoever owns a process has to say that it is gone, twice. Busy is not dead.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from remuda.core.ids import NodeId
from remuda.fleet.health import Reachability
from remuda.ops.sightings import NodeView
from remuda.scheduler.model import Replica, ReplicaKey, Replicas, ReplicaState
from remuda.wire.models import RunningModel
from remuda.wire.nodes import RunningReplica

_SAID_UNDER_WAY: Final = timedelta(seconds=5)  # What a node says may be older than its arrival by so much.
_FORGOTTEN_AFTER: Final = timedelta(minutes=10)  # Of a node that is away.
_ASKED_AFTER: Final = timedelta(minutes=2)  # A node without reports, about a row that nothing has confirmed.
_STRAY_FOR: Final = timedelta(seconds=30)

_Row = tuple[ReplicaKey, int]  # A row as it was written last.
_Process = tuple[NodeId, ReplicaKey, str]


@dataclass(frozen=True, slots=True)
class Drop:
    """A row to forget."""

    replica: Replica
    why: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A process to stop: this very instance, and no successor of it."""

    node: NodeId
    key: ReplicaKey
    instance: str
    address: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """When something was noticed first, and by which report, or at which time of asking."""

    at: datetime
    said: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What was noticed at earlier looks, and counts only if it is noticed again."""

    missing: Mapping[_Row, Noticed] = field(default_factory=dict)
    strays: Mapping[_Process, Noticed] = field(default_factory=dict)
    confirmed: Mapping[_Row, datetime] = field(default_factory=dict)  # By a node that was asked.


@dataclass(frozen=True, slots=True)
class Found:
    drops: tuple[Drop, ...]
    strays: tuple[Stray, ...]
    memory: Memory  # For the next look.


@dataclass(frozen=True, slots=True)
class Scene:
    """`loading`: what live operations are about to load, where. `answers`: of nodes that were asked which
    replicas run there, and answered."""

    replicas: Replicas
    nodes: Mapping[NodeId, NodeView]
    loading: Collection[tuple[NodeId, ReplicaKey]] = ()
    answers: Mapping[NodeId, Sequence[RunningModel]] = field(default_factory=dict)


def to_ask(replicas: Replicas, nodes: Mapping[NodeId, NodeView], memory: Memory) -> list[NodeId]:
    """Nodes without reports, with replicas of which nobody has heard for a while."""
    return sorted(
        {
            row.node
            for row in replicas.rows
            if (view := nodes.get(row.node)) is not None
            and not view.reports
            and view.standing.reachability is Reachability.UP
            and row.state is ReplicaState.LOADED
            and replicas.now - _heard_of(row, memory) >= _ASKED_AFTER
        }
    )


def compare(scene: Scene, memory: Memory) -> Found:
    """What is stored against what is so. The rows are all there are, the nodes too."""
    missing: dict[_Row, Noticed] = {}
    confirmed: dict[_Row, datetime] = {}
    drops: list[Drop] = []
    for row in scene.replicas.rows:
        key = (row.key, row.change)
        verdict = _verdict(row, scene, memory)
        match verdict:
            case str(why):
                drops.append(Drop(row, why))
            case Noticed():
                missing[key] = verdict
            case datetime():
                confirmed[key] = verdict
            case None if key in memory.confirmed:
                confirmed[key] = memory.confirmed[key]
            case None:
                pass
    strays, suspects = _strays(scene, memory)
    return Found(tuple(drops), tuple(strays), Memory(missing, suspects, confirmed))


# Rows.

_Verdict = str | Noticed | datetime | None
"""Why it goes; that it is missing, but not for certain; when it was confirmed; or nothing."""


def _verdict(row: Replica, scene: Scene, memory: Memory) -> _Verdict:
    now, view = scene.replicas.now, scene.nodes.get(row.node)
    if view is None:
        return "its node was removed"
    node = view.standing.node
    if row.boot is not None and row.boot != view.boot:
        return f"the worker on {node.name} was started anew"
    if view.standing.reachability in (Reachability.GONE, Reachability.DEPARTED):
        return f"{node.name} is away" if view.standing.silence >= _FORGOTTEN_AFTER else None
    if row.state in (ReplicaState.STAGING, ReplicaState.LOADING):
        return None  # Its operation answers for it, and chores for those whose operation is over.
    before = memory.missing.get((row.key, row.change))
    if not view.reports:
        return _asked(row, node.name, scene.answers.get(row.node), now, before)
    if not _says_gone(row, view):
        return None
    assert view.report is not None, "who says nothing does not say that"
    said = view.report.sequence
    if before is None or before.said == said:
        return before or Noticed(now, said)
    return f"its process on {node.name} is gone"


def _asked(
    row: Replica, node: str, answer: Sequence[RunningModel] | None, now: datetime, before: Noticed | None
) -> _Verdict:
    if answer is None:
        return before
    if any(_is_of(row, one.model_id, one.replica_index, one.instance) for one in answer):
        return now
    return Noticed(now, 1) if before is None else f"the worker on {node} says that it does not run"


def _says_gone(row: Replica, view: NodeView) -> bool:
    """Its report of this life, taken after the row was written, does not have the process."""
    written = row.updated_at
    if view.report is None or written is None:
        return False
    if view.standing.node.last_heartbeat - _SAID_UNDER_WAY <= written:
        return False
    return not any(_is_of(row, one.model_id, one.replica_index, one.instance) for one in view.report.replicas)


def _is_of(row: Replica, model: str, index: int, instance: str) -> bool:
    same_process = not row.instance or not instance or row.instance == instance
    return row.key == ReplicaKey(model, index) and same_process


def _heard_of(row: Replica, memory: Memory) -> datetime:
    written = row.updated_at
    assert written is not None, "the store says when it was written"
    return max(written, memory.confirmed.get((row.key, row.change), written))


# Processes.


def _strays(scene: Scene, memory: Memory) -> tuple[list[Stray], Mapping[_Process, Noticed]]:
    found: list[Stray] = []
    suspects: dict[_Process, Noticed] = {}
    now = scene.replicas.now
    for stray, said in _unknown(scene):
        process = (stray.node, stray.key, stray.instance)
        first = memory.strays.get(process, Noticed(now, said))
        if now - first.at >= _STRAY_FOR and first.said != said:
            found.append(stray)
        suspects[process] = first
    return found, suspects


def _unknown(scene: Scene) -> Iterator[tuple[Stray, int]]:
    """Models' processes that no row stands for and nobody is loading, with the report that tells of them."""
    rows = {(row.node, row.key): row for row in scene.replicas.rows}
    for node, view in scene.nodes.items():
        if view.report is None or view.standing.reachability is not Reachability.UP:
            continue
        for told in view.report.replicas:
            key = ReplicaKey(told.model_id, told.replica_index)
            row = rows.get((node, key))
            expected = (node, key) in scene.loading
            expected |= row is not None and _is_of(row, key.model, key.index, told.instance)
            if not expected and _serves_model(told):
                yield Stray(node, key, told.instance, told.address), view.report.sequence


def _serves_model(told: RunningReplica) -> bool:
    """It is there for a model, will not go by itself, and can be told from its successor. A process under its
    backend's own name has no model in it: installs may start one."""
    return told.model_id not in ("", told.backend) and bool(told.instance) and told.state != "stopping"

"""What is known of a fleet when a replica is to be placed, and what of it is looked up once for all nodes.
Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.model import Node
from remuda.fleet.verdicts import ObservedNode
from remuda.models.files import NeededFile
from remuda.models.gguf import all_parts
from remuda.scheduler.disk_room import FilesInFleet
from remuda.scheduler.eviction import FIRST, Turn, excludes
from remuda.scheduler.measured_memory import MemoryBook
from remuda.scheduler.measured_speed import RateBook
from remuda.scheduler.model import Need, Replica, Replicas, ReplicaState
from remuda.scheduler.ranking import NO_WISHES, NodeWishes
from remuda.scheduler.staging import GiversByFile
from remuda.wire.nodes import Report

_NO_PATHS: Final = frozenset[str]()


class _Paths(NamedTuple):
    report: Report
    files: frozenset[str]
    folders: frozenset[str]


class ReportPaths:
    """The paths of model files that nodes report, and of the folders that these are in. A node's are
    collected once for each of its reports: a decision has a thousand nodes, most of which have told nothing
    new since the last."""

    def __init__(self) -> None:
        self._known: dict[NodeId, _Paths] = {}

    def of(self, view: ObservedNode) -> frozenset[str]:
        return _NO_PATHS if view.report is None else self._of(view, view.report).files

    def have(
        self, view: ObservedNode, file: str, parts: AbstractSet[str], others: AbstractSet[str] = _NO_PATHS
    ) -> bool:
        """All parts of that file; or a folder of that name, with something in it; or all `others`."""
        if view.report is None:
            return False
        known = self._of(view, view.report)
        return parts <= known.files or file in known.folders or (bool(others) and others <= known.files)

    def of_all(self, views: Iterable[ObservedNode]) -> AbstractSet[str]:
        """All files, and the folders they are in."""
        known = [self._of(view, view.report) for view in views if view.report is not None]
        return set[str]().union(*(one.files for one in known), *(one.folders for one in known))

    def _of(self, view: ObservedNode, report: Report) -> _Paths:
        node = view.standing.node.id
        known = self._known.get(node)
        if known is None or known.report is not report:
            files = frozenset(one.path for one in report.model_files)
            folders = (path[:end] for path in files for end, char in enumerate(path) if char == "/")
            known = self._known[node] = _Paths(report, files, frozenset(folders))
        return known

    def forget_others(self, nodes: Sequence[ObservedNode]) -> None:
        """Of nodes that have left."""
        if len(self._known) > len(nodes):
            there = {view.standing.node.id for view in nodes}
            self._known = {node: known for node, known in self._known.items() if node in there}


@dataclass(frozen=True, slots=True)
class PlacementFacts:
    """All that is known when a replica is to be placed."""

    nodes: Sequence[ObservedNode]
    replicas: Replicas
    in_flight: Callable[[ReplicaKey], int]  # Of all frontends together.
    pinned: Collection[str]  # Models that never leave to make room.
    unfit: Callable[[NodeId], str]  # Why the backend cannot run there; empty: it can.
    shared: bool = False  # All nodes have one folder of models.
    checks_disk: bool = True
    frontend: str = ""  # Who would have to reach the node: this one.
    files: Sequence[NeededFile] = ()  # Of the model, where they are known.
    fetched: FilesInFleet | None = None  # What could go to make room for them.
    memory: MemoryBook = field(default_factory=MemoryBook)  # What replicas were seen to take.
    spare: Mapping[str, int] = field(default_factory=dict)  # Of models that keep some: how many may go.
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)  # Of concurrency, by model.
    turn: Turn = FIRST
    speeds: RateBook = field(default_factory=RateBook)  # How fast nodes were seen to be.
    paths: ReportPaths = field(default_factory=ReportPaths)
    wishes: NodeWishes = NO_WISHES


class FactsByNode:
    """What the offers of all nodes have in common, looked up once."""

    def __init__(self, need: Need, fleet: PlacementFacts) -> None:
        self.fleet = fleet
        self.stays = {**fleet.spare, **dict.fromkeys(fleet.pinned, 0)}
        self._rows = _by_node(fleet.replicas.rows)
        self.excluding = _excluding(need.model, fleet)
        self.spreads = any(is_beside(row, need.model) for row in fleet.replicas.rows)
        self.memory = fleet.memory.of_model(need.model, need.revision)
        fleet.paths.forget_others(fleet.nodes)

    def rows_on(self, node: NodeId) -> Sequence[Replica]:
        return self._rows.get(node, ())

    def fetched_on(self, node: NodeId) -> FilesInFleet:
        """Without the replicas of other nodes."""
        return replace(self._fetched, rows=self._fetched_rows.get(node, ()))

    def giver_of(self, file: NeededFile, receiver: Node) -> Node | None:
        """The node that this one would take it from first; None: no other has it."""
        return self._givers.of(file, receiver)

    @property
    def obtainable(self) -> Sequence[bool]:
        """Of each file of the model, whether a node that lacks it could get it from someone."""
        files = self.fleet.files
        return [file.here or bool(file.elsewhere) or self._givers.any_of(file) for file in files]

    @cached_property
    def _givers(self) -> GiversByFile:
        """Among the nodes that have a file of the name of one that is needed. No other could give one."""
        named, paths = {file.path for file in self.fleet.files}, self.fleet.paths
        return GiversByFile([view for view in self.fleet.nodes if not named.isdisjoint(paths.of(view))])

    @cached_property
    def _fetched(self) -> FilesInFleet:
        return self.fleet.fetched or FilesInFleet(checks_disk=self.fleet.checks_disk)

    @cached_property
    def _fetched_rows(self) -> Mapping[NodeId, Sequence[Replica]]:
        return _by_node(self._fetched.rows)


def is_beside(row: Replica, model: str) -> bool:
    """Whether another replica of the model would be beside this one."""
    return row.key.model == model and row.state is not ReplicaState.UNLOADING


def _excluding(model: str, fleet: PlacementFacts) -> AbstractSet[ReplicaKey]:
    """Most models are in no group, and are excluded by none."""
    if not fleet.groups.get(model):
        return frozenset()
    return {row.key for row in fleet.replicas.rows if excludes(model, row, fleet.groups)}


def _by_node(rows: Iterable[Replica]) -> Mapping[NodeId, Sequence[Replica]]:
    found = defaultdict[NodeId, list[Replica]](list)
    for row in rows:
        found[row.node].append(row)
    return found


def is_among(file: str, paths: AbstractSet[str]) -> bool:
    """With all its parts; or a folder of that name, with something in it."""
    return all(part in paths for part in all_parts(file)) or any(
        path.startswith(f"{file}/") for path in paths
    )

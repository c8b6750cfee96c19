"""Which files of a model a node lacks, who could give them, and what copying them comes to. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from remuda.core.ids import NodeId
from remuda.fleet.model import Node
from remuda.fleet.verdicts import ObservedNode, is_localai, is_up
from remuda.models.config import ModelConfig
from remuda.models.files import NeededFile, path_fault
from remuda.models.gguf import all_parts
from remuda.models.paths import named_files
from remuda.ops.model import OpId
from remuda.scheduler.model import Replica, ReplicaState
from remuda.wire.nodes import ModelFile, Report
from remuda.wire.sizes import install_size

THIS_FRONTEND: Final = "this frontend"
A_FRONTEND: Final = "a frontend"
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TAKEN_SHOWN_MAX: Final = 4
_GIVERS_MAX: Final = 3  # Beside the frontend: one that fails is rarely followed by two more.


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files of a model as a node tells of them. `differs` says why one of them cannot be the model's;
    empty: none is known to differ."""

    lacking: tuple[NeededFile, ...] = ()
    differs: str = ""


def files_on(files: Sequence[NeededFile], report: Report) -> NodeFiles:
    there = {file.path: file for file in report.model_files}
    cut_off = {file.path: file.size for file in report.model_files_cut_off}
    lacking: list[NeededFile] = []
    for file in files:
        if file.path in cut_off:
            return NodeFiles(differs=f"{file.path} is incomplete there")
        known = there.get(file.path)
        if known is not None and file.is_unread:
            continue
        if known is None or _is_outdated(known, file):
            lacking.append(file)
        elif known.size != file.size:
            why = (
                f"{file.path} there is another file: it has {known.size} bytes, and the model's has "
                f"{file.size}; move it away, or give one of the two another name"
            )
            return NodeFiles(differs=why)
    return NodeFiles(tuple(lacking))


def to_check(files: Sequence[NeededFile], lacking: Sequence[NeededFile], *, shared: bool) -> list[NeededFile]:
    """What a node lacks, and what it has and is to compare. What none has read is each node's own, unless
    others of the same model come from elsewhere: no two models may be mixed. In a folder that all share, a
    file of a name is the same one."""

    def compared(file: NeededFile) -> bool:
        return bool(lacking) if file.is_unread else bool(file.sha256) or not shared

    return [file for file in files if file in lacking or compared(file)]


def _is_outdated(known: ModelFile, file: NeededFile) -> bool:
    """Whether its worker has fetched another file of that name, and will replace it."""
    return known.brought and not _is_same(known, file)


def _is_same(known: ModelFile, file: NeededFile) -> bool:
    """As far as its worker knows it."""
    another = bool(known.sha256 and file.sha256) and known.sha256 != file.sha256
    return (known.path, known.size) == (file.path, file.size) and not another


@dataclass(frozen=True, slots=True)
class Giver:
    node: Node
    whole: bool  # Else it is fetching the file itself, and gives it on as it comes.


def givers(
    file: NeededFile,
    nodes: Sequence[ObservedNode],
    receiver: Node,
    coming: Sequence[NodeId] = (),
    takers: Mapping[NodeId, int] = MappingProxyType({}),
) -> list[Giver]:
    """Nodes that are up and tell of the same file, and those to which it is `coming`: these began before the
    receiver, so that no two wait for each other. The one that fewest take it from is the first; between
    equals the receiver's own name decides."""
    fetching = {node: place for place, node in enumerate(coming)}
    found = [
        Giver(view.standing.node, whole)
        for view in nodes
        if _gives(view, receiver) and ((whole := _has(view, file)) or view.standing.node.id in fetching)
    ]
    found.sort(key=lambda one: one.node.id)
    first = next((place for place, one in enumerate(found) if one.node.id > receiver.id), 0)
    found = [*found[first:], *found[:first]]
    # Of a chain its end is the next to take from.
    found.sort(key=lambda one: (takers.get(one.node.id, 0), not one.whole, -fetching.get(one.node.id, 0)))
    return found[:_GIVERS_MAX]


class GiversByFile:
    """Whom each node would take a file from first, as `givers` says, where nothing is on its way. Found once
    for each file: in a large fleet many nodes lack the same one."""

    def __init__(self, nodes: Sequence[ObservedNode]) -> None:
        self._nodes = nodes
        self._giving: dict[NeededFile, list[Node]] = {}

    def of(self, file: NeededFile, receiver: Node) -> Node | None:
        giving = self._of(file)
        if not giving:
            return None
        place = bisect_right(giving, receiver.id, key=lambda node: node.id)
        first = giving[place % len(giving)]
        return None if first.id == receiver.id else first

    def any_of(self, file: NeededFile) -> bool:
        return bool(self._of(file))

    def _of(self, file: NeededFile) -> list[Node]:
        if file not in self._giving:
            giving = (view.standing.node for view in self._nodes if _may_give(view) and _has(view, file))
            self._giving[file] = sorted(giving, key=lambda node: node.id)
        return self._giving[file]


def _gives(view: ObservedNode, receiver: Node) -> bool:
    return _may_give(view) and view.standing.node.id != receiver.id


def _may_give(view: ObservedNode) -> bool:
    gives = view.report is not None and view.report.fetches_files  # Of a release that gives as well.
    return gives and bool(view.standing.node.http_address) and is_up(view.standing)


def _has(view: ObservedNode, file: NeededFile) -> bool:
    return view.report is not None and any(_is_same(one, file) for one in view.report.model_files)


def told_by_nodes(config: ModelConfig, nodes: Sequence[ObservedNode]) -> tuple[NeededFile, ...]:
    """The files of a model that no frontend has, as the first node tells of them that has its own file, which
    it has to name. Without a hash where its worker has not read them yet. Empty: no node has it."""
    named = list(named_files(config))
    for view in sorted(nodes, key=lambda view: view.standing.node.id):
        files = () if view.report is None else view.report.model_files
        found = {file.path: file for name in named for file in files if _belongs(file.path, name)}
        own = [file for file in found.values() if _belongs(file.path, config.file)]
        parts = all_parts(config.file)
        complete = all(part in found for part in parts) or any(file.path not in parts for file in own)
        if own and complete:
            return tuple(
                NeededFile(file.path, file.size, file.sha256, here=False)
                for _, file in sorted(found.items())
                if not path_fault(file.path)
            )
    return ()


def _belongs(path: str, name: str) -> bool:
    """To a file of that name with all its parts, or to a folder of that name."""
    return path in all_parts(name) or path.startswith(f"{name.rstrip('/')}/")


Began = tuple[datetime, OpId]
"""When a load was recorded, and which it is. Nodes take what is on its way from loads that come before their
own in this order alone, which is the same for all frontends: so no two ever wait for each other."""


def began_of(row: Replica) -> Began:
    return row.created_at or _LONG_AGO, row.op


def arrivals_elsewhere(
    file: NeededFile, rows: Iterable[Replica], files_of: Mapping[str, Sequence[NeededFile]]
) -> dict[NodeId, Began]:
    """Nodes to which the file is on its way for loads of any frontend, as their rows tell. `files_of` are the
    files of models by their names."""
    return {
        row.node: began_of(row)
        for row in rows
        if row.state is ReplicaState.STAGING
        and any(_may_be(one, file) for one in files_of.get(row.key.model, ()))
    }


def _may_be(one: NeededFile, file: NeededFile) -> bool:
    """As far as is known: who takes it asks for its hash."""
    if one.sha256 and file.sha256:
        return one.sha256 == file.sha256
    return (one.path, one.size) == (file.path, file.size)


class Arrivals:
    """Which files are on their way to which nodes, by loads of this frontend; and from whom each of these
    takes them first."""

    def __init__(self) -> None:
        self._coming: dict[str, dict[NodeId, NodeId | None]] = {}  # By SHA-256; the giver of each node.
        self._began: dict[tuple[str, NodeId], Began] = {}

    @contextmanager
    def of(self, files: Collection[str], node: NodeId, began: Began) -> Iterator[None]:
        for sha256 in files:
            self._began.setdefault((sha256, node), began)
            self._coming.setdefault(sha256, {})[node] = None
        try:
            yield
        finally:
            for sha256 in files:
                coming = self._coming.get(sha256, {})
                coming.pop(node, None)
                self._began.pop((sha256, node), None)
                if not coming:
                    self._coming.pop(sha256, None)

    def before(
        self, sha256: str, node: NodeId, elsewhere: Mapping[NodeId, Began] = MappingProxyType({})
    ) -> list[NodeId]:
        """Those that began before this one, here and `elsewhere`, in their order."""
        coming = self._coming.get(sha256, ())
        if node not in coming:
            return []
        began = {**elsewhere, **{one: self._began[sha256, one] for one in coming}}
        return sorted((one for one in began if began[one] < began[node]), key=began.__getitem__)

    def takers(self, sha256: str) -> Mapping[NodeId, int]:
        """How many take it from each node now."""
        return Counter(giver for giver in self._coming.get(sha256, {}).values() if giver is not None)

    def takes(self, sha256: str, node: NodeId, giver: NodeId | None) -> None:
        if node in self._coming.get(sha256, {}):
            self._coming[sha256][node] = giver


def origin_name(url: str) -> str:
    """What people call the place that a model was installed from."""
    return urlsplit(url).hostname or "the package index"


def taken_words(taken: Mapping[str, int], before: int = 0) -> str:
    """`48.0 MiB came from attic, 2.0 MiB from object storage; 44.0 MiB had come before`: by an earlier load,
    or before the worker was restarted."""
    found = sorted(((size, name) for name, size in taken.items() if size), key=lambda one: (-one[0], one[1]))
    parts = [f"{install_size(size)} from {name}" for size, name in found[:_TAKEN_SHOWN_MAX]]
    if rest := sum(size for size, _ in found[_TAKEN_SHOWN_MAX:]):
        parts.append(f"{install_size(rest)} from others")
    came = ", ".join(parts).replace(" from ", " came from ", 1)
    return "; ".join(filter(None, (came, f"{install_size(before)} had come before" if before else "")))


def pushable(files: Sequence[NeededFile], peer: Node) -> bool:
    """Whether this frontend can push them to a LocalAI worker: what that has already, only it knows."""
    return bool(files) and bool(peer.http_address) and all(file.here for file in files)


def to_send(files: Iterable[NeededFile], report: Report) -> list[NeededFile]:
    """Those whose content the node's worker has not fetched under another name, to which it links."""
    own = {(one.sha256, one.size) for one in report.model_files if one.brought and one.sha256}
    return [file for file in files if (file.sha256, file.size) not in own]


def arrived(files: Iterable[NeededFile], report: Report) -> int:
    """How many bytes of files that it lacks a node has from loads that ended before they had them all. Of a
    file whose hash was not computed yet, nothing is known to be there."""
    partial = {one.sha256: one.size for one in report.model_files_partial}
    sizes = {file.sha256: file.size for file in files if file.sha256}
    return sum(min(partial.get(sha256, 0), size) for sha256, size in sizes.items())


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What would be copied to a node. Nothing, if `size_bytes` and `source` are empty and nothing differs."""

    size_bytes: int = 0
    source: str = ""  # Who gives it, in words.
    differs: str = ""
    arrived_bytes: int = 0  # What an earlier load has brought of them.


NOTHING_TO_COPY: Final = CopyPlan()


def copy_plan(
    files: Sequence[NeededFile], view: ObservedNode, nodes: Sequence[ObservedNode]
) -> CopyPlan | None:
    """None where nothing can be copied to it: it cannot fetch, or what it needs is not known, or is
    nowhere."""

    def giver_of(file: NeededFile, receiver: Node) -> Node | None:
        giving = givers(file, nodes, receiver)
        return giving[0].node if giving else None

    return planned_copy(files, view, giver_of)


def planned_copy(
    files: Sequence[NeededFile],
    view: ObservedNode,
    giver_of: Callable[[NeededFile, Node], Node | None],
) -> CopyPlan | None:
    """The same, with whom each file would be taken from first."""
    if is_localai(view.standing.node):
        whole = CopyPlan(sum(file.size for file in files), THIS_FRONTEND)
        return whole if pushable(files, view.standing.node) else None
    if not files or view.report is None or not view.report.fetches_files:
        return None
    found = files_on(files, view.report)
    if found.differs:
        return CopyPlan(differs=found.differs)
    sources: dict[str, None] = {}
    lacking = to_send(found.lacking, view.report)
    for file in lacking:
        giver = giver_of(file, view.standing.node)
        source = giver.name if giver else THIS_FRONTEND if file.here else file.elsewhere
        if not source:
            return None
        sources.setdefault(source)
    size_bytes = sum(file.size for file in lacking)
    return CopyPlan(size_bytes, " and ".join(sources), arrived_bytes=arrived(lacking, view.report))

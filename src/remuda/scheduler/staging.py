"""Which files of a model a node lacks, who could give them, and what copying them comes to. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from remuda.fleet.model import Node
from remuda.fleet.verdicts import ObservedNode, is_localai, is_up
from remuda.models.files import NeededFile
from remuda.wire.nodes import Report

THIS_FRONTEND: Final = "this frontend"
_GIVERS_MAX: Final = 3  # Beside the frontend: one that fails is rarely followed by two more.


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files of a model as a node tells of them. `differs` says why one of them cannot be the model's;
    empty: none is known to differ."""

    lacking: tuple[NeededFile, ...] = ()
    differs: str = ""


def files_on(files: Sequence[NeededFile], report: Report) -> NodeFiles:
    sizes = {file.path: file.size for file in report.model_files}
    cut_off = {file.path: file.size for file in report.model_files_cut_off}
    lacking: list[NeededFile] = []
    for file in files:
        if file.path in cut_off:
            return NodeFiles(differs=f"{file.path} is incomplete there")
        if file.path not in sizes:
            lacking.append(file)
        elif sizes[file.path] != file.size:
            why = (
                f"{file.path} there is another file: it has {sizes[file.path]} bytes, and the model's has "
                f"{file.size}; move it away, or give one of the two another name"
            )
            return NodeFiles(differs=why)
    return NodeFiles(tuple(lacking))


def givers(file: NeededFile, nodes: Sequence[ObservedNode], receiver: Node) -> list[Node]:
    """Nodes that are up and tell of the same file: the least loaded with giving is not known, so that the
    receiver's own name decides where it begins."""
    having = [
        view.standing.node
        for view in nodes
        if view.report is not None
        and view.report.fetches_files  # Of a release that gives as well.
        and view.standing.node.id != receiver.id
        and view.standing.node.http_address
        and is_up(view.standing)
        and any(one.path == file.path and one.size == file.size for one in view.report.model_files)
    ]
    having.sort(key=lambda node: node.id)
    first = next((place for place, node in enumerate(having) if node.id > receiver.id), 0)
    return [*having[first:], *having[:first]][:_GIVERS_MAX]


def pushable(files: Sequence[NeededFile], peer: Node) -> bool:
    """Whether this frontend can push them to a LocalAI worker: what that has already, only it knows."""
    return bool(files) and bool(peer.http_address) and all(file.here for file in files)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What would be copied to a node. Nothing, if `size_bytes` and `source` are empty and nothing differs."""

    size_bytes: int = 0
    source: str = ""  # Who gives it, in words.
    differs: str = ""


NOTHING_TO_COPY: Final = CopyPlan()


def copy_plan(
    files: Sequence[NeededFile], view: ObservedNode, nodes: Sequence[ObservedNode]
) -> CopyPlan | None:
    """None where nothing can be copied to it: it cannot fetch, what it needs is not known, or nobody has
    it."""
    if is_localai(view.standing.node):
        whole = CopyPlan(sum(file.size for file in files), THIS_FRONTEND)
        return whole if pushable(files, view.standing.node) else None
    if not files or view.report is None or not view.report.fetches_files:
        return None
    found = files_on(files, view.report)
    if found.differs:
        return CopyPlan(differs=found.differs)
    sources: dict[str, None] = {}
    for file in found.lacking:
        giving = givers(file, nodes, view.standing.node)
        if not giving and not file.here:
            return None
        sources.setdefault(giving[0].name if giving else THIS_FRONTEND)
    return CopyPlan(sum(file.size for file in found.lacking), " and ".join(sources))

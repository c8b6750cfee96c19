"""Who has which backend: from reports, and from what workers without reports listed when asked. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remuda.fleet.fleet import Standing
from remuda.fleet.model import Node
from remuda.ops.sightings import NodeView
from remuda.wire.nodes import InstalledArtifact


@dataclass(frozen=True, slots=True)
class Holding:
    """One backend on one node."""

    standing: Standing
    artifact: InstalledArtifact


def foreign(node: Node) -> bool:
    """Its worker is LocalAI's: it sends no reports and knows nothing of ours."""
    return not node.version and node.report is None


def installed(node: NodeView) -> tuple[InstalledArtifact, ...] | None:
    """What the node has, as far as its present life has told; None when it has not."""
    if node.reports:
        return None if node.report is None else node.report.installed
    listed = node.inventory
    return None if listed is None or listed.boot != node.boot else listed.backends


def holdings(nodes: Sequence[NodeView]) -> Mapping[str, tuple[Holding, ...]]:
    """Every installed backend by its own name, with the nodes that have it."""
    held = defaultdict[str, list[Holding]](list)
    for node in nodes:
        for artifact in installed(node) or ():
            held[artifact.name].append(Holding(node.standing, artifact))
    return {name: tuple(held[name]) for name in sorted(held)}


def found(node: NodeView, names: Iterable[str]) -> tuple[InstalledArtifact, ...]:
    """What it has under any of these names, letter case aside."""
    wanted = {name.lower() for name in names}
    return tuple(
        one for one in installed(node) or () if wanted & {one.name.lower(), one.alias.lower()} - {""}
    )

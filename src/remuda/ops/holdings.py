"""Who has which backend: from reports, and from what workers without reports listed when asked. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remuda.core.errors import Rejected
from remuda.fleet.fleet import Standing
from remuda.fleet.model import Node
from remuda.ops.ports import Inventory
from remuda.ops.sightings import NodeView
from remuda.wire.codec import decode
from remuda.wire.nodes import InstalledArtifact, Report


@dataclass(frozen=True, slots=True)
class Holding:
    """One backend on one node."""

    standing: Standing
    artifact: InstalledArtifact


def node_views(standings: Iterable[Standing], inventories: Iterable[Inventory]) -> tuple[NodeView, ...]:
    """The fleet's nodes as operations see them, by name."""
    listed = {inventory.node: inventory for inventory in inventories}
    return tuple(
        node_view(standing, listed.get(standing.node.id))
        for standing in sorted(standings, key=lambda standing: standing.node.name)
    )


def node_view(standing: Standing, inventory: Inventory | None) -> NodeView:
    node = standing.node
    return NodeView(standing, reports=not foreign(node), report=_report(node), inventory=inventory)


def foreign(node: Node) -> bool:
    """Its worker is LocalAI's: it sends no reports and knows nothing of ours."""
    return not node.version


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


def _report(node: Node) -> Report | None:
    """The report of its present life: one of an earlier says nothing any more."""
    if node.report is None or node.report.boot_id != node.boot_id:
        return None
    try:
        return decode(Report, node.report.body.encode())
    except Rejected:  # Written by a newer frontend, in a way that we do not read.
        return None

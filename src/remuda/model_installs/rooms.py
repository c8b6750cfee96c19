"""What nodes could do for a model: how much memory they could give to it, by which a hub chooses among its
variants; and which of the backends that would serve it they could run."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import anyio

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.fleet.health import Standing
from remuda.fleet.verdicts import ObservedNode, installed, is_counted
from remuda.gallery.model import Reading, find, sharing_alias
from remuda.hubs.quantisations import NodeRoom
from remuda.model_installs.ports import BackendChoice
from remuda.ops.selection import installed_under
from remuda.ops.upgrade_check import Look
from remuda.scheduler.backend_supply import Supply, supplies

_LOOK_S: Final = 1.0


async def node_rooms(standings: Callable[[], Awaitable[Sequence[Standing]]]) -> Sequence[NodeRoom]:
    """Every node that could serve models, offline ones too: with its VRAM, or without any with its RAM."""
    return [
        NodeRoom(one.node.name, one.node.resources.total_vram or one.node.resources.total_ram)
        for one in await standings()
        if one.node.approved and (one.node.resources.total_vram or one.node.resources.total_ram)
    ]


async def first_of(candidates: Sequence[str]) -> BackendChoice:
    """Where nothing is known of nodes."""
    return BackendChoice(candidates[0] if candidates else "")


async def runnable_backend(look: Look, candidates: Sequence[str]) -> BackendChoice:
    """The backend that is to serve a model, of those that could."""
    if not candidates:
        return BackendChoice("")
    nodes, readings = await look()
    names = {view.standing.node.id: view.standing.node.name for view in nodes}
    return chosen_backend({name: supplies(name, nodes, readings) for name in candidates}, names)


async def unknown_backends(look: Look, names: Collection[str]) -> frozenset[str]:
    """Of these, those that no node has and no gallery offers. None while that is not known of all nodes and
    galleries: a list does not wait for them."""
    with anyio.move_on_after(_LOOK_S):
        try:
            nodes, readings = await look()
        except RemudaError:
            return frozenset()
        return backends_without_source(names, nodes, readings)
    return frozenset()


def backends_without_source(
    names: Collection[str], nodes: Sequence[ObservedNode], readings: Sequence[Reading]
) -> frozenset[str]:
    counted = [node for node in nodes if is_counted(node)]
    if any(not one.readable for one in readings) or any(installed(node) is None for node in counted):
        return frozenset()
    return frozenset(
        name
        for name in names
        if name
        and find(readings, name) is None
        and not sharing_alias(readings, name)
        and not any(installed_under(node, (name,)) for node in counted)
    )


def chosen_backend(
    offers: Mapping[str, Mapping[NodeId, Supply]], names: Mapping[NodeId, str]
) -> BackendChoice:
    """The first that a node has, or else can get. Where no node can run any: the first of all, with what is
    to be done about it."""
    for able in (_has, _can_get):
        for backend, supply in offers.items():
            if any(able(one) for one in supply.values()):
                return BackendChoice(backend)
    first, *others = offers
    several = f"{first}, or {' or '.join(others)}," if others else first
    whys = [f"{names[node]}: {one.why_not}" for node, one in offers[first].items() if one.why_not]
    because = f" ({whys[0]})" if whys else ""
    return BackendChoice(
        first,
        f"no node can serve it yet: it needs the backend {several}{because}. "
        f"See remuda backends search {first}, and set `backend` with remuda models edit",
    )


def _has(supply: Supply) -> bool:
    return supply.has


def _can_get(supply: Supply) -> bool:
    return supply.known and not supply.why_not

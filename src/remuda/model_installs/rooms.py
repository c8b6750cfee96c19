"""How much memory nodes could give to a model: by this a hub chooses among its variants."""

from collections.abc import Awaitable, Callable, Sequence

from remuda.fleet.health import Standing
from remuda.hubs.quantisations import NodeRoom


async def node_rooms(standings: Callable[[], Awaitable[Sequence[Standing]]]) -> Sequence[NodeRoom]:
    """Every node that could serve models, offline ones too: with its VRAM, or without any with its RAM."""
    return [
        NodeRoom(one.node.name, one.node.resources.total_vram or one.node.resources.total_ram)
        for one in await standings()
        if one.node.approved and (one.node.resources.total_vram or one.node.resources.total_ram)
    ]

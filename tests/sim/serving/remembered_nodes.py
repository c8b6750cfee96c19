"""What frontends conclude of nodes of which nothing new was heard: hundreds of them are looked at many times
between two heartbeats, by several frontends, and all come to the same."""

from collections.abc import Iterable, Mapping

from remuda.core.ids import NodeId
from remuda.fleet.health import Standing
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import BackendInventory, ObservedNode

_KEPT = 5000


class RememberedNodes:
    def __init__(self) -> None:
        self._views: dict[tuple[int, int], tuple[Standing, BackendInventory | None, ObservedNode]] = {}
        self._latest: tuple[object, object, Mapping[NodeId, ObservedNode]] | None = None
        self._read = ObservedNodes()
        self._conclude = ObservedNodes.of

    def of(
        self, standings: Iterable[Standing], inventories: Iterable[BackendInventory]
    ) -> Mapping[NodeId, ObservedNode]:
        """In place of that of ObservedNodes."""
        if self._latest is None or self._latest[0] is not standings or self._latest[1] is not inventories:
            listed = {inventory.node: inventory for inventory in inventories}
            views = {one.node.id: self._view(one, listed.get(one.node.id)) for one in standings}
            self._latest = (standings, inventories, views)
        return self._latest[2]

    def _view(self, standing: Standing, inventory: BackendInventory | None) -> ObservedNode:
        key = (id(standing), id(inventory))
        known = self._views.get(key)
        if known is None or known[0] is not standing or known[1] is not inventory:
            if len(self._views) >= _KEPT:
                self._views.clear()
            inventories = () if inventory is None else (inventory,)
            [view] = self._conclude(self._read, [standing], inventories).values()
            known = self._views[key] = (standing, inventory, view)
        return known[2]

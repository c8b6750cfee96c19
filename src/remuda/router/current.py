"""The table that this frontend routes by now."""

from dataclasses import replace
from types import MappingProxyType

import anyio

from remuda.router.table import Entry, Route, RouteId, Table


class Tables:
    """`changed` is set by the next table: take it before looking, and none is missed."""

    def __init__(self) -> None:
        self.now = Table()
        self.changed = anyio.Event()
        self._whole = Table()
        self._left_out: frozenset[RouteId] = frozenset()

    def replace(self, table: Table) -> None:
        """Those in doubt stay left out; of those that are gone nothing is remembered."""
        self._whole = table
        self._left_out &= {route.id for entry in table.models.values() for route in entry.routes}
        self._publish()

    def has(self, route: Route) -> bool:
        """Whether it can be chosen."""
        entry = self.now.models.get(route.key.model)
        return entry is not None and any(route.id == each.id for each in entry.routes)

    def know(self, model: str) -> bool:
        """Whether there is a replica of it, though it may be left out for the moment."""
        entry = self._whole.models.get(model)
        return entry is not None and bool(entry.routes)

    def leave_out(self, route: Route) -> None:
        """Do not choose it, though it is in the table."""
        self._left_out |= {route.id}
        self._publish()

    def take_back(self, route: Route) -> None:
        self._left_out -= {route.id}
        self._publish()

    def _publish(self) -> None:
        self.now = self._without(self._left_out) if self._left_out else self._whole
        self.changed.set()
        self.changed = anyio.Event()

    def _without(self, gone: frozenset[RouteId]) -> Table:
        def less(entry: Entry) -> Entry:
            return replace(entry, routes=tuple(route for route in entry.routes if route.id not in gone))

        models = {name: less(entry) for name, entry in self._whole.models.items()}
        return replace(self._whole, models=MappingProxyType(models))

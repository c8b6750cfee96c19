"""The table that this frontend routes by now."""

from collections.abc import Callable
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
        self._away: frozenset[RouteId] = frozenset()  # Of those, the ones that are not about to be back.
        self._leaving: frozenset[RouteId] = frozenset()
        self.held_back: frozenset[RouteId] = frozenset()

    def replace(self, table: Table) -> None:
        """Suspects stay left out; of those that are gone nothing is remembered. What others said of
        replicas while the store could not be read is in the table by now."""
        self._whole = table
        there = {route.id for route in self.routes()}
        self._left_out &= there
        self._away &= there
        self._leaving = self.held_back = frozenset()
        self._publish()

    def routes(self) -> list[Route]:
        """All in the table, also those not chosen for the moment; one of a model with an alias once."""
        entries = self._whole.models.values()
        return list({route.id: route for entry in entries for route in entry.routes}.values())

    def has(self, route: Route) -> bool:
        """Whether it can be chosen."""
        entry = self.now.models.get(route.key.model)
        return entry is not None and any(route.id == each.id for each in entry.routes)

    def know(self, model: str) -> bool:
        """Whether there is a replica of it, though it may be left out for the moment."""
        entry = self._whole.models.get(model)
        not_there = self._leaving | self.held_back | self._away
        return entry is not None and any(route.id not in not_there for route in entry.routes)

    def leave_out(self, route: Route, *, away: bool = False) -> None:
        """Do not choose it, though it is in the table. `away`: nor wait for it, for it is out of reach."""
        self._left_out |= {route.id}
        if away:
            self._away |= {route.id}
        self._publish()

    def take_back(self, route: Route) -> None:
        self._left_out -= {route.id}
        self._away -= {route.id}
        self._publish()

    def leave(self, leaving: Callable[[Route], bool]) -> None:
        """These are being unloaded, as others say who read that in the store; until the table says so too."""
        found = frozenset(route.id for route in self.routes() if leaving(route))
        if not found <= self._leaving:
            self._leaving |= found
            self._publish()

    def stay(self) -> None:
        """The store was read, and the table is what it says."""
        if self._leaving:
            self._leaving = frozenset()
            self._publish()

    def hold_back(self, unconfirmed: frozenset[RouteId]) -> None:
        """Do not choose these, of which nobody knows whether they are there; all others are taken back."""
        if unconfirmed != self.held_back:
            self.held_back = unconfirmed
            self._publish()

    def _publish(self) -> None:
        gone = self._left_out | self._leaving | self.held_back
        self.now = self._without(gone) if gone else self._whole
        self.changed.set()
        self.changed = anyio.Event()

    def _without(self, gone: frozenset[RouteId]) -> Table:
        def less(entry: Entry) -> Entry:
            return replace(entry, routes=tuple(route for route in entry.routes if route.id not in gone))

        models = {name: less(entry) for name, entry in self._whole.models.items()}
        return replace(self._whole, models=MappingProxyType(models))

"""Requests in flight: counted by the process that holds them, in this one place."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from remuda.router.table import Route
from remuda.scheduler.model import ReplicaKey


class Ledger:
    """What this frontend has in flight, and what the others said they have (see peers.py)."""

    def __init__(self) -> None:
        self._own: Counter[ReplicaKey] = Counter()
        self._turns: dict[ReplicaKey, int] = {}
        self._turn = 0
        self._elsewhere: Mapping[ReplicaKey, int] = {}

    @contextmanager
    def holding(self, route: Route) -> Iterator[None]:
        """One request is in flight there for as long as this block lasts, however it ends."""
        key = route.key
        self._turn += 1
        self._turns[key] = self._turn
        self._own[key] += 1
        try:
            yield
        finally:
            self._own[key] -= 1
            if not self._own[key]:
                del self._own[key]

    def load(self, route: Route) -> int:
        return self._own[route.key] + self._elsewhere.get(route.key, 0)

    def last_turn(self, route: Route) -> int:
        return self._turns.get(route.key, 0)

    def own(self) -> Mapping[ReplicaKey, int]:
        """Replicas with requests of this frontend, and how many."""
        return dict(self._own)

    def hear(self, elsewhere: Mapping[ReplicaKey, int]) -> None:
        """What all other frontends have in flight."""
        self._elsewhere = elsewhere

    def keep(self, keys: frozenset[ReplicaKey]) -> None:
        """Forget whose turn it was, of replicas that are no more."""
        self._turns = {key: turn for key, turn in self._turns.items() if key in keys}

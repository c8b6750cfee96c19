"""Requests in flight: counted by the process that holds them, in this one place."""

from collections.abc import Mapping

from remuda.core.ids import ReplicaKey
from remuda.router.table import Route


class RequestLedger:
    """What this frontend has in flight, and what the others said they have (see peers.py)."""

    def __init__(self) -> None:
        self._own: dict[ReplicaKey, int] = {}
        self._turns: dict[ReplicaKey, int] = {}
        self._turn = 0
        self._elsewhere: Mapping[ReplicaKey, int] = {}

    def begin(self, route: Route) -> None:
        """One more request is in flight there. Whoever says so says `end` too, however the request ends."""
        key = route.key
        self._turn += 1
        self._turns[key] = self._turn
        self._own[key] = self._own.get(key, 0) + 1

    def end(self, route: Route) -> None:
        key = route.key
        left = self._own[key] - 1
        assert left >= 0, "it has begun"
        if left:
            self._own[key] = left
        else:
            del self._own[key]

    def load(self, route: Route) -> int:
        return self._own.get(route.key, 0) + self._elsewhere.get(route.key, 0)

    def last_turn(self, route: Route) -> int:
        return self._turns.get(route.key, 0)

    def turns(self) -> Mapping[ReplicaKey, int]:
        """The last turn of each replica that was used here."""
        return dict(self._turns)

    def own(self) -> Mapping[ReplicaKey, int]:
        """Replicas with requests of this frontend, and how many."""
        return dict(self._own)

    def hear(self, elsewhere: Mapping[ReplicaKey, int]) -> None:
        """What all other frontends have in flight."""
        self._elsewhere = elsewhere

    def keep(self, keys: frozenset[ReplicaKey]) -> None:
        """Forget whose turn it was, of replicas that are no more."""
        self._turns = {key: turn for key, turn in self._turns.items() if key in keys}

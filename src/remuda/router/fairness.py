"""Whose request is next for a model whose replicas are full: keys take turns by their weights, and those of
the batch class come when no other waits. Pure.
"""

from collections import defaultdict
from itertools import count
from typing import Generic, TypeVar

from msgspec import Struct

from remuda.router.table import Route

T = TypeVar("T")


class SeatClaim(Struct, frozen=True):
    """For whom a request waits: `key` is empty for callers without one.

    Made for every request, for which a frozen dataclass takes ten times as long."""

    key: str = ""
    weight: int = 1
    batch: bool = False


ANYONE = SeatClaim()


class LinePlace(Generic[T]):
    """In a line. The one with the smallest rank is next."""

    __slots__ = ("claim", "item", "rank", "start", "takes_any")

    def __init__(self, item: T, claim: SeatClaim, start: float, number: int, *, takes_any: bool) -> None:
        self.item = item
        self.claim = claim
        self.start = start
        self.takes_any = takes_any  # Any replica will do.
        # Those that wait for certain replicas look for themselves.
        self.rank = (not takes_any, claim.batch, start + 1.0 / max(claim.weight, 1), number)


class FairLine(Generic[T]):
    """Start-time fair queueing: each key's requests stand one behind the other on a time of their own, which
    runs slower the greater its weight. A key that comes later starts where the others are now, so that it
    neither waits behind all that another has sent at once nor is paid for its silence."""

    def __init__(self) -> None:
        self._places: list[LinePlace[T]] = []
        self._ends: dict[tuple[bool, str], float] = {}
        self._now = defaultdict[bool, float](float)  # Each class has a time of its own.
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def first(self) -> LinePlace[T] | None:
        return min(self._places, key=lambda place: place.rank, default=None)

    def join(self, item: T, claim: SeatClaim, *, takes_any: bool = True) -> LinePlace[T]:
        flow = (claim.batch, claim.key)
        start = max(self._now[claim.batch], self._ends.get(flow, 0.0))
        self._ends[flow] = start + 1.0 / max(claim.weight, 1)
        place = LinePlace(item, claim, start, next(self._numbers), takes_any=takes_any)
        self._places.append(place)
        return place

    def take_next(self) -> LinePlace[T] | None:
        """Out of the line. It may come back to its place."""
        place = self.first
        if place is not None:
            self._places.remove(place)
            self._now[place.claim.batch] = max(self._now[place.claim.batch], place.start)
            self._forget()
        return place

    def come_back(self, place: LinePlace[T], item: T) -> None:
        """It was its turn, and another was quicker."""
        place.item = item
        self._places.append(place)

    def leave(self, place: LinePlace[T]) -> None:
        if place in self._places:
            self._places.remove(place)
            self._forget()

    def ahead_of(self, claim: SeatClaim) -> bool:
        """Whether a request with this claim that comes now has to wait for others. Those that cannot take any
        replica do not keep others from it."""
        return any(place.takes_any and (claim.batch or not place.claim.batch) for place in self._places)

    def _forget(self) -> None:
        """Keys whose time the others have reached start anew anyway."""
        if len(self._ends) > 2 * len(self._places) + 16:
            self._ends = {flow: end for flow, end in self._ends.items() if end > self._now[flow[0]]}


def may_wait_beyond(waiting: int, own: int, keys: int, most: int) -> bool:
    """Whether one may wait that is beyond the bound: with it there are so many of all keys, and so many of
    its own. One key that fills the line does not keep others from it: what is beyond is theirs, up to as much
    again."""
    return waiting <= 2 * most and own <= most // (2 * max(keys, 1))


def idle_room(route: Route, load: int) -> bool:
    """Whether a request of the batch class may go there: one seat is left free for others, where there are
    several, and one whose seats are not known has to be idle."""
    return load < (route.parallel - 1 if route.parallel > 1 else 1)

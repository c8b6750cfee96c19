"""Which replica answers next, of a model whose requests are better kept together. Pure.

What is kept together must not pile up: only replicas about as busy as the least busy one are eligible.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from xxhash import xxh64_intdigest

from remuda.router.table import Route

# Why a request went to its replica.
PREFIX: Final = "it has the beginning of this prompt in its cache"
SPREAD: Final = "no replica had enough of this prompt in its cache, and it was given least lately"
GUARDED: Final = "the replica with the beginning of this prompt was too busy; it was given least lately"
SESSION: Final = "it is the replica of this session"
SESSION_GUARDED: Final = "the replica of this session was too busy, and it is the next one for it"


@dataclass(frozen=True, slots=True)
class Balance:
    """How far requests are kept together: a replica is eligible with at most `apart` requests more than the
    least busy one, and at most `times` as many and one. `least_match`: the share of a prompt that has to be
    in a cache to count."""

    apart: int = 2
    times: float = 1.5
    least_match: float = 0.3


BALANCE: Final = Balance()


def eligible(routes: Sequence[Route], loads: Sequence[int], balance: Balance) -> list[int]:
    """Places of those with room; on overdue nodes only where there are no others."""
    open_to = [
        place
        for place, (route, load) in enumerate(zip(routes, loads, strict=True))
        if not route.parallel or load < route.parallel
    ]
    if any(routes[place].silent for place in open_to):
        open_to = [place for place in open_to if not routes[place].silent] or open_to
    if not open_to:
        return []
    least = min(loads[place] for place in open_to)
    most = min(least + balance.apart, least * balance.times + 1)
    return [place for place in open_to if loads[place] <= most]


def choose_by_prefix(
    routes: Sequence[Route],
    loads: Sequence[int],
    matches: Sequence[int],
    windows: int,
    weights: Callable[[int], float],
    balance: Balance = BALANCE,
) -> tuple[int, str] | None:
    """The place of the one that has seen most of the prompt, if that is enough of it and it is not too busy;
    else of the one that was given least lately. With why; None: none has room. `loads`, `matches` and
    `weights` are of the replicas by their places; of windows, how many each has seen."""
    open_to = eligible(routes, loads, balance)
    if not open_to:
        return None
    best, why = max(matches), SPREAD
    if best and best >= balance.least_match * windows:
        hottest = [place for place in open_to if matches[place] == best]  # Several may have seen as much.
        if len(hottest) == 1:
            return hottest[0], PREFIX
        if hottest:
            return min(hottest, key=lambda place: (loads[place], _tie(routes[place]))), PREFIX
        why = GUARDED
    ranked = [(weights(place), loads[place], place) for place in open_to]
    least = min(ranked)[:2]
    equals = [place for *rank, place in ranked if tuple(rank) == least]
    return min(equals, key=lambda place: _tie(routes[place])), why


def _tie(route: Route) -> tuple[str, int]:
    return route.node, route.key.index


def choose_by_session(
    routes: Sequence[Route], loads: Sequence[int], session: str, balance: Balance = BALANCE
) -> tuple[int, str] | None:
    """The same one each time while replicas stay: few sessions move when one comes or goes. Frontends need
    not tell each other."""
    open_to = eligible(routes, loads, balance)
    if not open_to:
        return None
    scores = [
        (xxh64_intdigest(f"{session}\n{route.node}\n{route.key.index}".encode()), _tie(route))
        for route in routes
    ]
    chosen = max(open_to, key=scores.__getitem__)
    if len(open_to) == len(routes) or scores[chosen] == max(scores):
        return chosen, SESSION
    return chosen, SESSION_GUARDED

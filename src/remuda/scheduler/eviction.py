"""Which replicas may go to make room for another, and when. Pure.

Never one below the least that its model is to have, nor a pinned one, and never one that was loaded a moment
ago, for those who waited for it are about to be served. One with requests in flight goes only in its turn:
where others have waited for long, it takes no further requests, ends those it has, and is stopped then. So
models that share a small machine take turns, each serves all who wait for it, and none waits for ever.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from remuda.core.ids import NodeId, ReplicaKey
from remuda.models.config import ModelConfig
from remuda.scheduler.model import HoldReason, Replica, ReplicaState
from remuda.scheduler.replica_goals import spare

SETTLING: Final = timedelta(seconds=10)  # WaitedFor requests get this long to be served by a replica.
TURN_LEAST: Final = timedelta(seconds=20)  # So long a busy one serves before others get its place,
TURN_MOST: Final = timedelta(seconds=60)  # or as long as its load took, up to this.
WAITED_LEAST: Final = timedelta(seconds=20)  # Of those who get the place of a busy one.


@dataclass(frozen=True, slots=True)
class Turn:
    """What a new replica may ask of those that are there. `waited`: so long requests have been waiting for
    its model. `reserved`: on these nodes others have waited longer for room. `evicts`: others may go for
    it."""

    waited: timedelta = timedelta()
    reserved: Collection[NodeId] = frozenset()
    evicts: bool = True


FIRST: Final = Turn()
"""No other model is waited for, and nothing busy goes for it."""

BESIDE: Final = Turn(evicts=False)
"""One more of a model that is served: nothing goes for it."""


def spares(configs: Mapping[str, ModelConfig], rows: Sequence[Replica]) -> Mapping[str, int]:
    """Of models that keep some replicas: how many of those that are loaded may go."""
    of_model = defaultdict[str, list[Replica]](list)
    for row in rows:
        of_model[row.key.model].append(row)
    return {
        name: 0 if config.pinned else spare(name, config, of_model.get(name, ()))
        for name, config in configs.items()
        if config.pinned or config.everywhere or config.min_replicas
    }


def staying(rows: Sequence[Replica], spare_of: Mapping[str, int]) -> frozenset[ReplicaKey]:
    """Of the replicas on one node, those that stay however long one waits. Of those that are spared the ones
    used longest ago may go."""
    by_model = defaultdict[str, list[Replica]](list)
    for row in rows:
        if row.key.model in spare_of and row.state is not ReplicaState.UNLOADING:
            by_model[row.key.model].append(row)
    kept = set[ReplicaKey]()
    for model, of_model in by_model.items():
        loaded = sorted((row for row in of_model if row.state is ReplicaState.LOADED), key=_used)
        may_go = {row.key for row in loaded[: spare_of[model]]}
        kept |= {row.key for row in of_model} - may_go
    return frozenset(kept)


def _used(row: Replica) -> tuple[float, int]:
    used = max(filter(None, (row.last_used, row.updated_at)), default=None)
    return (0.0 if used is None else used.timestamp()), row.key.index


def may_go(row: Replica, now: datetime, in_flight: Callable[[ReplicaKey], int], turn: Turn) -> bool:
    """Whether it may be marked as unloading for another now. What is in flight ends in any case."""
    return may_ask(row, turn) and why_held(row, now, in_flight, turn) is None


def may_ask(row: Replica, turn: Turn) -> bool:
    """Whether its place may be had at all, if nothing holds it."""
    return turn.evicts and row.node not in turn.reserved


def why_held(
    row: Replica, now: datetime, in_flight: Callable[[ReplicaKey], int], turn: Turn = FIRST
) -> HoldReason | None:
    """Why it does not leave now, if its model lets it go."""
    if row.state is not ReplicaState.LOADED:
        return HoldReason.LEAVING if row.state is ReplicaState.UNLOADING else HoldReason.COMING
    served = now - (row.updated_at or now)
    if not in_flight(row.key):
        return None if served >= SETTLING else HoldReason.NEW
    return None if turn.waited >= WAITED_LEAST and served >= turn_of(row) else HoldReason.BUSY


def turn_of(row: Replica) -> timedelta:
    """How long it serves before a busy one has to make room: the longer its load took, the longer."""
    if row.created_at is None or row.updated_at is None:
        return TURN_LEAST
    return min(max(row.updated_at - row.created_at, TURN_LEAST), TURN_MOST)


# Models that are never on one node together.


def excludes(model: str, row: Replica, groups: Mapping[str, frozenset[str]]) -> bool:
    """Whether they share a concurrency group. Replicas of one model do not exclude each other. Those that a
    replica was placed with count for as long as it is there: its model may have been removed meanwhile, or
    this frontend does not know of it yet."""
    wanted = groups.get(model, frozenset())
    of_row = groups.get(row.key.model, frozenset()).union(row.concurrency_groups)
    return model != row.key.model and not wanted.isdisjoint(of_row)


def groups_of(configs: Mapping[str, ModelConfig]) -> Mapping[str, frozenset[str]]:
    found = ((name, frozenset(config.concurrency_groups)) for name, config in configs.items())
    return {name: groups for name, groups in found if groups}


# Who has waited longest.


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A model that is waited for. `room_on`: the nodes that were only busy when it was looked for last."""

    since_s: float
    asked_s: float
    room_on: Collection[NodeId] = frozenset()


_FORGOTTEN_S: Final = 5.0  # Those who wait ask once a second.


def turn_in_line(model: str, line: Mapping[str, WaitedFor], now_s: float) -> Turn:
    """The turn of one model among all that are waited for here."""
    own = line.get(model)
    if own is None:
        return FIRST
    before = [
        one
        for name, one in line.items()
        if (one.since_s, name) < (own.since_s, model) and now_s - one.asked_s < _FORGOTTEN_S
    ]
    reserved = frozenset(node for one in before for node in one.room_on)
    return Turn(timedelta(seconds=max(now_s - own.since_s, 0.0)), reserved)


def asked_again(line: Mapping[str, WaitedFor], model: str, now_s: float) -> dict[str, WaitedFor]:
    """The line after this model was asked for: those that are not asked for any more are left out."""
    kept = {name: one for name, one in line.items() if now_s - one.asked_s < _FORGOTTEN_S}
    own = kept.get(model)
    kept[model] = WaitedFor(now_s, now_s) if own is None else WaitedFor(own.since_s, now_s, own.room_on)
    return kept

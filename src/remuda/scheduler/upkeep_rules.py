"""What upkeep does about replicas that are idle, outdated, being unloaded, or left over from a load that
ended. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from remuda.core.ids import NodeId, ReplicaKey
from remuda.models.config import ModelConfig
from remuda.ops.model import OpId, UnloadCause, UnloadReason
from remuda.scheduler.model import Replica, ReplicaState

_NEW: Final = timedelta(seconds=2)  # A row and its operation are written together, but not read together.
_STUCK: Final = timedelta(minutes=1)  # An unload that failed is asked for again so often.
_AWAITED: Final = timedelta(seconds=10)  # And one that makes room: who was to ask for it may be dead.


@dataclass(frozen=True, slots=True)
class Unload:
    replica: Replica
    why: UnloadReason


@dataclass(frozen=True, slots=True)
class Forget:
    """The frontend that was to load it no longer does."""

    replica: Replica


UpkeepAction = Unload | Forget


@dataclass(frozen=True, slots=True)
class UpkeepInputs:
    """`live` are the operations that are not over, `leaving` the replicas that some of them unload, where."""

    now: datetime
    configs: Mapping[str, ModelConfig]
    unreadable: Collection[str]  # Models whose configuration is there, but not understood here.
    live: Collection[OpId]
    leaving: Collection[tuple[NodeId, ReplicaKey]]
    usual_keep_alive: timedelta
    in_flight: Callable[[ReplicaKey], int]
    claimed: Collection[NodeId] = ()  # Nodes that give way to other programs in their GPUs.
    drained: Collection[NodeId] = ()


class Routed(Protocol):
    @property
    def key(self) -> ReplicaKey: ...


def actions(rows: Iterable[Replica], around: UpkeepInputs) -> list[UpkeepAction]:
    every = tuple(rows)
    kept = kept_for_minimum(every, around.configs, around.drained)
    return [action for row in every if (action := _action(row, around, kept)) is not None]


def kept_for_minimum(
    rows: Iterable[Replica], configs: Mapping[str, ModelConfig], drained: Collection[NodeId] = ()
) -> frozenset[ReplicaKey]:
    """The replicas of each model that want of use does not take away: as many as are always to be loaded, in
    the order of their numbers, so that all frontends keep the same ones. One on a drained node is kept only
    until another is loaded in its place."""
    kept = set[ReplicaKey]()
    count = Counter[str]()
    for row in sorted(rows, key=lambda row: (row.node in drained, row.key.model, row.key.index)):
        config = configs.get(row.key.model)
        if config is None or row.state is not ReplicaState.LOADED:
            continue
        stays = config.everywhere or count[row.key.model] < config.min_replicas
        if stays and row.revision == config.revision:  # In this order: a revision is computed each time.
            kept.add(row.key)
            count[row.key.model] += 1
    return frozenset(kept)


def kept_as_routed(key: ReplicaKey, routes: Iterable[Routed], config: ModelConfig) -> bool:
    """The same of one replica, as far as the routing table of a frontend knows. One that takes no requests,
    as on a drained node, is kept until another is loaded in its place."""
    numbers = sorted(route.key.index for route in routes)
    if config.everywhere or key.index not in numbers:
        return config.everywhere or len(numbers) < config.min_replicas
    return key.index in numbers[: config.min_replicas]


def idle_next(rows: Iterable[Replica], around: UpkeepInputs) -> datetime | None:
    """When the next replica is unloaded if it is not used; of one in use that may be past."""
    every = tuple(rows)
    kept = kept_for_minimum(every, around.configs, around.drained)
    instants = (
        unloads_at(row, around.configs.get(row.key.model), around.usual_keep_alive)
        for row in every
        if row.state is ReplicaState.LOADED and row.key not in kept
    )
    return min(filter(None, instants), default=None)


def _action(row: Replica, around: UpkeepInputs, kept: Collection[ReplicaKey]) -> UpkeepAction | None:
    leaves = (row.node, row.key) in around.leaving
    age = timedelta() if row.updated_at is None else around.now - row.updated_at
    match row.state:
        case ReplicaState.STAGING | ReplicaState.LOADING:
            if row.op not in around.live:
                return Forget(row) if age >= _NEW else None
            why = _outdated(row, around)
            return Unload(row, why) if why and not leaves else None
        case ReplicaState.UNLOADING:
            why = row.why or UnloadReason(UnloadCause.UNKNOWN)
            long_enough = _AWAITED if why.cause is UnloadCause.MAKES_ROOM else _STUCK
            return Unload(row, why) if age >= long_enough and not leaves else None
        case ReplicaState.LOADED:
            why = _unwanted(row, around, kept)
            return Unload(row, why) if why and not leaves else None


def _unwanted(row: Replica, around: UpkeepInputs, kept: Collection[ReplicaKey]) -> UnloadReason | None:
    if why := _outdated(row, around):
        return why
    config = around.configs.get(row.key.model)
    pinned = config is not None and config.pinned
    if row.in_vram and row.node in around.claimed and not pinned and not around.in_flight(row.key):
        return UnloadReason(UnloadCause.GIVES_WAY)
    if row.key in kept:
        return None
    idle_at = unloads_at(row, config, around.usual_keep_alive)
    if idle_at is not None and idle_at <= around.now and not around.in_flight(row.key):
        return UnloadReason(UnloadCause.IDLE)
    return None


def _outdated(row: Replica, around: UpkeepInputs) -> UnloadReason | None:
    config = around.configs.get(row.key.model)
    if config is None:
        unreadable = row.key.model in around.unreadable
        return None if unreadable else UnloadReason(UnloadCause.MODEL_REMOVED)
    return None if config.revision == row.revision else UnloadReason(UnloadCause.OUTDATED)


_FIRST_USE: Final = timedelta(seconds=10)  # Those for whom it was loaded are on their way, on any frontend.
_NOTED_WITHIN: Final = timedelta(seconds=2)  # While it is used, that is written down so often at least.
_NOTED_LEAST: Final = timedelta(seconds=1)
_NOTED_MOST: Final = timedelta(seconds=10)


def unloads_at(replica: Replica, config: ModelConfig | None, usual: timedelta) -> datetime | None:
    """None: never. A model's own `keep_alive` counts before the usual one; less than nothing is for ever.

    Of a replica in use, every frontend that can write says so often enough for this never to be past, however
    short its `keep_alive` and whether or not that frontend is heard on the bus."""
    if config is None or config.pinned:
        return None
    keep = usual if config.keep_alive is None else config.keep_alive
    if keep < timedelta():
        return None
    if replica.last_used is not None:
        return replica.last_used + max(keep, _NOTED_WITHIN)
    return None if replica.updated_at is None else replica.updated_at + max(keep, _FIRST_USE)


def used_since(replica: Replica, asked_at: datetime) -> bool:
    """Whether it was used after its unload was asked for; both are the store's instants."""
    return replica.last_used is not None and replica.last_used > asked_at


def noted_every(keep: timedelta) -> timedelta:
    """How often the use of a replica is written down while it lasts."""
    return _NOTED_MOST if keep < timedelta() else min(max(keep / 4, _NOTED_LEAST), _NOTED_MOST)

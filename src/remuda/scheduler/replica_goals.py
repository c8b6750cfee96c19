"""Which replicas are to be loaded, and which may go, so that each model has as many as are declared. Pure.

It takes no events: the goal is computed from what is there now. A model that declares nothing is left to its
requests and to `keep_alive`. A replica counts while requests may be sent to it or soon will be; one on a node
that is away, drained, restarted or without the labels asked for does not, so it is replaced elsewhere.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.model import labels_match
from remuda.fleet.verdicts import ObservedNode, is_up, may_take_work, takes_requests
from remuda.models.config import ModelConfig
from remuda.ops.model import UnloadCause
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.scheduling import Cooldown

BUSY_FOR: Final = timedelta(seconds=5)  # All its replicas, before one is added.
IDLE_FOR: Final = timedelta(minutes=5)  # One of more than the least, before it goes.
_ON_ITS_WAY: Final = (ReplicaState.STAGING, ReplicaState.LOADING)
_DELAYS: Final = (timedelta(seconds=10), timedelta(seconds=30), timedelta(minutes=5))
_PASSING_MOST: Final = timedelta(seconds=30)  # Where waiting helps.


@dataclass(frozen=True, slots=True)
class GoalInputs:
    """`busy_since`: when all replicas of a model were first seen busy, of those that still are. `hot`: models
    of which one replica has long been too busy for the prompts that it knows, and how many they had then."""

    now: datetime
    configs: Mapping[str, ModelConfig]  # By name, without aliases and disabled ones.
    rows: Sequence[Replica]
    nodes: Mapping[NodeId, ObservedNode]
    in_flight: Callable[[ReplicaKey], int] = lambda key: 0
    busy_since: Mapping[str, datetime] = field(default_factory=dict)
    hot: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddReplica:
    """One more is to be loaded, beside so many; on none of the nodes in `has_one`."""

    model: str
    why: str
    beside: int
    has_one: Collection[NodeId] = frozenset()
    evicts: bool = True  # Others may go for it.


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    replica: Replica
    cause: UnloadCause = UnloadCause.IDLE


@dataclass(frozen=True, slots=True)
class Goals:
    add: tuple[AddReplica, ...]
    remove: tuple[RemoveReplica, ...]
    busy_since: Mapping[str, datetime]  # For the next look.
    settled: frozenset[str] = frozenset()  # Models that lack none, and of which none is on its way.


def goals(around: GoalInputs) -> Goals:
    """What is missing and what is too much, of all models that declare something, in the order of names."""
    by_model = defaultdict[str, list[Replica]](list)
    for row in around.rows:
        by_model[row.key.model].append(row)
    add: list[AddReplica] = []
    remove: list[RemoveReplica] = []
    busy_since: dict[str, datetime] = {}
    settled: set[str] = set()
    for name, config in sorted(around.configs.items()):
        if not config.scaled:
            continue
        counted = counting(by_model[name], config, around.nodes)
        if _all_busy(counted, around):
            busy_since[name] = around.busy_since.get(name, around.now)
        missing = _missing(name, config, counted, around) or _for_load(
            name, config, counted, busy_since, around
        )
        add += missing
        if not missing and all(row.state is ReplicaState.LOADED for row in counted):
            settled.add(name)
        if not missing:
            remove += _surplus(config, counted, around)
    return Goals(tuple(add), tuple(remove), busy_since, frozenset(settled))


def counting(
    rows: Sequence[Replica], config: ModelConfig, nodes: Mapping[NodeId, ObservedNode]
) -> list[Replica]:
    """Those that serve, or are about to, of the present configuration."""
    if not rows:
        return []
    revision = config.revision  # Which is computed each time.
    return [row for row in rows if row.revision == revision and _serves(row, config, nodes)]


def _serves(row: Replica, config: ModelConfig, nodes: Mapping[NodeId, ObservedNode]) -> bool:
    return row.state is not ReplicaState.UNLOADING and not why_not_there(row, config, nodes.get(row.node))


def why_not_there(row: Replica, config: ModelConfig, view: ObservedNode | None) -> str:
    """Why it does not count where it is; empty: it does, if it is of the present configuration."""
    if view is None:
        return "its node was removed"
    standing = view.standing
    if not takes_requests(standing):
        node = standing.node
        return "drained" if node.drained else "shutting down" if node.leaving else "offline"
    if row.boot is not None and row.boot != view.boot:
        return "its worker was restarted"
    labelled = labels_match(standing.node.labels, config.selector)
    return "" if labelled else "without the labels that it asks for"


def still_wanted(
    one: "AddReplica", config: ModelConfig, rows: Sequence[Replica], nodes: Mapping[NodeId, ObservedNode]
) -> bool:
    """Asked once more of what is seen when a place has been found: another frontend may have added it."""
    return len(counting([row for row in rows if row.key.model == one.model], config, nodes)) <= one.beside


def _missing(
    name: str, config: ModelConfig, counted: Sequence[Replica], around: GoalInputs
) -> list[AddReplica]:
    if config.everywhere:
        has_one = frozenset(row.node for row in counted)
        lacking = _matching(config, around.nodes) - has_one
        # One after another: the node that the first goes to is known only then.
        return [AddReplica(name, "it is to be on every node", len(counted), has_one)] if lacking else []
    why = f"at least {config.min_replicas} are wanted"
    return [AddReplica(name, why, beside) for beside in range(len(counted), config.min_replicas)]


def _matching(config: ModelConfig, nodes: Mapping[NodeId, ObservedNode]) -> set[NodeId]:
    return {
        node
        for node, view in nodes.items()
        if is_up(view.standing)
        and may_take_work(view.standing.node)
        and labels_match(view.standing.node.labels, config.selector)
    }


# By load.


def _full(row: Replica, around: GoalInputs) -> bool:
    return around.in_flight(row.key) >= max(row.parallel, 1)


def _all_busy(counted: Sequence[Replica], around: GoalInputs) -> bool:
    return bool(counted) and all(row.state is ReplicaState.LOADED and _full(row, around) for row in counted)


def _for_load(
    name: str,
    config: ModelConfig,
    counted: Sequence[Replica],
    busy_since: Mapping[str, datetime],
    around: GoalInputs,
) -> list[AddReplica]:
    """One more where all have been busy for a while, or one has been too busy for long, and none is on its
    way."""
    if config.everywhere or (config.max_replicas and len(counted) >= config.max_replicas):
        return []
    since = busy_since.get(name)
    if since is not None and around.now - since >= BUSY_FOR:
        return [AddReplica(name, f"all {len(counted)} are busy", len(counted), evicts=False)]
    loaded = all(row.state is ReplicaState.LOADED for row in counted)
    if not counted or not loaded or around.hot.get(name) != len(counted):
        return []
    why = f"one of {len(counted)} is too busy for the prompts whose beginning it has read"
    return [AddReplica(name, why, len(counted), evicts=False)]


def _surplus(config: ModelConfig, counted: Sequence[Replica], around: GoalInputs) -> list[RemoveReplica]:
    """At most one at a time; the last that was added goes first, never one in use, and a pinned one only
    above `max_replicas`. Of those that are loaded: one that is on its way may never come to serve."""
    if config.everywhere:
        return _twice_on_a_node(counted, around)
    loaded = [row for row in counted if row.state is ReplicaState.LOADED]
    too_many = bool(config.max_replicas) and len(loaded) > config.max_replicas
    if not too_many and (config.pinned or len(loaded) <= max(config.min_replicas, 1)):
        return []
    least = timedelta() if too_many else IDLE_FOR
    idle = [row for row in loaded if _idle_for(row, around) >= least and not around.in_flight(row.key)]
    last = max(idle, key=lambda row: row.key.index, default=None)
    cause = UnloadCause.SURPLUS if too_many else UnloadCause.IDLE
    return [] if last is None else [RemoveReplica(last, cause)]


def _twice_on_a_node(counted: Sequence[Replica], around: GoalInputs) -> list[RemoveReplica]:
    """Of a model that has one on each node. Loaded by a request, or beside one that came back."""
    first: dict[NodeId, int] = {}
    loaded = sorted((row for row in counted if row.state is ReplicaState.LOADED), key=lambda row: row.key)
    for row in loaded:
        first.setdefault(row.node, row.key.index)
    more = [row for row in loaded if row.key.index != first[row.node] and not around.in_flight(row.key)]
    return [RemoveReplica(more[-1], UnloadCause.SURPLUS)] if more else []


def _idle_for(row: Replica, around: GoalInputs) -> timedelta:
    since = max(filter(None, (row.last_used, row.updated_at)), default=around.now)
    return around.now - since


# The least that stays.


def spare(model: str, config: ModelConfig, rows: Sequence[Replica]) -> int:
    """How many of a model's loaded replicas may go. Whether nodes are up makes no difference: what serves
    again in a moment is not taken away meanwhile."""
    if config.everywhere:
        return 0
    loaded = [row for row in rows if row.key.model == model and row.state is ReplicaState.LOADED]
    if len(loaded) <= config.min_replicas:
        return 0
    revision = config.revision  # Which is computed each time.
    present = sum(row.revision == revision for row in loaded)
    return max(present - config.min_replicas, 0)


def may_be_spared(replica: Replica, config: ModelConfig | None, rows: Sequence[Replica]) -> bool:
    """Whether its model has enough without it; one of an older configuration serves no requests."""
    if config is None or replica.revision != config.revision:
        return True
    if config.everywhere:
        return any(_stands_for(row, replica) for row in rows)
    return spare(config.id, config, rows) > 0


def may_be_replaced(config: ModelConfig, rows: Sequence[Replica]) -> bool:
    """Whether one that was lost is loaded again at once, beside these. Not above what is declared; and where
    each node is to have one, the goal knows which lacks it. One that goes, or is of an older configuration,
    serves soon no more."""
    if config.everywhere or not config.max_replicas:
        return not config.everywhere
    revision = config.revision
    ours = [row for row in rows if (row.key.model, row.revision) == (config.id, revision)]
    return sum(row.state is not ReplicaState.UNLOADING for row in ours) < config.max_replicas


def _stands_for(row: Replica, replica: Replica) -> bool:
    """On the same node, of the same model and configuration."""
    same = (row.key.model, row.node, row.revision) == (replica.key.model, replica.node, replica.revision)
    return same and row.key != replica.key and row.state is ReplicaState.LOADED


# What cannot be had.


def cooldown_after(
    before: Cooldown | None, now: datetime, fleet: str, why: str, *, waiting_helps: bool
) -> Cooldown:
    """`fleet`: what could make a difference; as long as that stays the same, the attempts are counted."""
    attempts = before.attempts + 1 if before is not None and before.fleet == fleet else 1
    delay = _DELAYS[min(attempts, len(_DELAYS)) - 1]
    return Cooldown(attempts, now + (min(delay, _PASSING_MOST) if waiting_helps else delay), fleet, why)


def cools_down(cooldown: Cooldown | None, now: datetime, fleet: str) -> bool:
    return cooldown is not None and cooldown.fleet == fleet and now < cooldown.until

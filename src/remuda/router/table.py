"""What this frontend routes by: an immutable table, replaced as a whole; how it is built from what is stored
and what nodes report; and which of a model's replicas answers next. Pure.

A replica is routed to while it is loaded from the present configuration, and its node takes work, has the
labels that the model asks for, and does not report that its process is gone.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from remuda.core.ids import NodeId, ReplicaKey
from remuda.core.prices import TokenPrice
from remuda.fleet.health import Reachability
from remuda.fleet.identity import NodeTokens, is_its_own
from remuda.fleet.model import labels_match
from remuda.fleet.verdicts import ObservedNode, takes_requests
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.scheduler.facts import ReportPaths
from remuda.scheduler.model import (
    HTTP,
    Replica,
    Replicas,
    ReplicaState,
    endpoint_of,
    why_stopped,
    worker_endpoint,
)

RouteId = tuple[ReplicaKey, int]


@dataclass(frozen=True, slots=True)
class Route:
    """A replica that may be chosen: loaded, of the present configuration, on a node that takes work."""

    key: ReplicaKey
    node: NodeId
    node_name: str
    endpoint: ReplicaEndpoint
    instance: str = ""
    change: int = 0  # Of its row: after another load at the same place it is another route.
    parallel: int = 0  # How many requests it takes at once; 0: unknown.
    vram_free: int = 0
    silent: bool = False  # Its node is overdue: others are preferred.
    worker: ReplicaEndpoint | None = None  # The HTTP server of the worker that runs it.
    price: TokenPrice | None = None  # What its tokens cost; None: nothing is known of a price.
    server: str = ""  # Of one on an adopted server, the server's name, which is `node_name` too.
    labels: frozenset[str] = frozenset()  # Of its node, as `key=value`.
    paid: bool = False  # What it costs comes out of the server's budget.

    @property
    def id(self) -> RouteId:
        """What stays the same while figures about it change."""
        return self.key, self.change


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A configured model, or one on an adopted server. `listed`: its bytes are somewhere, or it is loaded.
    `overflow`: where requests go when none of `routes` has room, in this order. `ours`: it can be loaded on
    nodes. `absence`: why servers that have it cannot be used, if some cannot."""

    config: ModelConfig
    routes: tuple[Route, ...] = ()
    listed: bool = False
    created: int = 0  # Unix seconds, for /v1/models.
    context: int = 0  # Tokens that it is loaded for; 0: not known here.
    overflow: tuple[Route, ...] = ()
    ours: bool = True
    absence: str = ""
    unpriced: bool = False  # Only servers that are paid for have it, and no price was given for it there.


@dataclass(frozen=True, slots=True)
class Table:
    models: Mapping[str, RoutedModel] = field(default_factory=lambda: MappingProxyType({}))
    change: int = 0  # The newest change of replicas that it knows.


_SAID_UNDER_WAY: Final = timedelta(seconds=5)  # What a node says may be older than its arrival by so much.
_USELESS: Final = frozenset({"failed", "stopping", "waiting"})  # States of a process that answers nothing.
_VRAM_STEP: Final = 1 << 28  # Free VRAM only breaks ties: small changes of it make no new table.


@dataclass(frozen=True, slots=True)
class Configured:
    """A model as requests know it. `present`: its bytes are on this machine, or it needs none."""

    config: ModelConfig
    present: bool = False
    created: int = 0  # Unix seconds.
    context: int = 0  # Tokens that it is loaded for; 0: not known here.


def build(
    replicas: Replicas,
    nodes: Mapping[NodeId, ObservedNode],
    models: Mapping[str, Configured],
    tokens: NodeTokens,
    paths: ReportPaths | None = None,
) -> Table:
    """`models` by each name that requests may use; `tokens` open replicas and their workers' doors; `paths`
    remembers what nodes have reported from one table to the next."""
    configs = {(model.config.id, model.config.revision): model.config for model in models.values()}
    routes = defaultdict[str, list[Route]](list)
    for row in replicas.rows:
        view, config = nodes.get(row.node), configs.get((row.key.model, row.revision))
        if view is not None and config is not None and _routable(row, view, config.selector):
            routes[row.key.model].append(_route(row, view, tokens))
    files = (paths or ReportPaths()).of_all(nodes.values())
    entries = {name: _entry(model, routes[model.config.id], files) for name, model in models.items()}
    for name, entry in entries.items():
        if alias := entry.config.alias:  # A second name is listed if what it stands for is.
            target = entries.get(alias)
            entries[name] = replace(entry, listed=target is not None and target.listed)
    return Table(MappingProxyType(entries), replicas.change)


def _entry(model: Configured, routes: list[Route], files: Collection[str]) -> RoutedModel:
    listed = model.present or bool(routes) or model.config.file in files
    return RoutedModel(model.config, tuple(routes), listed, model.created, model.context)


def _route(row: Replica, view: ObservedNode, tokens: NodeTokens) -> Route:
    node = view.standing.node
    return Route(
        key=row.key,
        node=node.id,
        node_name=node.name,
        endpoint=endpoint_of(row, node, tokens),
        instance=row.instance,
        change=row.change,
        parallel=row.parallel,
        vram_free=node.resources.available_vram // _VRAM_STEP * _VRAM_STEP,
        silent=view.standing.reachability is Reachability.SILENT,
        worker=worker_endpoint(node, tokens),
        labels=frozenset(f"{key}={label.value}" for key, label in node.labels.items()),
    )


def _routable(row: Replica, view: ObservedNode, selector: Mapping[str, str]) -> bool:
    """The selector is no part of the revision, and labels change: both are looked at anew each time."""
    node = view.standing.node
    may_be_used = takes_requests(view.standing) and labels_match(node.labels, selector)
    same_life = row.boot is None or row.boot == view.boot
    there = is_its_own(row.address, node, http=row.protocol == HTTP)
    usable = may_be_used and same_life and there
    return row.state is ReplicaState.LOADED and usable and not _gone(row, view)


def _gone(row: Replica, view: ObservedNode) -> bool:
    """Whether its report says so. That a process is missing counts only if it was to be there by then."""
    if view.report is None or not row.instance:
        return False
    if why_stopped(row, view.report):
        return True
    for replica in view.report.replicas:
        if (
            replica.instance == row.instance
            and ReplicaKey(replica.model_id, replica.replica_index) == row.key
        ):
            return replica.state in _USELESS
    said_at = view.standing.node.last_heartbeat - _SAID_UNDER_WAY
    return row.updated_at is not None and row.updated_at < said_at


def choose(
    routes: Sequence[Route], in_flight: Callable[[Route], int], last_turn: Callable[[Route], int]
) -> Route | None:
    """The least loaded that has room; among equals the one whose last turn is longest ago, then the one with
    more free memory. A replica on an overdue node comes after all others."""
    best: Route | None = None
    best_rank: tuple[bool, int, int, int, str, int] | None = None
    for route in routes:
        load = in_flight(route)
        if route.parallel and load >= route.parallel:
            continue
        if len(routes) == 1:
            return route
        rank = (route.silent, load, last_turn(route), -route.vram_free, route.node, route.key.index)
        if best_rank is None or rank < best_rank:
            best, best_rank = route, rank
    return best


def first_with_room(overflow: Sequence[Route], in_flight: Callable[[Route], int]) -> Route | None:
    """Servers in the order in which the model lists them: each only when those before it are full."""
    return next((one for one in overflow if not one.parallel or in_flight(one) < one.parallel), None)

"""The table that this frontend routes by now, and how it is kept up to date: read again when
something is said to have changed, and now and then anyway. Connections to replicas that are no longer in it
are closed.

What cannot be read leaves the table as it is, so that loaded models go on answering.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from remuda.core import limits
from remuda.core.broadcast import DebouncedBroadcast
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.events import AutoResetEvent, Notifier
from remuda.core.ids import FrontendId, NodeId, ReplicaKey
from remuda.fleet.health import Standing
from remuda.fleet.identity import NodeTokens
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import ObservedNode
from remuda.inference.model import ReplicaEndpoint
from remuda.models.memory import effective_context
from remuda.ops.broadcast import FrontendSubject
from remuda.ops.ports import BusPort
from remuda.router.table import Configured, Route, RoutedModel, RouteId, Table, build
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue, names_file
from remuda.scheduler.facts import ReportPaths
from remuda.scheduler.model import Replica, Replicas, ReplicaState
from remuda.wire import subjects
from remuda.wire.broadcasts import ChangeMessage
from remuda.wire.codec import OMIT_EMPTY, Many, Message

log = structlog.get_logger(__name__)


class Tables:
    """`changed` is set by the next table: take it before looking, and none is missed."""

    def __init__(self) -> None:
        self.now = Table()
        self._changes = Notifier()
        self._whole = Table()
        self._left_out: frozenset[RouteId] = frozenset()
        self._away: frozenset[RouteId] = frozenset()  # Of those, the ones that are not about to be back.
        self._leaving: frozenset[RouteId] = frozenset()
        self.held_back: frozenset[RouteId] = frozenset()

    @property
    def changed(self) -> anyio.Event:
        return self._changes.changed

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

    def replicas(self) -> list[Route]:
        """Of those, the ones that run on nodes."""
        return [route for route in self.routes() if not route.server]

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
        """Do not choose these, which are unconfirmed; all others are taken back."""
        if unconfirmed != self.held_back:
            self.held_back = unconfirmed
            self._publish()

    def _publish(self) -> None:
        gone = self._left_out | self._leaving | self.held_back
        self.now = self._without(gone) if gone else self._whole
        self._changes.notify()

    def _without(self, gone: frozenset[RouteId]) -> Table:
        def less(entry: RoutedModel) -> RoutedModel:
            routes = tuple(route for route in entry.routes if route.id not in gone)
            overflow = tuple(route for route in entry.overflow if route.id not in gone)
            return replace(entry, routes=routes, overflow=overflow)

        models = {name: less(entry) for name, entry in self._whole.models.items()}
        return replace(self._whole, models=MappingProxyType(models))


_EVERY_S: Final = 2.0
_GAP_S: Final = 0.05  # Between two looks, and between two signals to others, however much changes.
_FLEET_FRESH_S: Final = 1.0  # A look at all nodes serves so long.


class Unloading(Message):
    """A replica that is being unloaded: this very process, for another may have its key next."""

    process_key: str
    node_id: str
    address: Annotated[str, OMIT_EMPTY] = ""
    instance: Annotated[str, OMIT_EMPTY] = ""

    @classmethod
    def of(cls, row: Replica) -> "Unloading":
        return cls(process_key=str(row.key), node_id=row.node, address=row.address, instance=row.instance)


class ReplicasChanged(ChangeMessage):
    """Frontend to frontends, ours: look at the replicas and models again."""

    fleet: Annotated[bool, OMIT_EMPTY] = False  # Nodes changed too: what was read of them lately is old.
    unloading: Annotated[Many[Unloading], OMIT_EMPTY] = ()  # For those who cannot look: not routed any more.


class ReplicaReader(Protocol):
    """Replicas, and a cheap question for whether they are as they were."""

    async def replicas(self) -> Replicas: ...

    async def latest_change(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TableSources:
    """What the table is made from. `tokens` open replicas."""

    replicas: ReplicaReader
    standings: Callable[[], Awaitable[Sequence[Standing]]]
    catalogue: ModelCatalogue
    tokens: NodeTokens


def _as_built(table: Table) -> Table:
    return table


class _Ledger(Protocol):
    """The part of `usage.RequestLedger` that is kept in step with the table."""

    def keep(self, keys: frozenset[ReplicaKey]) -> None: ...


class TableKeeper:
    """Implements scheduler.ports.RoutingTable."""

    def __init__(
        self,
        tables: Tables,
        ledger: _Ledger,
        sources: TableSources,
        bus: BusPort,
        frontend: FrontendId,
        clock: Clock,
        *,
        every_s: float = _EVERY_S,
        extended: Callable[[Table], Table] = _as_built,
    ) -> None:
        """It looks by itself every so often. `extended` adds what is not in the fleet."""
        self._tables = tables
        self._ledger = ledger
        self._sources = sources
        self._frontend = frontend
        self._clock = clock
        self._every_s = every_s
        self._extended = extended
        self._table: Table | None = None
        self._rows: Replicas | None = None
        self._views = ObservedNodes()
        self._fleet: tuple[int, float, Mapping[NodeId, ObservedNode]] | None = None
        self._fleet_news = 0  # How often nodes were said to have changed.
        self._paths = ReportPaths()
        self._reading = anyio.Lock()
        self._begun = 0  # Looks so far, and the last of them that came to an end.
        self._done = 0
        self._failed: tuple[int, RemudaError | None] = (0, None)  # The last of them that came to none.
        self._wanted = AutoResetEvent()
        self._subject = FrontendSubject(
            bus, subjects.REPLICAS_CHANGED, frontend, ReplicasChanged, undecodable=ReplicasChanged()
        )
        self._broadcast = DebouncedBroadcast(self._publish, gap_s=_GAP_S)
        self._fleet_unpublished = False
        self._well = True
        self._unloading: frozenset[Unloading] = frozenset()  # As read last.
        self.read_s = clock.monotonic()  # When the store was last read; at first, as if it just was.

    def routable(self, model: str) -> bool:
        return self._tables.know(model)

    @property
    def next_change(self) -> anyio.Event:
        return self._tables.changed

    def rows_changed(self) -> None:
        """Look at once, and tell the other frontends. Never waits."""
        self._wanted.set()
        self._broadcast.send()

    async def fleet_changed(self) -> None:
        """A node takes no more work, or does again: when this returns, requests here go by that. Others are
        told. What cannot be read is found out later."""
        self._fleet_news += 1
        self._fleet_unpublished = True
        self.rows_changed()
        await self._try()

    async def refresh(self) -> None:
        """The table is at least as new as this call when it returns. Raises what the store raises, also to
        those who came while it did not answer: they do not wait for it one after another."""
        begun_before, wait = self._begun, self._reading.locked()
        async with self._reading:
            failed, why = self._failed
            if why is not None and wait and failed >= begun_before and failed > self._done:
                raise why
            if self._done <= begun_before:  # Else a later reading has begun.
                self._begun += 1
                await self._read()

    async def _read(self) -> None:
        try:
            await self._look()
        except RemudaError as error:
            self._failed = (self._begun, error)
            raise
        self._done = self._begun

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started means that the table was read once, if it could be."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._subject.listen, self._receive)
            tasks.start_soon(self._broadcast.run)
            await self._try()
            task_status.started()
            while True:
                with anyio.move_on_after(self._every_s):
                    await self._wanted.wait()
                self._wanted.clear()
                await self._try()
                await anyio.sleep(_GAP_S)

    async def _try(self) -> None:
        try:
            await self.refresh()
        except RemudaError as error:
            if self._well:
                log.warning("table_not_refreshed", reason=error.message)
            self._well = False
        else:
            if not self._well:
                log.info("table_refreshed_again")
            self._well = True

    # Looking.

    async def _look(self) -> None:
        began_s = self._clock.monotonic()
        await self._sources.catalogue.refresh()
        rows = await self._read_rows()
        nodes = await self._read_fleet(rows)
        models = {name: _configured(model) for name, model in self._sources.catalogue.models.items()}
        # In a thread: with thousands of replicas it takes longer than any stream should wait for its turn.
        table = self._extended(await run_sync(build, rows, nodes, models, self._sources.tokens, self._paths))
        if table != self._table:
            self._table = table
            self._tables.replace(table)
            servers = {route.key for route in self._tables.routes() if route.server}
            self._ledger.keep(frozenset(row.key for row in rows.rows) | servers)
        self._tables.stay()
        self.read_s = began_s
        self._note_unloading(rows)

    def _note_unloading(self, rows: Replicas) -> None:
        """Any frontend that sees it tells those that cannot read the store, for the one that marked it may
        have died."""
        before = self._unloading
        marked = (row for row in rows.rows if row.state is ReplicaState.UNLOADING)
        self._unloading = frozenset(Unloading.of(row) for row in marked)
        if not self._unloading <= before:
            self._broadcast.send()

    async def _read_rows(self) -> Replicas:
        replicas = self._sources.replicas
        if self._rows is None or await replicas.latest_change() != self._rows.change:
            self._rows = await replicas.replicas()
        return self._rows

    async def _read_fleet(self, rows: Replicas) -> Mapping[NodeId, ObservedNode]:
        """Read after the rows, so that of a worker that was started anew no former replica is believed."""
        news = self._fleet_news
        if self._fleet is not None:
            version, read_s, nodes = self._fleet
            young = version == news and self._clock.monotonic() - read_s < _FLEET_FRESH_S
            if young and _knows_all(nodes, rows):
                return nodes
        nodes = await run_sync(self._views.of, await self._sources.standings(), ())
        self._fleet = (news, self._clock.monotonic(), nodes)
        return nodes

    # Signals.

    async def _publish(self) -> bool:
        unloading = tuple(sorted(self._unloading, key=str))[: limits.UNLOADS_TOLD_MAX]
        fleet, self._fleet_unpublished = self._fleet_unpublished, False
        message = ReplicasChanged(frontend=self._frontend, fleet=fleet, unloading=unloading)
        published = await self._subject.publish(message)
        if fleet and not published:
            self._fleet_unpublished = True
        return published

    def _receive(self, message: ReplicasChanged) -> None:
        if message.fleet:
            self._fleet_news += 1
        if message.unloading:
            unloading = {(one.process_key, one.node_id): one for one in message.unloading}
            self._tables.leave(lambda route: _is_meant(route, unloading.get((str(route.key), route.node))))
        self._wanted.set()


def _is_meant(route: Route, unloading: Unloading | None) -> bool:
    """A peer names no process: there the address tells one load from the next, as well as it can."""
    if unloading is None:
        return False
    if route.instance or unloading.instance:
        return route.instance == unloading.instance
    return unloading.address in ("", route.endpoint.address)


def _knows_all(nodes: Mapping[NodeId, ObservedNode], rows: Replicas) -> bool:
    """No replica was loaded in a life of its worker that began since these nodes were read."""
    return all(
        row.boot is None or ((view := nodes.get(row.node)) is not None and view.boot == row.boot)
        for row in rows.rows
    )


def _configured(model: Catalogued) -> Configured:
    config, updated_at = model.config, model.stored.updated_at
    needs_bytes = names_file(config) or "/" in config.file
    header = model.weights.header
    return Configured(
        config=config,
        present=model.here or not needs_bytes,
        created=0 if updated_at is None else int(updated_at.timestamp()),
        context=effective_context(config, header) if config.context_size or header else 0,
    )


class ReplicaConnections(Protocol):
    async def forget(self, in_use: Collection[ReplicaEndpoint]) -> None:
        """Drop all but these; what is under way comes to its end."""
        ...


async def close_stale_connections(
    tables: Tables,
    connections: ReplicaConnections,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    while True:
        changed = tables.changed
        entries = tables.now.models.values()
        await connections.forget(
            {route.endpoint for entry in entries for route in (*entry.routes, *entry.overflow)}
        )
        await changed.wait()

"""One request, from its model to the end of its answer: choose a replica, count it, serve, and try others
when it failed before it said anything; when all are gone, have the model loaded again, once."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from msgspec import Struct, structs

from remuda.core.clock import Clock
from remuda.core.errors import NoCapacity, RemudaError
from remuda.inference.answers import AnswerSink
from remuda.inference.failures import RateLimited, Unaffordable, UpstreamFailed
from remuda.inference.model import WITH_FILES, InferenceCall, Upstream, Upstreams
from remuda.models.config import PREFIX_CACHE
from remuda.router.chooser import ReplicaChooser
from remuda.router.fairness import ANYONE, FairLine, SeatClaim, idle_room, may_wait_beyond
from remuda.router.hints import RoutingHints
from remuda.router.live_table import Tables
from remuda.router.loading import (
    Loading,
    LoadStatus,
    Meanwhile,
    ModelUnknown,
    Overloaded,
    WaitNotes,
    all_busy,
    busy_cause,
    load_cause,
    servers_busy_cause,
)
from remuda.router.prefixes import Chain
from remuda.router.spending import Budgets, nothing_paid
from remuda.router.table import Route, RoutedModel, choose, first_with_room
from remuda.router.usage import RequestLedger
from remuda.scheduler.ranking import NO_WISHES

# Why a request went to its replica.
NAMED: Final = "the request named this node"
OVERFLOW: Final = "no node of the fleet had room, and the model lists this server for that"
ANOTHER: Final = "replicas that were tried before failed the request"
ONLY: Final = "it was the only replica that could be chosen"
IDLE: Final = "it had no other request, and its last turn was the longest ago"
LEAST_LOADED: Final = "of the replicas with room it had the fewest requests"

_TABLE_S: Final = 1.0  # After which the load is asked for again.
_TOLD_S: Final = 1.0  # So often frontends tell each other what they have in flight.
_TRIES_MAX: Final = 16  # Of one request, however many replicas are in the table.
_PROCESSED_MAX: Final = 2  # Replicas that may have worked on one request: it may be what makes them crash.


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long a request waits for what, and how many may."""

    load_s: float | None = 60.0  # For a model that is being loaded; None: for as long as it takes.
    seat_s: float = 60.0  # For a replica that is full.
    waiting_max: int = 512  # Per model; later ones are refused at once.


class RoutingRecord(Struct):
    """What became of a request, for the log and the figures. `node`: the only one, by its name, that may
    answer; empty: any. Made for every request, for which a dataclass takes five times as long."""

    node: str = ""
    nodes_only: bool = False  # It came from another fleet: no overflow to a third.
    route: Route | None = None  # The replica that answered, or was tried last.
    tried: list[Route] = []
    failures: list[UpstreamFailed] = []  # Of those tried, before any answer.
    recovered: list[Route] = []  # Tried, found well since, and open once more.
    reloaded: bool = False  # All replicas were found gone, and the model was loaded again for this request.
    waited_s: float = 0.0
    waits: list[tuple[str, float]] = []  # For what, and how long.
    why: str = ""  # It went to `route`.
    claim: SeatClaim = ANYONE
    hints: RoutingHints | None = None
    windows: Chain = ()  # Of its prompt, where requests with the same beginning are kept together.
    session: str = ""  # Where those of a session are.
    kept_together: str = ""  # Why this replica, where one of these or a hint has decided.


def may_try_again(failures: Sequence[UpstreamFailed]) -> bool:
    """Whether a request that failed like this, before any of its answer came, may go to another replica.

    A replica that refused the connection or has no model has not seen the request, so nothing is lost by
    asking the next. One that broke off may have crashed because of it."""
    processed = sum(not (one.unprocessed or isinstance(one, Unaffordable)) for one in failures)
    return failures[-1].elsewhere and processed < _PROCESSED_MAX and len(failures) < _TRIES_MAX


def recovered(routing: RoutingRecord, well: Sequence[Route]) -> list[Route]:
    """Of those found well after a failure, the ones to try once more: they turned the request away unheard,
    such as a server that was just being started again."""
    before = {route.id for route in routing.recovered}
    unheard = [route for route, why in zip(routing.tried, routing.failures, strict=True) if why.unprocessed]
    return [route for route in unheard if route in well and route.id not in before]


class WaitingFigures(Protocol):
    def waiting_changed(self, model: str, by: int) -> None:
        """So many more requests (or fewer) wait for a replica of this model."""
        ...


class _Uncounted:
    def waiting_changed(self, model: str, by: int) -> None:
        pass


_UNCOUNTED: Final = _Uncounted()


class RequestDispatcher:
    def __init__(
        self,
        tables: Tables,
        ledger: RequestLedger,
        upstreams: Upstreams,
        loading: Loading,
        clock: Clock,
        waits: WaitLimits,
        *,
        figures: WaitingFigures = _UNCOUNTED,
        budgets: Budgets = nothing_paid,
        chooser: ReplicaChooser | None = None,
    ) -> None:
        self._tables = tables
        self._ledger = ledger
        self._upstreams = upstreams
        self._loading = loading
        self._clock = clock
        self._waits = waits
        self._figures = figures
        self._budgets = budgets
        self._chooser = chooser or ReplicaChooser(tables, clock)
        self._waiting = Counter[str]()
        self._keys = defaultdict[str, Counter[str]](Counter)  # Of those that wait, by model.
        self._lines = defaultdict[str, FairLine[anyio.Event]](FairLine)

    async def answer(
        self, call: InferenceCall, sink: AnswerSink, routing: RoutingRecord, meanwhile: Meanwhile
    ) -> None:
        """Serve the call into the sink. Raises the error for the client; in-stream once it has begun."""
        while True:
            try:
                await self._try(call, sink, routing, meanwhile)
                return
            except UpstreamFailed as failure:
                routing.failures.append(failure)
                again = not sink.begun and may_try_again(routing.failures)
                if again and await self._another(call.model.id, routing, meanwhile):
                    continue
                if failure.elsewhere and (cause := await self._cause(routing)):
                    raise UpstreamFailed(failure.fault, cause, status=failure.status) from failure
                raise

    async def ready(self, model: str, routing: RoutingRecord, meanwhile: Meanwhile) -> None:
        """Returns when there is a replica of the model, which is loaded if it has to be. Raises as `answer`
        does."""
        if not self._open_to(model, routing):
            await self._wait_for_slot(model, routing, meanwhile)

    async def _try(
        self, call: InferenceCall, sink: AnswerSink, routing: RoutingRecord, meanwhile: Meanwhile
    ) -> None:
        model = call.model.id
        if call.model.route_policy == PREFIX_CACHE and not routing.tried:
            routing.windows = self._chooser.windows(call) if self._several(model) else ()
        route = self._free_now(model, routing) or await self._wait_for_slot(model, routing, meanwhile)
        entry = self._tables.now.models[model]
        if entry.config is not call.model:  # Changed while the request waited: a replica knows only this.
            call = structs.replace(call, model=entry.config, context=entry.context)
        if call.kind in WITH_FILES:
            call = structs.replace(call, files=route.worker)
        # Nothing was awaited since it was found to have room, so it still has.
        routing.why = self._why(route, entry, routing)
        self._ledger.begin(route)
        routing.route = route
        if routing.windows:
            self._chooser.sent(route, routing.windows, routing.why)
        routing.tried.append(route)
        try:
            upstream = self._upstreams.at(route.endpoint)
            if route.paid:
                await self._serve_paid(route, upstream, call, sink)
            else:
                await upstream.serve(call, sink)
        except UpstreamFailed as failure:
            if failure.elsewhere:
                self._loading.suspect(route, failure)
            raise
        finally:
            self._ledger.end(route)
            self._wake_next(model)

    def _why(self, route: Route, entry: RoutedModel, routing: RoutingRecord) -> str:
        """Of constant texts only: it is asked of each request."""
        if routing.node:
            return NAMED
        if route.server and entry.ours:
            return OVERFLOW
        if routing.tried:
            return ANOTHER
        if routing.kept_together:
            return routing.kept_together
        return ONLY if len(entry.routes) == 1 else LEAST_LOADED if self._ledger.load(route) else IDLE

    async def _serve_paid(
        self, route: Route, upstream: Upstream, call: InferenceCall, sink: AnswerSink
    ) -> None:
        async with self._budgets(route, call) as bounded:
            await upstream.serve(bounded, sink)

    async def _cause(self, routing: RoutingRecord) -> str:
        """Why a replica failed, where more is known than it could say itself; else empty."""
        route = routing.route
        if route is None or not await self._loading.removed(route):
            return ""
        return f"node {route.node_name} was removed while it answered"

    async def _another(self, model: str, routing: RoutingRecord, meanwhile: Meanwhile) -> bool:
        """Whether there is a replica to try, or will be one because all that failed are gone."""
        if self._open_to(model, routing) or self._overflow(model, routing) is not None:
            return True
        if isinstance(routing.failures[-1], RateLimited | Unaffordable):
            return False  # It is well, and will not do it now.
        failed = routing.tried[-1].node_name
        await meanwhile(LoadStatus(model, waits_for=f"{failed}: {routing.failures[-1].message}"))
        well = [route for route in routing.tried if not await self._loading.gone(route)]
        if well:
            again = recovered(routing, well)
            routing.recovered += again
            return bool(again)
        if routing.reloaded:
            return False
        routing.reloaded = True
        return True

    def _free(self, model: str, routing: RoutingRecord) -> Route | None:
        routes = self._open_to(model, routing)
        if routing.claim.batch:
            routes = [route for route in routes if idle_room(route, self._ledger.load(route))]
        route = self._chosen(model, routes, routing)
        if route is not None:
            return route
        entry = self._tables.now.models.get(model)
        if entry is None or not entry.overflow or not entry.ours or not (routes or routing.tried):
            return None
        return self._overflow(model, routing)

    def _free_now(self, model: str, routing: RoutingRecord) -> Route | None:
        """For one that is not in the line: those in it come first."""
        line = self._lines.get(model)
        if line is not None and _takes_any(routing) and line.ahead_of(routing.claim):
            return None
        return self._free(model, routing)

    def _several(self, model: str) -> bool:
        entry = self._tables.now.models.get(model)
        return entry is not None and len(entry.routes) > 1

    def _chosen(self, model: str, routes: Sequence[Route], routing: RoutingRecord) -> Route | None:
        if routing.hints is None:
            return self._among(model, routes, routing)
        for tier, why in routing.hints.tiers(routes):
            if (route := self._among(model, tier, routing)) is not None:
                routing.kept_together = why or routing.kept_together
                return route
        return None

    def _among(self, model: str, routes: Sequence[Route], routing: RoutingRecord) -> Route | None:
        if len(routes) > 1 and routes[0].server:  # Those that the model lists, in that order.
            return first_with_room(routes, self._ledger.load)
        if len(routes) < 2 or not (routing.windows or routing.session):
            return choose(routes, self._ledger.load, self._ledger.last_turn)
        config, load = self._tables.now.models[model].config, self._ledger.load
        if routing.windows:
            found = self._chooser.by_prefix(config, routes, load, routing.windows)
        else:
            found = self._chooser.by_session(config, routes, load, routing.session)
        if found is None:
            return None
        route, routing.kept_together = found
        return route

    def _overflow(self, model: str, routing: RoutingRecord) -> Route | None:
        """A server that this model lists for when no node of ours can answer."""
        entry = self._tables.now.models.get(model)
        if entry is None or not entry.overflow or routing.nodes_only:
            return None
        tried = {route.id for route in routing.tried}
        there = [route for route in entry.overflow if routing.node in ("", route.node_name)]
        return first_with_room([route for route in there if route.id not in tried], self._ledger.load)

    def _open_to(self, model: str, routing: RoutingRecord) -> Sequence[Route]:
        """Not those that have failed this very request."""
        routes = self._on_wanted_node(model, routing)
        if not routing.tried:
            return routes
        tried = Counter(route.id for route in routing.tried)
        tried.subtract(route.id for route in routing.recovered)
        return [route for route in routes if tried[route.id] <= 0]

    def _on_wanted_node(self, model: str, routing: RoutingRecord) -> Sequence[Route]:
        entry = self._tables.now.models.get(model)
        routes = () if entry is None else entry.routes
        if entry is not None and not entry.ours and entry.overflow and not routing.nodes_only:
            routes = entry.overflow  # It has nothing else.
        return [route for route in routes if route.node_name == routing.node] if routing.node else routes

    def _reopened(self, model: str, routing: RoutingRecord) -> bool:
        """Whether some replica is open to this request. One that was found gone and is in the table again was
        out of reach for a while, and counts as another: once."""
        if self._open_to(model, routing):
            return True
        before = {route.id for route in routing.recovered}
        routes = self._on_wanted_node(model, routing)
        routing.recovered += [route for route in routes if route.id not in before]
        return bool(self._open_to(model, routing))

    async def _wait_for_slot(self, model: str, routing: RoutingRecord, meanwhile: Meanwhile) -> Route:
        began_s = self._clock.monotonic()
        key = routing.claim.key
        self._waiting[model] += 1
        self._keys[model][key] += 1
        self._figures.waiting_changed(model, 1)
        notes = WaitNotes()

        async def noted(status: LoadStatus) -> None:
            notes.begin(load_cause(status), self._clock.monotonic())
            await meanwhile(status)

        try:
            route = await self._seat(model, routing, noted, notes, began_s)
            notes.loaded(model)
            return route
        finally:
            notes.end(self._clock.monotonic())
            routing.waits += notes.over
            self._figures.waiting_changed(model, -1)
            self._waiting[model] -= 1
            self._keys[model] -= Counter((key,))
            if not self._waiting[model]:
                del self._waiting[model]
                self._lines.pop(model, None)
                self._keys.pop(model, None)
            routing.waited_s += self._clock.monotonic() - began_s

    async def _seat(
        self, model: str, routing: RoutingRecord, meanwhile: Meanwhile, notes: WaitNotes, began_s: float
    ) -> Route:
        keys, most = self._keys[model], self._waits.waiting_max
        waiting = self._waiting[model]
        too_many = waiting > most and not may_wait_beyond(waiting, keys[routing.claim.key], len(keys), most)
        seat_by_s = 0.0
        while True:
            changed = self._tables.changed
            if model not in self._tables.now.models:
                raise ModelUnknown(f"the model {model!r} was removed")
            if not self._reopened(model, routing):
                notes.begin(load_cause(LoadStatus(model)), self._clock.monotonic())
                if routing.node:
                    await self._require_on_node(model, routing, changed)
                    continue
                left_s = 0.0 if too_many else self._left_to_load(began_s)
                if (route := await self._brought(model, left_s, routing, meanwhile)) is not None:
                    return route
                if left_s == 0.0 and not self._reopened(model, routing):
                    raise _no_other(model, routing)
                await self._until_open(model, routing, changed)
            elif (route := self._free_now(model, routing)) is not None:
                return route
            elif too_many:
                raise Overloaded(
                    f"{self._waits.waiting_max} requests wait for {model} already",
                    hint="try again in a while",
                )
            else:
                seat_by_s = seat_by_s or self._clock.monotonic() + self._waits.seat_s
                if (route := await self._busy(model, routing, notes, seat_by_s)) is not None:
                    return route

    async def _busy(
        self, model: str, routing: RoutingRecord, notes: WaitNotes, deadline_s: float
    ) -> Route | None:
        """As `_in_line`. Replicas come and go meanwhile: the cause of the wait says how many there were."""
        batch, first = routing.claim.batch, self._open_to(model, routing)
        elsewhere = bool(first) and bool(first[0].server) and not batch
        cause = servers_busy_cause(model, first) if elsewhere else busy_cause(model, len(first), batch=batch)
        notes.begin(cause, self._clock.monotonic())
        try:
            return await self._in_line(model, routing, deadline_s)
        finally:
            if not elsewhere:
                last = len(self._open_to(model, routing))
                notes.reword(cause, busy_cause(model, len(first), last, batch=batch))

    async def _brought(
        self, model: str, left_s: float | None, routing: RoutingRecord, meanwhile: Meanwhile
    ) -> Route | None:
        """None once it is loaded; a server that the model lists, when no node can have it."""
        if routing.nodes_only and not self._tables.now.models[model].ours:
            raise _no_further(model)

        async def or_elsewhere(status: LoadStatus) -> None:
            if status.waits_for and self._overflow(model, routing) is not None:
                raise NoCapacity(status.waits_for)  # Nothing is being loaded.
            await meanwhile(status)

        try:
            await self._loading.bring(model, left_s, or_elsewhere, routing.hints or NO_WISHES)
        except RemudaError:
            route = self._overflow(model, routing)
            if route is None:
                raise
            return route
        return None

    async def _require_on_node(self, model: str, routing: RoutingRecord, changed: anyio.Event) -> None:
        """NoCapacity unless the table is about to have it: another frontend may have loaded it just now.
        Nothing is loaded for a request that names its node: it wants to know how that one does now."""
        if not routing.failures:
            await self._change_of_table(changed)
        if not self._open_to(model, routing):
            raise _not_there(model, routing)

    def _left_to_load(self, began_s: float) -> float | None:
        if self._waits.load_s is None:
            return None
        return max(began_s + self._waits.load_s - self._clock.monotonic(), 0.0)

    async def _until_open(self, model: str, routing: RoutingRecord, changed: anyio.Event) -> None:
        if not self._reopened(model, routing):
            await self._change_of_table(changed)

    async def _change_of_table(self, changed: anyio.Event) -> None:
        """It was loaded a moment ago, and the table is about to know."""
        with anyio.move_on_after(_TABLE_S):
            await changed.wait()

    async def _in_line(self, model: str, routing: RoutingRecord, deadline_s: float) -> Route | None:
        """A seat: keys take turns, and of one key the first comes first. None: all replicas are gone.

        Only the first in the line looks for what frees seats elsewhere; each that leaves calls the next."""
        line, turn = self._lines[model], anyio.Event()
        place = line.join(turn, routing.claim, takes_any=_takes_any(routing))
        try:
            while routes := self._open_to(model, routing):
                # In the line only the first looks for itself.
                mine = turn.is_set() or line.first is place or not place.takes_any
                if mine and (route := self._free(model, routing)) is not None:
                    return route
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    raise all_busy(model, routes, self._waits.seat_s)
                if turn.is_set():  # A newcomer was quicker: this place is kept.
                    turn = anyio.Event()
                    line.come_back(place, turn)
                looks = line.first is place or not place.takes_any
                await (self._first_called(turn, left_s) if looks else _called(turn, left_s))
            return None
        finally:
            line.leave(place)
            self._wake_next(model)

    async def _first_called(self, turn: anyio.Event, left_s: float) -> None:
        """Or the table changes, or others announce what they have in flight, or may have been silent."""
        changes = self._tables.changed, self._ledger.elsewhere_changed
        with anyio.move_on_after(min(left_s, _TOLD_S)):
            async with anyio.create_task_group() as either:
                for changed in changes:
                    either.start_soon(_then_cancel, changed, either.cancel_scope)
                await turn.wait()
                either.cancel_scope.cancel()

    def _wake_next(self, model: str) -> None:
        line = self._lines.get(model)
        if line and (place := line.take_next()) is not None:
            place.item.set()


def _takes_any(routing: RoutingRecord) -> bool:
    """Any replica will do, so that those that wait for any come before it."""
    return not routing.node and not routing.tried


def _no_other(model: str, routing: RoutingRecord) -> NoCapacity:
    reason = f"; the last failure: {routing.failures[-1].message}" if routing.failures else ""
    return NoCapacity(
        f"every replica of {model} has failed this request{reason}", hint="try again in a while"
    )


def _no_further(model: str) -> NoCapacity:
    return NoCapacity(
        f"{model} runs on other servers only, and a request that came from another fleet goes no further",
        hint="ask that server directly, or have your fleet adopt it",
    )


def _not_there(model: str, routing: RoutingRecord) -> NoCapacity:
    reason = f"; its failure: {routing.failures[-1].message}" if routing.failures else ""
    return NoCapacity(
        f"{model} has no replica on the node {routing.node}{reason}",
        hint="`remuda models ps` shows where it is loaded",
    )


async def _called(turn: anyio.Event, left_s: float) -> None:
    with anyio.move_on_after(left_s):
        await turn.wait()


async def _then_cancel(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()

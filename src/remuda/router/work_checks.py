"""Health by work done: an idle replica is asked for a token now and then, for a port that answers proves
nothing. One that twice produces nothing is fenced, stopped, and its model loaded again.

A check counts as no use and wakes nothing: it goes to the replica itself, past whatever counts requests, and
only while the replica has none. Of several frontends one checks each replica. Those that have requests are
asked nothing that costs work, but for a sign of life, once they have said nothing for long (see stalls.py).
"""

import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId, ReplicaKey
from remuda.core.tasks import TaskOwner
from remuda.inference.answers import (
    NOTHING,
    AnswerFormat,
    ByteSink,
    Delta,
    FinishReason,
    MediaSink,
    Score,
    TextSink,
    Tokens,
    Usage,
    Vector,
)
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind, Upstreams
from remuda.inference.requests import (
    ChatRequest,
    EmbeddingRequest,
    RequestMessage,
    RerankRequest,
    openai_json,
)
from remuda.models.config import ModelConfig
from remuda.router.live_table import Tables
from remuda.router.stalls import UNANSWERED_MAX, Stall, asked, is_to_be_asked, looked
from remuda.router.table import Route, RouteId

log = structlog.get_logger(__name__)

MISSES_MAX: Final = 2  # Silence is not death at the first miss.
_TICK_S: Final = 1.0
_AT_ONCE: Final = 8
_RELOADED_AGAIN_S: Final = 300.0  # One that produces nothing again sooner waits for the next request.
_LIMIT_MOST_S: Final = 60.0  # For one token of a replica that has nothing else to do.
_TEXTS: Final = frozenset({"chat", "completion", "FLAG_CHAT", "FLAG_COMPLETION", "vision"})


class CheckOutcome(StrEnum):
    PRODUCED = "produced"
    MISSED = "missed"
    BUSY = "busy"  # It got a request meanwhile, which may be why it was slow.
    UNCHECKABLE = "uncheckable"  # It does not do this kind of work.
    LOST = "lost"  # It is out of reach, or has another model: others look into that.


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """What is known of one replica's work. Clock readings are monotonic seconds."""

    quiet_since_s: float
    checked_s: float = float("-inf")
    misses: int = 0
    uncheckable: bool = False


def noticed(record: WorkRecord, busy: bool, now_s: float) -> WorkRecord:
    """After a look at what it has in flight. Work that is done is the best of checks."""
    return replace(record, quiet_since_s=now_s) if busy else record


def is_due(record: WorkRecord, every_s: float, now_s: float) -> bool:
    """After a miss it is asked again soon."""
    if record.uncheckable:
        return False
    pause_s = every_s / 4 if record.misses else every_s
    return now_s - max(record.quiet_since_s, record.checked_s) >= pause_s


def concluded(record: WorkRecord, outcome: CheckOutcome, now_s: float) -> WorkRecord:
    checked = replace(record, checked_s=now_s)
    match outcome:
        case CheckOutcome.PRODUCED:
            return replace(checked, misses=0)
        case CheckOutcome.MISSED:
            return replace(checked, misses=record.misses + 1)
        case CheckOutcome.UNCHECKABLE:
            return replace(checked, uncheckable=True)
        case CheckOutcome.BUSY | CheckOutcome.LOST:
            return checked


def is_mine(key: ReplicaKey, me: FrontendId, alive: Collection[FrontendId]) -> bool:
    """Each replica has one frontend that checks it, by what all of them know."""
    order = sorted({me, *alive})
    return order[zlib.crc32(str(key).encode()) % len(order)] == me


def tiny_work(config: ModelConfig, request_id: str, created: int) -> InferenceCall | None:
    """The least that this model can be asked for. None: nothing that costs next to nothing."""
    kind, request = _tiny_request(config)
    if kind is None or request is None:
        return None
    return InferenceCall(kind, request, openai_json(request), config, request_id, created)


def _tiny_request(
    config: ModelConfig,
) -> tuple[RequestKind | None, ChatRequest | EmbeddingRequest | RerankRequest | None]:
    if config.embeddings:
        return RequestKind.EMBEDDING, EmbeddingRequest(model=config.id, input="hi")
    if config.reranking:
        return RequestKind.RERANK, RerankRequest(model=config.id, query="hi", documents=["hi"])
    if config.known_usecases and not _TEXTS & set(config.known_usecases):
        return None, None
    messages = [RequestMessage("user", "hi")]
    return RequestKind.CHAT, ChatRequest(model=config.id, messages=messages, max_tokens=1)


class _Discarded:
    """An AnswerSink for answers without a reader. `complete`: there was one."""

    begun = False

    def __init__(self) -> None:
        self.complete = False

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return None

    def texts(self, count: int) -> TextSink:
        return self

    async def write(self, index: int, delta: Delta) -> None:
        pass

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        pass

    async def end(self, usage: Usage) -> None:
        self.complete = True

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        self.complete = bool(vectors)

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        self.complete = bool(scores)

    async def tokens(self, tokens: Tokens) -> None:
        self.complete = True

    def media(self) -> MediaSink:
        raise AssertionError("nothing that makes files is asked for")


class WorkChecks:
    """`in_flight` counts over all frontends, `own` those of this one, `alive` are these; `fence` takes a
    replica out of service and has its process stopped; `reload` loads a model. `silent_s`: since a replica
    said anything to this frontend; `healthy`: whether its process answers; None: it says nothing."""

    def __init__(
        self,
        frontend: FrontendId,
        tables: Tables,
        upstreams: Upstreams,
        clock: Clock,
        entropy: Entropy,
        *,
        in_flight: Callable[[ReplicaKey], int],
        own: Callable[[ReplicaKey], int],
        silent_s: Callable[[ReplicaEndpoint], float],
        healthy: Callable[[ReplicaEndpoint], Awaitable[bool | None]],
        alive: Callable[[], Collection[FrontendId]],
        fence: Callable[[Route, UpstreamFailed], Awaitable[None]],
        reload: Callable[[str], Awaitable[object]],
        every_s: float,
    ) -> None:
        """0: nothing is checked."""
        self._frontend = frontend
        self._tables = tables
        self._upstreams = upstreams
        self._clock = clock
        self._entropy = entropy
        self._in_flight = in_flight
        self._own = own
        self._silent_s = silent_s
        self._healthy = healthy
        self._alive = alive
        self._fence = fence
        self._reload = reload
        self._every_s = every_s
        self._limit_s = min(max(every_s / 2, 1.0), _LIMIT_MOST_S)
        self._records: Mapping[RouteId, WorkRecord] = {}
        self._stalls: Mapping[RouteId, Stall] = {}
        self._checking = set[RouteId]()
        self._reloaded_s: dict[str, float] = {}
        self._tasks = TaskOwner()
        self._few = anyio.CapacityLimiter(_AT_ONCE)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with self._tasks.open():
            task_status.started()
            while self._every_s:
                self._look()
                await anyio.sleep(min(_TICK_S, self._every_s / 4))
            await anyio.sleep_forever()

    def _look(self) -> None:
        now_s, alive = self._clock.monotonic(), self._alive()
        routes = self._tables.replicas()
        known = {route.id: self._records.get(route.id, WorkRecord(now_s)) for route in routes}
        self._records = {
            route.id: noticed(known[route.id], bool(self._in_flight(route.key)), now_s) for route in routes
        }
        for route in routes:
            due = is_due(self._records[route.id], self._every_s, now_s)
            if due and route.id not in self._checking and is_mine(route.key, self._frontend, alive):
                self._checking.add(route.id)
                self._tasks.start(self._check, route)
        self._look_at_busy([route for route in routes if self._own(route.key)], now_s)

    def _look_at_busy(self, routes: Sequence[Route], now_s: float) -> None:
        """Each frontend looks after its own requests: it has their connections."""
        silent_s = {route.id: self._silent_s(route.endpoint) for route in routes}
        self._stalls = {
            one: looked(self._stalls.get(one), silent_s[one], self._every_s, now_s) for one in silent_s
        }
        for route in routes:
            due = is_to_be_asked(self._stalls[route.id], silent_s[route.id], self._every_s, now_s)
            if due and route.id not in self._checking and self._works_on_texts(route):
                self._checking.add(route.id)
                self._tasks.start(self._ask_for_life, route)

    def _works_on_texts(self, route: Route) -> bool:
        """What makes images may well compute for minutes without answering anything."""
        entry = self._tables.now.models.get(route.key.model)
        return entry is not None and _tiny_request(entry.config)[0] is not None

    async def _ask_for_life(self, route: Route) -> None:
        try:
            async with self._few:
                answers = await self._healthy(route.endpoint)
            stall = self._stalls.get(route.id)
            if stall is None or not self._tables.has(route):
                return
            if answers is False:  # It listens no more: others look into that.
                await self._fence(
                    route, UpstreamFailed(Fault.UNREACHABLE, "it takes no connections any more")
                )
                return
            stall = asked(stall, answers is True, self._clock.monotonic())
            self._stalls = {**self._stalls, route.id: stall}
            if stall.wedged:
                calls = f"{UNANSWERED_MAX} health calls in a row"
                await self._give_up(route, f"it said nothing to its requests, and did not answer {calls}")
        finally:
            self._checking.discard(route.id)

    async def _check(self, route: Route) -> None:
        try:
            async with self._few:
                outcome, why = await self._outcome(route)
            record = self._records.get(route.id)
            if record is None:  # It is gone.
                return
            record = concluded(record, outcome, self._clock.monotonic())
            self._records = {**self._records, route.id: record}
            if outcome is CheckOutcome.MISSED:
                log.warning(
                    "replica_produced_nothing", replica=str(route.key), node=route.node_name, reason=why
                )
            if record.misses >= MISSES_MAX:
                words = f"it produced nothing when it was asked {MISSES_MAX} times: {why}"
                await self._give_up(route, words)
        finally:
            self._checking.discard(route.id)

    async def _outcome(self, route: Route) -> tuple[CheckOutcome, str]:
        entry = self._tables.now.models.get(route.key.model)
        if entry is None or self._in_flight(route.key):
            return CheckOutcome.BUSY, ""
        call = tiny_work(entry.config, f"check-{self._entropy.token(6)}", int(self._clock.now().timestamp()))
        if call is None:
            return CheckOutcome.UNCHECKABLE, ""
        sink, why = _Discarded(), f"no token within {self._limit_s:g} s"
        with anyio.move_on_after(self._limit_s):
            try:
                await self._upstreams.at(route.endpoint).serve(call, sink)
                why = "its answer was empty"
            except UpstreamFailed as failure:
                why = failure.message
                if failure.fault is Fault.REFUSED:
                    return CheckOutcome.UNCHECKABLE, why
                if not self._tables.has(route):  # It is being unloaded, or others look into it already.
                    return CheckOutcome.LOST, why
                if failure.elsewhere and not failure.mute:  # Its kernel answers for a mute one: it missed.
                    await self._fence(route, failure)
                    return CheckOutcome.LOST, why
        if sink.complete:
            return CheckOutcome.PRODUCED, ""
        return (CheckOutcome.BUSY if self._in_flight(route.key) else CheckOutcome.MISSED), why

    async def _give_up(self, route: Route, why: str) -> None:
        await self._fence(route, UpstreamFailed(Fault.NOT_LOADED, why))
        model, now_s = route.key.model, self._clock.monotonic()
        if now_s - self._reloaded_s.get(model, float("-inf")) < _RELOADED_AGAIN_S:
            log.warning("replica_not_reloaded", replica=str(route.key), reason="it was a moment ago")
            return
        self._reloaded_s[model] = now_s
        try:
            await self._reload(model)
        except RemudaError as error:
            log.warning("replica_not_reloaded", replica=str(route.key), reason=error.message)

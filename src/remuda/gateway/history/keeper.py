"""Keeps the last hour: looks once a second at what this frontend has in flight, writes a step every ten
seconds, tells the other frontends, and asks one of them for what was missed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import Rejected, RemudaError
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.health import Reachability, Standing
from remuda.fleet.node_views import ObservedNodes
from remuda.gateway.history.exchange import (
    HistoryPart,
    HistoryWanted,
    StepTaken,
    histories_of,
    parts,
    sample_of,
    samples,
)
from remuda.gateway.history.series import (
    FRONTENDS_MAX,
    STEP_S,
    ChartFigures,
    LastHour,
    Sample,
    Values,
    seen_of,
    shared_by,
)
from remuda.gateway.inference.request_records import InferenceFigures
from remuda.gateway.requests_under_way import Running
from remuda.ops.ports import BusMessage, BusPort
from remuda.wire import subjects
from remuda.wire.codec import Message, decode, encode

log = structlog.get_logger(__name__)

_LOOK_S: Final = 1.0
_ANSWER_S: Final = 15.0  # Another frontend's patience; then it is asked again.
GAP_S: Final = 0.02  # Between parts of an answer.
_ADDED_UP_AT_ONCE: Final = 20  # Steps.
M = TypeVar("M", bound=Message)


class OwnUse(Protocol):
    """What this frontend does for its callers, as it is counted anyway."""

    def in_flight(self) -> Mapping[NodeId, int]: ...

    def tokens(self) -> Mapping[str, int]:
        """Written so far, by the name of the node."""
        ...


@dataclass(frozen=True, slots=True)
class RequestUse:
    """Implements OwnUse: the figures of requests that have ended, and those under way."""

    figures: InferenceFigures
    running: Running

    def in_flight(self) -> Mapping[NodeId, int]:
        return self.running.by_node()

    def tokens(self) -> Mapping[str, int]:
        return self.figures.tokens_written() + self.running.tokens_written()


@dataclass(slots=True)
class _Asked:
    frontend: FrontendId
    at_s: float
    parts: int = 0


class HistoryKeeper:
    """`run` must be running. `standings` are those of the last look at the fleet; none: it cannot be seen."""

    def __init__(
        self,
        frontend: FrontendId,
        standings: Callable[[], Sequence[Standing]],
        use: OwnUse,
        bus: BusPort,
        clock: Clock,
    ) -> None:
        self._frontend = frontend
        self._standings = standings
        self._use = use
        self._bus = bus
        self._clock = clock
        self._history = LastHour(self._step_now())
        self._step = self._step_now()
        self._step_began_s = clock.monotonic()
        self._ids: Mapping[str, NodeId] = {}  # By the names of nodes, as they were seen last.
        self._held = Counter[NodeId]()
        self._looks = 0
        self._node_views = ObservedNodes()
        self._tokens: Mapping[str, int] = use.tokens()
        self._complete: dict[FrontendId, int] = {}  # Up to which step all of another's is here.
        self._asked: _Asked | None = None

    def of_node(self, node: NodeId) -> ChartFigures:
        return self._history.of_node(node)

    async def of_fleet(self) -> ChartFigures:
        shared = shared_by(self._node_views.reports(self._standings()))
        for number, _ in enumerate(self._history.add_up(shared), 1):
            if number % _ADDED_UP_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        for _ in self._history.add_up(shared):  # What has come meanwhile.
            pass
        return self._history.of_fleet()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.listen)
            task_status.started()
            while True:
                await self.look()
                await anyio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Count what is in flight; when a step is over, write it and tell it."""
        now = self._step_now()
        if now != self._step:
            sample = self._sample()
            self._begin(now)
            self._history.add(self._frontend, sample)
            if now % 6 == 0:
                self._history.forget_empty()
            await self._tell(sample)
        self._held.update(self._use.in_flight())
        self._looks += 1

    def _step_now(self) -> int:
        return int(self._clock.now().timestamp()) // STEP_S

    def _begin(self, step: int) -> None:
        self._step, self._step_began_s = step, self._clock.monotonic()
        self._held, self._looks = Counter(), 0
        self._tokens = self._use.tokens()
        self._history.move_to(step)

    def _sample(self) -> Sample:
        """Of the step that ends now. A node that is not heard says nothing of itself."""
        standings = self._standings()
        self._ids = {one.node.name: one.node.id for one in standings} or self._ids
        heard = (one.node for one in standings if one.reachability is Reachability.UP)
        seen = {node.id: seen_of(node.resources) for node in heard}
        return Sample(self._step, seen, self._counted(self._clock.monotonic() - self._step_began_s))

    def _counted(self, lasted_s: float) -> Mapping[NodeId, Values]:
        written = {
            self._ids[name]: count - self._tokens.get(name, 0)
            for name, count in self._use.tokens().items()
            if name in self._ids and count > self._tokens.get(name, 0)
        }
        return {
            node: (self._held[node] / max(self._looks, 1), written.get(node, 0) / max(lasted_s, 1.0))
            for node in self._held.keys() | written.keys()
        }

    # Speaking.

    async def _tell(self, sample: Sample) -> None:
        try:
            for message in samples(self._frontend, self._history.since, sample):
                await self._bus.publish(subjects.HISTORY_STEPS, message)
        except RemudaError as error:  # Who misses it asks for it.
            log.debug("history_not_told", reason=error.message)

    async def _answer(self, wanted: HistoryWanted) -> None:
        if wanted.of != self._frontend:
            return
        histories = (self._history.of(node, wanted.first) for node in sorted(self._history.nodes()))
        complete = self._complete | {self._frontend: self._history.over}
        for part in parts(self._frontend, wanted.frontend, histories, complete):
            await self._bus.publish(subjects.HISTORY_PARTS, part)
            await anyio.sleep(GAP_S)

    async def _ask(self, frontend: FrontendId, first: int) -> None:
        now_s = self._clock.monotonic()
        if self._asked is not None and now_s - self._asked.at_s < _ANSWER_S:
            return
        self._asked = _Asked(frontend, now_s)
        wanted = HistoryWanted(frontend=self._frontend, of=frontend, first=first)
        await self._bus.publish(subjects.HISTORY_WANTED, encode(wanted))

    # Listening.

    async def listen(self) -> None:
        """Returns once the others are heard."""
        try:
            await self._bus.subscribe(subjects.HISTORY_PARTS, self._hear_part)
            await self._bus.subscribe(subjects.HISTORY_WANTED, self._hear_wanted)
            await self._bus.subscribe(subjects.HISTORY_STEPS, self._hear_step)
        except RemudaError as error:
            log.warning("history_not_heard", reason=error.message)

    async def _hear_step(self, message: BusMessage) -> None:
        told = _understood(StepTaken, message)
        if told is None or told.frontend == self._frontend:
            return
        speaker = FrontendId(told.frontend)
        self._history.add(speaker, sample_of(told))
        first = max(self._complete.get(speaker, told.since - 1) + 1, told.since, self._history.first)
        if speaker not in self._complete and len(self._complete) >= FRONTENDS_MAX:
            self._complete.pop(min(self._complete, key=self._complete.__getitem__))
        if first >= told.step:
            self._complete[speaker] = max(told.step, self._complete.get(speaker, told.step))
            return
        try:
            await self._ask(speaker, first)
        except RemudaError as error:  # Its next step tells of the gap again.
            log.debug("history_not_asked_for", reason=error.message)

    async def _hear_wanted(self, message: BusMessage) -> None:
        wanted = _understood(HistoryWanted, message)
        try:
            if wanted is not None:
                await self._answer(wanted)
        except RemudaError as error:  # It is asked for again.
            log.debug("history_not_answered", reason=error.message)

    async def _hear_part(self, message: BusMessage) -> None:
        part = _understood(HistoryPart, message)
        asked = self._asked
        if part is None or part.to != self._frontend:
            return
        try:
            for one in histories_of(part):
                self._history.join(one)
        except Rejected as error:
            log.warning("history_not_understood", reason=error.message)
            return
        if asked is None or asked.frontend != part.frontend or asked.parts != part.part:
            return  # Something was lost between: it is asked for again.
        asked.parts += 1
        if part.complete:
            self._asked = None
            for name, step in part.complete.items():
                known = FrontendId(name)
                self._complete[known] = max(step, self._complete.get(known, step))


def _understood(kind: type[M], message: BusMessage) -> M | None:
    try:
        return decode(kind, message.payload)
    except Rejected as error:
        log.warning("history_not_understood", reason=error.message)
        return None

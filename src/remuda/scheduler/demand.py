"""Sees to it that one load in the whole fleet is under way for a model that is wanted and has no replica.

Requests that want it wait for what is found (a single flight: one task per model, shared by all who ask
while it runs and for a moment after); they do not look themselves, and leaving early cancels nothing.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import Conflict, NodeUnreachable, Problem, RemudaError, Unavailable
from remuda.core.ids import NodeId
from remuda.core.tasks import TaskOwner
from remuda.ops.model import Kind, Operation, OpId, Step, Wish
from remuda.ops.ports import Filter, OpStore, View
from remuda.ops.progress import Overlay, overlaid
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.eviction import FIRST, Turn, WaitedFor, asked_again, turn_in_line
from remuda.scheduler.model import Replica, ReplicaState, Unplaceable
from remuda.scheduler.ports import (
    FilesComing,
    FilesNotFetched,
    ModelFetches,
    OutOfReach,
    ReplicaStore,
    RoutingTable,
)
from remuda.scheduler.ranking import NO_WISHES, NodeWishes, shared_wishes

log = structlog.get_logger(__name__)

T = TypeVar("T")
M = TypeVar("M")

_SHARED_S: Final = 1.0  # So long what was found, or raised, answers for itself.
_PATIENCE_S: Final = 1.0  # Then the caller learns that it takes longer, and may ask again.
_WORK_S: Final = 60.0
_AT_ONCE_MAX: Final = 8


class StillLooking:
    """Nothing is known yet."""


class _Flight(Generic[T, M]):
    def __init__(self) -> None:
        self.marks: set[M] = set()
        self.over = anyio.Event()
        self.ended_s = 0.0
        self.found: T | RemudaError | None = None

    def end(self, found: T | RemudaError | None, now_s: float) -> None:
        self.found, self.ended_s = found, now_s
        self.over.set()

    def answer(self) -> T | None:
        if isinstance(self.found, RemudaError):
            raise self.found
        return self.found


class SingleFlight(Generic[T, M]):
    """`work` is given the key and the marks of those who ask, which grow while it is at it.

    What is `short_lived` only answers those who asked before it was found. `run` owns the tasks; when it
    ends, all waiting callers get the error that this frontend is stopping."""

    def __init__(
        self,
        work: Callable[[str, Collection[M]], Awaitable[T | None]],
        clock: Clock,
        *,
        short_lived: tuple[type, ...] = (),
    ) -> None:
        self._work = work
        self._clock = clock
        self._short_lived = short_lived
        self._tasks = TaskOwner()
        self._places = anyio.CapacityLimiter(_AT_ONCE_MAX)
        self._flights: dict[str, _Flight[T, M]] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            await self._tasks.run(task_status=task_status)
        finally:
            for flight in self._flights.values():
                if not flight.over.is_set():
                    flight.end(_stopping(), self._clock.monotonic())

    async def ask(self, name: str, mark: M) -> T | StillLooking | None:
        """What the flight under way finds or raises, or one that ended a moment ago; else that of a new one.
        Unavailable when this frontend is stopping."""
        flight = self._flights.get(name)
        if flight is None or not self._serves(flight):
            flight = self._begin(name)
        flight.marks.add(mark)
        with anyio.move_on_after(_PATIENCE_S):
            await flight.over.wait()
        return flight.answer() if flight.over.is_set() else StillLooking()

    def _serves(self, flight: _Flight[T, M]) -> bool:
        """Whether it is still open, or what it found still counts. Nothing found is not kept: look again."""
        if not flight.over.is_set():
            return True
        if flight.found is None or isinstance(flight.found, self._short_lived):
            return False
        return self._clock.monotonic() - flight.ended_s < _SHARED_S

    def _begin(self, name: str) -> _Flight[T, M]:
        if not self._tasks.is_open:
            raise _stopping()
        flight = self._flights[name] = _Flight[T, M]()
        self._tasks.start(self._carry_out, name, flight)
        return flight

    async def _carry_out(self, name: str, flight: _Flight[T, M]) -> None:
        found: T | RemudaError | None
        try:
            with anyio.fail_after(_WORK_S):
                async with self._places:
                    found = await self._work(name, flight.marks)
        except RemudaError as error:
            found = error
        except TimeoutError:
            found = Unavailable(f"what there is of {name} was not found out within {_WORK_S:.0f} s")
        except Exception:  # One name's defect is no other's.
            log.exception("look_broke", name=name)
            found = RemudaError(f"looking for {name} failed", hint="the frontend's log says why")
        flight.end(found, self._clock.monotonic())


def _stopping() -> Unavailable:
    return Unavailable("this frontend is stopping", hint="try again in a while, or ask another frontend")


_FAILED_FOR: Final = timedelta(seconds=15)  # So long a failed load answers for itself.
_AVOIDED_FOR: Final = timedelta(seconds=5)  # So long a node that could not be reached is not tried again.
_RECENT: Final = 20
_LOADS: Final = frozenset({Kind.LOAD})
REQUESTS: Final = "requests"  # Who asked, where it was requests and not a person.
NO_NODE: Final[Mapping[NodeId, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class UnderWay:
    replica: Replica
    view: View | None  # None: its operation was just made, or is just over.


@dataclass(frozen=True, slots=True)
class Failed:
    problem: Problem
    node: str


@dataclass(frozen=True, slots=True)
class NoRoomYet:
    """Nothing can be begun now, and waiting may help."""

    reasons: Unplaceable


@dataclass(frozen=True, slots=True)
class GivenUp:
    """People have unloaded it while it was being loaded, and meant that: its callers get this error.
    Only a later request begins another.

    Every frontend reads this from the operation, wherever the unload was asked for: it was cancelled, or
    replaced by an unload, though it loads the present configuration. Upkeep gives up only others."""


LoadFound = UnderWay | Failed | NoRoomYet | Unplaceable | GivenUp | FilesComing | FilesNotFetched
DemandAnswer = LoadFound | StillLooking | None


class LoadAsk(NamedTuple):
    """By one who waits: for which load, and where it would rather have it."""

    op: OpId | None = None
    wishes: NodeWishes = NO_WISHES


class Placer(Protocol):
    async def begin(
        self,
        model: Catalogued,
        by: str,
        avoid: Mapping[NodeId, str] = NO_NODE,
        *,
        turn: Turn = FIRST,
        wishes: NodeWishes = NO_WISHES,
    ) -> Replica | Unplaceable | None:
        """Choose a node, none of those to avoid for now (each with its reason), and record that the model is
        to be loaded there. `turn`: what may go for it. `wishes`: which nodes it
        is to be on rather than on others. None: things have changed meanwhile, look again.
        Conflict when it is being loaded already."""
        ...


class Demand:
    """`run` does the looking for all callers. `table` is read again before anything is begun."""

    def __init__(
        self,
        replicas: ReplicaStore,
        operations: OpStore,
        catalogue: ModelCatalogue,
        placer: Placer,
        clock: Clock,
        *,
        table: RoutingTable,
        out_of_reach: OutOfReach,
        progress: Overlay,
        fetches: ModelFetches | None = None,
    ) -> None:
        self._fetches = fetches
        self._replicas = replicas
        self._operations = operations
        self._catalogue = catalogue
        self._placer = placer
        self._table = table
        self._out_of_reach = out_of_reach
        self._progress = progress
        self._clock = clock
        # Once the files are there, the next request must not hear that they could not be fetched.
        self._looks = SingleFlight[LoadFound, LoadAsk](self._find, clock, short_lived=(FilesNotFetched,))
        self._line: dict[str, WaitedFor] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._looks.run(task_status=task_status)

    async def look(
        self, name: str, waits_for: OpId | None = None, wishes: NodeWishes = NO_WISHES
    ) -> DemandAnswer:
        """What there is of this model now; a load is begun if there is nothing. None: it may have a route.

        All requests that wait for one model share one look a second, and what it raises. `waits_for` is the
        load that the caller knows already."""
        return await self._looks.ask(name, LoadAsk(waits_for, wishes))

    async def under_way(self, name: str) -> UnderWay | None:
        """A load of it that is not over; nothing is begun."""
        rows = (await self._replicas.replicas()).rows
        coming = next((row for row in rows if row.key.model == name and _on_its_way(row)), None)
        return None if coming is None else await self._under_way(coming)

    def current_view(self, found: UnderWay) -> View | None:
        """Its operation, with the progress that is heard at this moment."""
        return None if found.view is None else overlaid(found.view, self._progress, self._clock.now())

    async def failed(self, name: str) -> Failed | None:
        """How the last load of a model that is not there ended, for as long as it answers for itself; nothing
        is begun."""
        model = self._catalogue.find(name)
        if model is None or self._table.routable(name):
            return None
        steps = await self._failed_lately(model, (await self._replicas.replicas()).now)
        return next((_failed(step) for step, _ in steps), None)

    async def _find(self, name: str, asked: Collection[LoadAsk]) -> LoadFound | None:
        # In this order: a replica that gets ready meanwhile is either seen on its way, or in the table.
        seen = await self._replicas.replicas()
        await self._table.refresh()
        if self._table.routable(name):
            return None
        model = self._catalogue.find(name)
        if model is None:
            return None  # It was removed, and the caller is about to find out.
        coming = [row for row in seen.rows if row.key.model == model.config.id and _on_its_way(row)]
        if coming:
            found = await self._under_way(coming[0])
            by_hand = found.view is not None and _given_up(found.view, model)
            return GivenUp() if by_hand else found
        if model.lacks_files and self._fetches is not None:
            return await self._fetches.state(model.stored)
        if await self._all_given_up({one.op for one in asked}, model):
            return GivenUp()
        failed = await self._failed_lately(model, seen.now)
        for step, _ in failed:
            if not _unreachable(step):
                return _failed(step)
        # Of a node that could not be reached nothing is known about the model: another one may take it.
        away = {
            step.node: "it could not be reached a moment ago" for step, ago in failed if ago < _AVOIDED_FOR
        }
        away = {**away, **self._out_of_reach.nodes_out_of_reach()}
        return await self._begin(model, away, shared_wishes(one.wishes for one in asked))

    async def _under_way(self, replica: Replica) -> UnderWay:
        found = await self._operations.views(Filter(ids=(replica.op,), limit=1, dismissed=True))
        return UnderWay(replica, found[0] if found else None)

    async def _all_given_up(self, waited_for: Collection[OpId | None], model: Catalogued) -> bool:
        """Whether all who ask have waited for loads that people have given up."""
        ops = tuple(op for op in waited_for if op is not None)
        if not ops or None in waited_for:
            return False
        views = await self._operations.views(Filter(ids=ops, limit=len(ops), dismissed=True))
        given_up = {view.operation.id for view in views if _given_up(view, model)}
        return given_up.issuperset(waited_for)

    async def _failed_lately(self, model: Catalogued, now: datetime) -> Sequence[tuple[Step, timedelta]]:
        """The steps of its loads that have just failed, the latest first, and how long ago."""
        recent = Filter(
            finished=True, failed=True, kinds=_LOADS, model=model.config.id, dismissed=True, limit=_RECENT
        )
        return [
            (view.steps[0], now - operation.finished_at)
            for view in await self._operations.views(recent)
            if loads_present(operation := view.operation, model)
            and operation.finished_at is not None
            and now - operation.finished_at < _FAILED_FOR
        ]

    async def _begin(
        self, model: Catalogued, avoid: Mapping[NodeId, str], wishes: NodeWishes
    ) -> LoadFound | None:
        name, now_s = model.config.id, self._clock.monotonic()
        self._line = asked_again(self._line, name, now_s)
        turn = turn_in_line(name, self._line, now_s)
        try:
            begun = await self._placer.begin(model, REQUESTS, avoid, turn=turn, wishes=wishes)
        except Conflict:  # Another frontend was quicker.
            return None
        if isinstance(begun, Unplaceable):
            if name in self._line:
                self._line[name] = replace(self._line[name], room_on=begun.room_on)
            return NoRoomYet(begun) if begun.waiting_helps else begun
        if begun is None:
            return None
        self._line.pop(name, None)
        return UnderWay(begun, None)


def _given_up(view: View, model: Catalogued) -> bool:
    operation = view.operation
    unwanted = operation.wish is Wish.CANCEL or any(step.replaced_by is not None for step in view.steps)
    return unwanted and loads_present(operation, model)


def loads_present(operation: Operation, model: Catalogued) -> bool:
    """It loads the model as it is configured now."""
    return operation.target is not None and operation.target.revision == model.config.revision


def _failed(step: Step) -> Failed:
    return Failed(step.problem or Problem("load_failed", step.reason), step.node_name)


def _unreachable(step: Step) -> bool:
    return step.problem is not None and step.problem.code == NodeUnreachable.code


def _on_its_way(row: Replica) -> bool:
    return row.state in (ReplicaState.STAGING, ReplicaState.LOADING)

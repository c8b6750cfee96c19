"""One task per key, shared by all who ask for it while it runs and for a moment after. Whoever asks may leave
at any time; that cancels nothing.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final, Generic, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError, Unavailable
from remuda.core.tasks import TaskOwner

log = structlog.get_logger(__name__)

T = TypeVar("T")
M = TypeVar("M")

_SHARED_S: Final = 1.0  # So long what was found, or raised, answers for itself.
_PATIENCE_S: Final = 1.0  # Then the caller is told that it takes longer, and may ask again.
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

    def serves(self, now_s: float) -> bool:
        """Whether it is still open, or what it found still counts. Nothing found is not kept: look again."""
        return not self.over.is_set() or (self.found is not None and now_s - self.ended_s < _SHARED_S)


class SingleFlight(Generic[T, M]):
    """`work` is given the key and the marks of those who ask, which grow while it is at it.

    `run` owns the tasks; when it ends, all who wait are told that this frontend is stopping."""

    def __init__(self, work: Callable[[str, Collection[M]], Awaitable[T | None]], clock: Clock) -> None:
        self._work = work
        self._clock = clock
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
        if flight is None or not flight.serves(self._clock.monotonic()):
            flight = self._begin(name)
        flight.marks.add(mark)
        with anyio.move_on_after(_PATIENCE_S):
            await flight.over.wait()
        return flight.answer() if flight.over.is_set() else StillLooking()

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

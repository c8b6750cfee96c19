"""An event loop on which waiting takes no time: when nothing is ready, its clock jumps to the next timer."""

import asyncio
import gc
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import anyio
import pytest
from anyio._backends._asyncio import CancelScope

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_COLLECTED_AFTER = 50_000  # Objects more.
_TOGETHER_S = 1e-9  # Timers that are due in so little time are due.
_CANCELLED_LEAST = 100  # Timers, before those that are cancelled are looked for.


class NothingLeft(RuntimeError):
    """Everybody waits, and no timer is set: on a real loop this would hang for ever."""


class _NoSockets:
    """In place of a selector, of which nothing is ever asked."""


class VirtualLoop(asyncio.BaseEventLoop):
    """No sockets, no signals, no threads; the order of everything follows from what is scheduled. It is that
    of asyncio's own loop, at a third of the cost: a simulated hour has hundreds of thousands of rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0
        self._selector = _NoSockets()
        self._ready: deque[Any]
        self._timers: list[
            tuple[float, asyncio.TimerHandle]
        ] = []  # A heap, and how many in it are cancelled.
        self._timer_cancelled_count = 0

    def time(self) -> float:
        return self.elapsed_s

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined]  # So that it says when it is cancelled.
        heappush(self._timers, (when, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.elapsed_s + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        self._drop_cancelled()
        if not ready:
            # To sleep for ever is to have a timer, set to the end of time.
            if not timers or math.isinf(timers[0][0]):
                raise NothingLeft("nothing is ready and no timer is set")
            self.elapsed_s += max(0.0, timers[0][0] - self.elapsed_s)
        due_s = self.elapsed_s + _TOGETHER_S
        while timers and timers[0][0] < due_s:
            handle: Any = heappop(timers)[1]
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):  # Those that are ready by now: what they make ready is next.
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _drop_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > _CANCELLED_LEAST and self._timer_cancelled_count > len(timers) / 2:
            timers[:] = [one for one in timers if not one[1].cancelled()]
            heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0][1].cancelled():
            heappop(timers)
            self._timer_cancelled_count -= 1

    def _write_to_self(self) -> None:
        return None

    def add_reader(self, fd: "FileDescriptorLike", callback: Callable[..., object], *args: object) -> None:
        """Nothing is ever readable here. Without this anyio would watch it from a thread of its own, whose
        time is not this loop's."""

    def remove_reader(self, fd: "FileDescriptorLike") -> bool:
        return True


class _InOrder(dict[object, None]):
    """A set that is gone through in the order in which it was filled."""

    def add(self, one: object) -> None:
        self[one] = None

    def remove(self, one: object) -> None:
        del self[one]

    def discard(self, one: object) -> None:
        self.pop(one, None)


@contextmanager
def cancelled_in_order() -> Iterator[None]:
    """Tasks that are cancelled together are cancelled in the order in which they began. By itself anyio takes
    them by their addresses in memory, which differ from run to run."""
    begin = CancelScope.__init__

    def begin_ordered(scope: Any, *given: Any, **named: Any) -> None:
        begin(scope, *given, **named)
        scope._tasks, scope._child_scopes = _InOrder(), _InOrder()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CancelScope, "__init__", begin_ordered)
        patch.setattr(anyio, "sleep", asyncio.sleep)  # As anyio's does, once it has found out where it runs.
        yield


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Little of what is made here goes in circles, and looking for it took a tenth of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(_COLLECTED_AFTER, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def run_virtually(main: Callable[[], Awaitable[T]]) -> T:
    with cancelled_in_order(), _seldom_collected():
        return anyio.run(main, backend_options={"loop_factory": VirtualLoop})

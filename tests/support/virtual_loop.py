"""An event loop on which waiting takes no time: when nothing is ready, its clock jumps to the next timer."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pytest
from anyio._backends._asyncio import CancelScope

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")


class NothingLeft(RuntimeError):
    """Everybody waits, and no timer is set: on a real loop this would hang for ever."""


class _NoSockets:
    """In place of a selector. What would be a wait for sockets moves the clock."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None or (timeout > 0 and self._loop.waits_for_ever):
            raise NothingLeft("nothing is ready and no timer is set")
        self._loop.elapsed_s += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """No sockets, no signals, no threads; the order of everything follows from what is scheduled."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0
        self._selector = _NoSockets(self)
        self._scheduled: list[asyncio.TimerHandle]

    @property
    def waits_for_ever(self) -> bool:
        """To sleep for ever is to have a timer, set to the end of time."""
        return bool(self._scheduled) and math.isinf(self._scheduled[0].when())

    def time(self) -> float:
        return self.elapsed_s

    def _process_events(self, event_list: list[object]) -> None:
        return None

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
        yield


def run_virtually(main: Callable[[], Awaitable[T]]) -> T:
    with cancelled_in_order():
        return anyio.run(main, backend_options={"loop_factory": VirtualLoop})

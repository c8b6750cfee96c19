"""Events, notifiers and observable values: how tasks wake each other."""

from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Notifier:
    """Wakes all waiters. A notification without waiters is cheap."""

    def __init__(self) -> None:
        self._next = anyio.Event()

    @property
    def changed(self) -> anyio.Event:
        """Set by the next `notify`. Take it before looking at what may change, and no change is missed."""
        if self._next.is_set():
            self._next = anyio.Event()
        return self._next

    def notify(self) -> None:
        self._next.set()


class AutoResetEvent:
    """Wakes the one loop that waits for it; any number of calls before it does are one."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """What was called for so far is about to be done."""
        self._event = anyio.Event()

    async def wait(self) -> None:
        await self._event.wait()
        self.clear()


class ObservableValue(Generic[T]):
    """Those who wait see what it is now, not each step on the way there."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._changes = Notifier()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> bool:
        """Whether that was news."""
        if value == self._value:
            return False
        self._value = value
        self._changes.notify()
        return True

    async def changes(self) -> AsyncGenerator[T, None]:
        """The value now, then the newest one whenever it differs from what was last given."""
        while True:
            seen = self._value
            yield seen
            while self._value == seen:
                await self._changes.changed.wait()

    async def until(self, wanted: Callable[[T], bool]) -> T:
        while not wanted(self._value):
            await self._changes.changed.wait()
        return self._value

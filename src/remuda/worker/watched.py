"""A value that others wait on: they see what it is now, not each step on the way there."""

from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Watched(Generic[T]):
    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = anyio.Event()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> bool:
        """Whether that was news."""
        if value == self._value:
            return False
        self._value = value
        self._changed.set()
        self._changed = anyio.Event()
        return True

    async def changes(self) -> AsyncGenerator[T, None]:
        """The value now, then the newest one whenever it differs from what was last given."""
        while True:
            seen = self._value
            yield seen
            while self._value == seen:
                await self._changed.wait()

    async def until(self, wanted: Callable[[T], bool]) -> T:
        while not wanted(self._value):
            await self._changed.wait()
        return self._value

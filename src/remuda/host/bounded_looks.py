"""Readings that may hang for ever, as those do that ask a wedged driver."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
import structlog

log = structlog.get_logger(__name__)
Found = TypeVar("Found")


class BoundedLook(Generic[Found]):
    """One reading at a time, in a thread of its own: one of a pool is waited for at exit. What was read last
    stays known while a reading is late."""

    def __init__(self, name: str, read: Callable[[], Found], limit_s: float) -> None:
        self._name = name
        self._read = read
        self._limit_s = limit_s
        self._under_way: anyio.Event | None = None  # Who asks meanwhile waits for it.
        self._late = False
        self.latest: Found | None = None

    async def refresh(self) -> None:
        """Read again, and return when that is done or has taken too long."""
        looking = self._under_way or self._begin()
        with anyio.move_on_after(self._limit_s) as waiting:
            await looking.wait()
        late = waiting.cancelled_caught
        if late and not self._late:
            log.warning(f"{self._name}_look_timed_out", limit_s=self._limit_s)
        self._late = late

    def _begin(self) -> anyio.Event:
        self._under_way = anyio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._look, args=(loop,), name=self._name, daemon=True).start()
        return self._under_way

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        found: Found | None = None
        try:
            found = self._read()
        finally:
            with suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(self._end, found)

    def _end(self, found: Found | None) -> None:
        self.latest = self.latest if found is None else found
        if self._under_way is not None:
            self._under_way.set()
        self._under_way = None

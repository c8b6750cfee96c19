"""Hears how far workers are while anybody wants to know: by one subscription for all nodes, else by none."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import structlog

from remuda.core.errors import RemudaError
from remuda.ops.lines import Heard, Taps
from remuda.wire import subjects

log = structlog.get_logger(__name__)

_WITHIN_S: Final = 5.0


class ProgressLine:
    def __init__(self, taps: Taps, take: Callable[[Heard], None]) -> None:
        self._taps = taps
        self._take = take
        self._listeners = 0
        self._turn = anyio.Lock()
        self._end: Callable[[], Awaitable[None]] | None = None  # Of the subscription, while there is one.

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Subscribed before the block begins, and until the last of all such blocks has ended.

        Without a subscription the block runs all the same: progress is seen or not, replies decide.
        """
        self._listeners += 1
        try:
            await self.subscribe()
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                await self._unsubscribe()

    async def subscribe(self) -> None:
        """Where it did not succeed before. A subscription that stands outlives the bus' connections."""
        if self._end is not None or not self._listeners:
            return
        with anyio.move_on_after(_WITHIN_S):
            async with self._turn:
                if self._end is None:
                    try:
                        self._end = await self._taps.tap(subjects.ALL_INSTALL_PROGRESS, self._take)
                    except RemudaError as error:
                        log.warning("progress_not_subscribed", reason=error.message)
                return
        log.warning("progress_not_subscribed", reason="the bus did not confirm it in time")

    async def _unsubscribe(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_WITHIN_S):
            async with self._turn:
                if self._end is None or self._listeners:  # Somebody has come meanwhile.
                    return
                end, self._end = self._end, None
                await end()

"""One call to a backend, bounded in silence and gone when its block ends, whatever ended it."""

import asyncio
import math
from types import TracebackType
from typing import Any, Self

import grpc.aio
from anyio.lowlevel import checkpoint_if_cancelled


class Silence(Exception):
    """The backend said nothing for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing was said for {seconds:g} s")
        self.seconds = seconds


class HungUp(Exception):
    """The connection was closed on our side: the replica has been forgotten meanwhile."""


class Exchange:
    """A call that has begun. The one watch over its silence costs no token anything."""

    def __init__(self, call: Any, silence_s: float) -> None:
        self._call = call
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._waiting_since = math.inf  # Infinite: it is not the backend that is waited for.
        self._silent = False
        self._watch = self._loop.call_later(silence_s, self._look)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        self._call.cancel()

    async def read(self) -> bytes | None:
        """The next message of a stream; None at its end."""
        self._waiting_since = self._loop.time()
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            await self._explain()
            raise
        self._waiting_since = math.inf
        return None if message is grpc.aio.EOF else message

    async def whole(self) -> bytes:
        """The one message that a call is answered with."""
        self._waiting_since = self._loop.time()
        try:
            message: bytes = await self._call
        except asyncio.CancelledError:
            await self._explain()
            raise
        return message

    def _look(self) -> None:
        left_s = self._waiting_since + self._silence_s - self._loop.time()
        if left_s <= 0:
            self._silent = True
            self._call.cancel()
        else:
            self._watch = self._loop.call_later(min(left_s, self._silence_s), self._look)

    async def _explain(self) -> None:
        """Whose end it is: gRPC raises a cancellation of its own making, which no scope takes for its own."""
        await checkpoint_if_cancelled()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return
        raise Silence(self._silence_s) if self._silent else HungUp

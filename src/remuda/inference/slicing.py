"""Runs sliced work on the event loop without holding up other tasks there."""

from typing import Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, Unavailable
from remuda.core.slices import Sliced

T = TypeVar("T")

WORK_MS_MAX: Final = 2000  # Of one request, in all its slices together.
WAITING_MAX: Final = 64  # Requests with long work to be done, the one at work included.


class Slicer:
    """Work that ends within its first slice, as nearly all does, costs nothing more. Longer work is done for
    one request at a time: a hundred side by side would hold up everybody for a hundred slices at once."""

    def __init__(
        self, clock: Clock, *, work_ms_max: float = WORK_MS_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        self._clock = clock
        self._work_s_max = work_ms_max / 1000
        self._waiting_max = waiting_max
        self._waiting = 0
        self._turn = anyio.Lock(fast_acquire=True)

    async def run(self, work: Sliced[T]) -> T:
        """Its result, or what it raises. Invalid if it takes too long, Unavailable if too many wait."""
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        if self._waiting >= self._waiting_max:
            work.close()
            raise Unavailable("too many complex requests are waiting", hint="try again in a while")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._finish(work)
        finally:
            self._waiting -= 1
            work.close()

    async def _finish(self, work: Sliced[T]) -> T:
        worked_s = 0.0
        while worked_s <= self._work_s_max:
            await checkpoint()
            began_s = self._clock.thread_cpu()
            try:
                next(work)
            except StopIteration as done:
                result: T = done.value
                return result
            worked_s += self._clock.thread_cpu() - began_s
        raise Invalid(
            f"the request is too complex: preparing it takes more than {self._work_s_max * 1000:g} ms of CPU",
            hint="make its schema, tools or messages smaller",
        )

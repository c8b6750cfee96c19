"""Models that were added on another frontend a moment ago: before a name is called unknown, the store is
looked at once more. Off the path of models that are known; however many ask, few look."""

from collections.abc import Awaitable, Callable

import anyio

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError, Unavailable
from remuda.router.errors import Overloaded


class UnknownModels:
    """`refresh` reads the table again; whoever calls it together shares the reading."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._refresh = refresh
        self._clock = clock
        self._not_before_s = 0.0
        self._waiting = 0

    async def look(self) -> None:
        """The table is at least as new as this call when it returns. Unavailable when that cannot be had."""
        if self._waiting >= limits.UNKNOWN_MODELS_WAITING_MAX:
            raise Overloaded("too many requests for unknown models at once", hint="try again in a while")
        self._waiting += 1
        try:
            with anyio.fail_after(limits.UNKNOWN_MODEL_LOOK_S):
                await self._paced()
        except (RemudaError, TimeoutError) as error:
            reason = error.message if isinstance(error, RemudaError) else "the database does not answer"
            raise Unavailable(
                f"this frontend does not know the model and cannot look it up now: {reason}",
                hint="try again in a while, or ask another frontend",
            ) from error
        finally:
            self._waiting -= 1

    async def _paced(self) -> None:
        left_s = self._not_before_s - self._clock.monotonic()
        if left_s > 0:
            await anyio.sleep(left_s)
        self._not_before_s = self._clock.monotonic() + limits.UNKNOWN_MODEL_LOOK_GAP_S
        await self._refresh()


async def nothing_new() -> None:
    """For where the table is all there is."""

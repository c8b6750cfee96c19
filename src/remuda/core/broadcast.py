"""When announcements to other processes are published: changes close together in one. What is published, and
how, is up to the publish function.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from remuda.core.events import AutoResetEvent

RETRY_S: Final = 1.0


class DebouncedBroadcast:
    """`run` it once. `publish` reads what is true when it is called, and returns whether it succeeded. With
    `every_s` it is called at the start and again after that time without a `send`, or `retry_s` after a
    failure. Without it nothing is repeated: the receivers find out by other means, only later."""

    def __init__(
        self,
        publish: Callable[[], Awaitable[bool]],
        *,
        gap_s: float,
        every_s: float | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._publish = publish
        self._gap_s = gap_s
        self._every_s = every_s
        self._retry_s = retry_s
        self._wanted = AutoResetEvent()

    def send(self) -> None:
        """Soon. Calls until then, and within the gap after a publication, make one. Never waits."""
        self._wanted.set()

    async def run(self) -> None:
        wait_s = math.inf if self._every_s is None else 0.0
        while True:
            with anyio.move_on_after(wait_s):
                await self._wanted.wait()
            self._wanted.clear()
            published = await self._publish()
            await anyio.sleep(self._gap_s)
            if self._every_s is not None:
                wait_s = self._every_s if published else min(self._every_s, self._retry_s)

"""One subject's handler behind a bounded queue. Connections come and go beneath it."""

import math
from collections.abc import Callable

import anyio
import structlog

from remuda.bus.messages import Handler, Incoming

log = structlog.get_logger(__name__)

QUEUE_LIMIT = 1024


class Subscription:
    """Overflow rule: when the queue is full the newest message is dropped, counted and logged.

    One message at a time and in order, or, if `concurrent`, as many at once as the queue holds.
    """

    def __init__(
        self,
        subject: str,
        handler: Handler,
        key: str,
        *,
        concurrent: bool = False,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        """`key` tells subscriptions apart whose subjects are the same or overlap."""
        self.subject = subject
        self.key = key
        self.dropped = 0
        self._handler = handler
        self._slots = anyio.Semaphore(queue_limit if concurrent else 1)
        self._sender, self._receiver = anyio.create_memory_object_stream[tuple[Incoming, Callable[[], None]]](
            queue_limit
        )

    def offer(self, message: Incoming, done: Callable[[], None]) -> None:
        """Take the message in, or drop it. `done` is called once it is dealt with, either way."""
        try:
            self._sender.send_nowait((message, done))
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self.dropped += 1
            done()
            if math.log2(self.dropped).is_integer():  # A flood must not become a flood of log lines.
                log.error("bus_message_dropped", subject=self.subject, dropped=self.dropped)

    async def run(self) -> None:
        """Handle messages until `close`. A handler's failure is logged and ends nothing."""
        async with self._receiver, anyio.create_task_group() as tasks:
            async for message, done in self._receiver:
                await self._slots.acquire()
                tasks.start_soon(self._handle, message, done)

    def close(self) -> None:
        self._sender.close()

    async def _handle(self, message: Incoming, done: Callable[[], None]) -> None:
        try:
            await self._handler(message)
        except Exception:
            log.exception("bus_handler_failed", subject=message.subject)
        finally:
            done()
            self._slots.release()

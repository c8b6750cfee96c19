"""What users of the bus see: messages, the connection's state, the ways a request fails, and the receiving
end of one subject: a handler behind a bounded queue, or a tap. It outlives connections.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import anyio
import structlog

from remuda.core.bus_reach import UnreachedBus
from remuda.core.errors import BusUnusable, NodeUnreachable, PeerFailed

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message. `respond` is None when the sender expects no answer."""

    subject: str
    payload: bytes
    respond: Callable[[bytes], Awaitable[None]] | None
    unheard: bool = False  # The server's own answer to a request on a subject without subscribers.


Handler = Callable[[Incoming], Awaitable[None]]
Taker = Callable[[Incoming], None]
"""Done with a message in a moment."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """The first attempt is not over."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Connected:
    """All subscriptions stand, each confirmed by the server."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Down:
    """Not connected, and trying again for ever. `reason` is for people and holds no secrets."""

    reason: str
    since: datetime
    unreached: UnreachedBus | None = None  # None: it was reached, and something else is wrong.


LinkState = Connecting | Connected | Down


class BusUnreached(BusUnusable):
    """No connection came about."""

    def __init__(self, unreached: UnreachedBus, advice: str) -> None:
        super().__init__(f"{unreached}; {advice}")
        self.unreached = unreached
        self.advice = advice


class NoResponders(NodeUnreachable):
    """The subject has no subscriber: known at once, unlike a time-out."""


class RequestTimedOut(PeerFailed):
    """A subscriber may have heard the request, and may still be at work on it."""

    code = "request_timed_out"


QUEUE_LIMIT = 1024


class Receiver(Protocol):
    """Told apart by `key` from others whose subjects are the same or overlap."""

    @property
    def subject(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def dropped(self) -> int: ...

    @property
    def divided(self) -> bool:
        """Links that replace each other divide its messages between them; else each brings all of them."""
        ...

    def offer(self, message: Incoming, done: Callable[[], None]) -> None:
        """Take the message in, or drop it. `done` is called once it is dealt with, either way."""
        ...

    def close(self) -> None:
        """From now on it hears nothing."""
        ...


class Subscription:
    """Overflow rule: when the queue is full the newest message is dropped, counted and logged.

    One message at a time and in order, or, if `concurrent`, as many at once as the queue holds.
    """

    divided = True

    def __init__(
        self,
        subject: str,
        handler: Handler,
        key: str,
        *,
        concurrent: bool = False,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        self.subject = subject
        self.key = key
        self.dropped = 0
        self._handler = handler
        self._slots = anyio.Semaphore(queue_limit) if concurrent else None
        self._sender, self._receiver = anyio.create_memory_object_stream[tuple[Incoming, Callable[[], None]]](
            queue_limit
        )

    def offer(self, message: Incoming, done: Callable[[], None]) -> None:
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
                if self._slots is None:
                    await self._handle(message, done)
                else:
                    await self._slots.acquire()
                    tasks.start_soon(self._handle_beside_others, message, done, self._slots)

    def close(self) -> None:
        self._sender.close()

    async def _handle_beside_others(
        self, message: Incoming, done: Callable[[], None], slots: anyio.Semaphore
    ) -> None:
        try:
            await self._handle(message, done)
        finally:
            slots.release()

    async def _handle(self, message: Incoming, done: Callable[[], None]) -> None:
        try:
            await self._handler(message)
        except Exception:
            log.exception("bus_handler_failed", subject=message.subject)
        finally:
            done()


class Tap:
    """Hands each message over as it is read, before anything else is read: no queue, and nothing to wait for.

    For floods of which the taker keeps what it wants in a moment.
    """

    divided = True

    def __init__(self, subject: str, take: Taker, key: str) -> None:
        self.subject = subject
        self.key = key
        self.dropped = 0
        self._take: Taker | None = take

    def offer(self, message: Incoming, done: Callable[[], None]) -> None:
        try:
            if self._take is not None:
                self._take(message)
        except Exception:  # The reader goes on: it reads for others, too.
            log.exception("bus_handler_failed", subject=message.subject)
        finally:
            done()

    def close(self) -> None:
        self._take = None

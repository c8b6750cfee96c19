"""The stream of everything: one look at a time for all who listen, compared with the one before, and each
change encoded once. Nothing is looked at while no one listens, but for a few seconds: a page that is loaded
anew leaves and comes again.

A listener has a place: the number of the last change it was sent. There are no queues: one that is too far
behind gets everything anew.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError, Unavailable
from remuda.core.events import Notifier
from remuda.gateway.events import changes
from remuda.gateway.events.changes import Rendered

log = structlog.get_logger()

LISTENERS_MAX: Final = 500
LOOK_EVERY_S: Final = 1.0  # Even without a signal that something has changed.
REST_S: Final = 0.25  # At least so long between two events: what changes meanwhile is sent together.
LINGER_S: Final = 5.0  # So long after the last listener has gone.
KEEP_ALIVE_S: Final = 15.0
_FIRST_S: Final = 1.0  # For the first look, however short a listener stays.
_SHARE: Final = 0.2  # Of a core's time, at most, that looking takes.
_KEPT_MAX: Final = 240  # Changes; who is further behind gets everything anew.
_KEPT_BYTES_MAX: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why what is shown may be out of date."""

    code: str
    message: str


TakeLook = Callable[[], Awaitable[Rendered]]


class EventHub:
    """`run` must be running while anyone listens. `watching` lasts while someone does. `links` says what is
    wrong with what a look does not need, but what it shows depends on."""

    def __init__(
        self,
        look: TakeLook,
        signals: Callable[[], anyio.Event],
        watching: Callable[[], AbstractAsyncContextManager[None]],
        links: Callable[[], Trouble | None],
        clock: Clock,
        name: str,
    ) -> None:
        self._look = look
        self._signals = signals
        self._watching = watching
        self._links = links
        self._clock = clock
        self._name = name  # Of this life of this frontend: numbers of another one's mean nothing here.
        self._rendered: Rendered = {}
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._whole: tuple[int, bytes] = (-1, b"")
        self._fresh = False  # What is shown is of the last look, and another follows.
        self._last_left_s = -math.inf
        self._trouble: Trouble | None = None
        self._listeners = 0
        self._came_or_went = Notifier()
        self._news = Notifier()
        self._closed = False

    def require_room(self) -> None:
        """Unavailable when there are as many listeners as there may be."""
        if self._listeners >= LISTENERS_MAX:
            raise Unavailable(f"{LISTENERS_MAX} consoles already follow this frontend")

    def close(self) -> None:
        """Every listener is let go."""
        self._closed = True
        self._news.notify()

    # One for all.

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            while not self._listeners:
                await self._came_or_went.changed.wait()
            async with self._watching():
                while self._listeners or self._clock.monotonic() < self._last_left_s + LINGER_S:
                    await self._look_once()
                self._fresh = False

    async def _look_once(self) -> None:
        signalled, began_s = self._signals(), self._clock.monotonic()
        try:
            self._take(await self._look())
            self._troubled(self._links())
        except RemudaError as error:
            self._troubled(Trouble(error.code, error.public_text))
        spent_s = self._clock.monotonic() - began_s
        await anyio.sleep(max(REST_S, spent_s / _SHARE))
        with anyio.move_on_after(LOOK_EVERY_S - REST_S):
            await signalled.wait()

    def _take(self, rendered: Rendered) -> None:
        changed = changes.difference(self._rendered, rendered)
        self._rendered = rendered
        if changed:
            self._number += 1
            self._keep(changes.event("change", self._id(self._number), changed))
        if changed or not self._fresh:
            self._fresh = True
            self._news.notify()

    def _keep(self, event: bytes) -> None:
        self._kept.append((self._number, event))
        self._kept_bytes += len(event)
        while len(self._kept) > _KEPT_MAX or self._kept_bytes > _KEPT_BYTES_MAX:
            _, oldest = self._kept.popleft()
            self._kept_bytes -= len(oldest)

    def _troubled(self, trouble: Trouble | None) -> None:
        if trouble != self._trouble:
            log.info("console_stream_trouble", reason=trouble.message if trouble else "none any more")
            self._trouble = trouble
            self._news.notify()

    def _id(self, number: int) -> str:
        return f"{self._name}.{number}"

    # Each for itself.

    async def events(self, place: str, stay_s: float | None = None) -> AsyncIterator[bytes]:
        """Events as they are sent, as many at a time as there are: what has changed since `place`, or, where
        that cannot be said, everything; then each change; a comment now and then when nothing changes."""
        if stay_s is not None and not self._listeners:
            self._fresh = False  # A program asks what is there now, perhaps after it has changed something.
        self._count(1)
        until_s = math.inf if stay_s is None else self._clock.monotonic() + stay_s
        try:
            at, sent_trouble = self._understood(place), None
            continued = at is not None
            while not self._closed:
                news, parts = self._news.changed, list[bytes]()
                if self._fresh and (at != self._number or continued):
                    parts += self._since(at) if at != self._number else [self._nothing()]
                    at, continued = self._number, False
                if self._trouble != sent_trouble:
                    sent_trouble = self._trouble
                    parts.append(
                        changes.WELL
                        if sent_trouble is None
                        else changes.trouble(sent_trouble.code, sent_trouble.message)
                    )
                if parts:
                    yield b"".join(parts)
                    continue
                left_s = until_s - self._clock.monotonic()
                if left_s <= 0 and (self._fresh or sent_trouble is not None):
                    return
                with anyio.move_on_after(min(KEEP_ALIVE_S, max(left_s, _FIRST_S))) as waiting:
                    await news.wait()
                if waiting.cancelled_caught:
                    yield changes.KEEP_ALIVE
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        self._listeners += more
        if not self._listeners:
            self._last_left_s = self._clock.monotonic()
        self._came_or_went.notify()

    def _understood(self, place: str) -> int | None:
        name, _, number = place.rpartition(".")
        if name != self._name or not (number.isascii() and number.isdigit() and len(number) < 19):
            return None
        return int(number) if int(number) <= self._number else None

    def _since(self, at: int | None) -> list[bytes]:
        missed = [] if at is None else [event for number, event in self._kept if number > at]
        if at is None or len(missed) != self._number - at:
            return [self._everything()]
        return missed

    def _everything(self) -> bytes:
        if self._whole[0] != self._number:
            whole = changes.event("snapshot", self._id(self._number), changes.snapshot(self._rendered))
            self._whole = self._number, whole
        return self._whole[1]

    def _nothing(self) -> bytes:
        return changes.event("change", self._id(self._number), changes.NOTHING_CHANGED)

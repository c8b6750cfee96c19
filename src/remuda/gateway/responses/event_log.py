"""The events of a response that is made in the background, for clients that read them while it is made, or
go on where they were cut off. Kept in memory, for as long as it is worked on and a few minutes longer.
"""

import re
from collections.abc import AsyncGenerator
from typing import Final

import anyio

from remuda.core.events import Notifier
from remuda.gateway.inference.api_format import EVENT_END
from remuda.gateway.responses.kept import shown
from remuda.inference.stored_responses import StoredResponse

BYTES_MAX: Final = 32 << 20  # Of one response; later events are not repeated, but their sum at the end is.
COMMENT: Final = b": still being made" + EVENT_END
_COMMENT_EVERY_S: Final = 15.0
_AT_ONCE_MAX: Final = 1000  # Events that are written together.
_NAME: Final = re.compile(rb"event: ([a-z_.]+)\ndata: (.*)", re.DOTALL)
_ENDS: Final = ("completed", "incomplete", "failed")
_LAST: Final = frozenset({b"error", *(b"response." + status.encode() for status in _ENDS)})


def last_event(kept: StoredResponse, number: int) -> bytes:
    """What tells its end; empty for one that was cancelled, of which no event tells."""
    if kept.status not in _ENDS:
        return b""
    name = f"response.{kept.status}".encode()
    told = b'event: %b\ndata: {"type":"%b","response":%b,"sequence_number":%d}'
    return told % (name, name, shown(kept), number) + EVENT_END


class EventLog:
    """An event's place in it is its number. The last one is sent when the response is stored."""

    def __init__(self) -> None:
        self.age = 0  # Since its end, counted by its keeper.
        self.bytes = 0
        self.error = b""  # The data of the event that says why there is no answer.
        self._events: list[bytes] = []
        self._count = 0
        self._rest = b""
        self._last: tuple[int, bytes] | None = None
        self._changes = Notifier()

    def add(self, data: bytes) -> None:
        """Events as they are written to a client, whole or not. Comments are none."""
        *events, self._rest = (self._rest + data).split(EVENT_END)
        for event in events:
            if (found := _NAME.fullmatch(event)) is None:
                continue
            if found[1] in _LAST:
                self.error = found[2] if found[1] == b"error" else b""
                continue
            self._count += 1
            if self.bytes <= BYTES_MAX:
                self.bytes += len(event)
                self._events.append(event + EVENT_END)
        self._changes.notify()

    def end(self, ended: StoredResponse | None) -> None:
        """None: no event says how it ended."""
        self._last = self._count, b"" if ended is None else last_event(ended, self._count)
        self._changes.notify()

    def part(self, first: int, bytes_max: int) -> tuple[bytes, int, bool]:
        """The events from this one on, as many as fit; the number of the next; and whether that is the one
        which tells the end. An event that is larger by itself is left out: the end says all of it again."""
        size, some, following = 0, list[bytes](), first
        for event in self._events[first : first + _AT_ONCE_MAX]:
            if some and size + len(event) > bytes_max:
                break
            following += 1
            if len(event) <= bytes_max:
                size += len(event)
                some.append(event)
        if self._last is None or following < len(self._events):
            return b"".join(some), following, False
        return b"".join(some), self._last[0], True

    async def after(self, number: int) -> AsyncGenerator[bytes, None]:
        """The events with higher numbers, as they come."""
        at = number + 1
        while True:
            changed = self._changes.changed
            if some := self._events[at : at + _AT_ONCE_MAX]:
                at += len(some)
                yield b"".join(some)
            elif self._last is not None:
                break
            else:
                with anyio.move_on_after(_COMMENT_EVERY_S) as waited:
                    await changed.wait()
                if waited.cancelled_caught:
                    yield COMMENT
        place, last = self._last
        if last and number < place:
            yield last

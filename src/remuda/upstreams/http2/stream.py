"""One call: its answer as it comes, message by message, in gRPC's framing. Nothing in here waits but the
reader.
"""

import asyncio
import math
from collections import deque
from struct import Struct
from typing import Final, Protocol

from remuda.upstreams.http2 import failures, frames, limits
from remuda.upstreams.http2.failures import CallFailed, Garbled, HungUp, ReplyTooLarge
from remuda.upstreams.http2.frames import Code, Headers, Violation

_PREFIX: Final = Struct("!BI")


def prefixed(*pieces: bytes | memoryview) -> bytes:
    """A message as it stands in the body of a request."""
    return b"".join((_PREFIX.pack(0, sum(map(len, pieces))), *pieces))


class Messages:
    """Puts messages together, wherever they were cut."""

    __slots__ = ("_bytes_max", "_rest", "_wanted")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = bytearray()
        self._wanted = _PREFIX.size

    @property
    def missing_bytes(self) -> int:
        """Of the message that has begun; 0 when none has."""
        return self._wanted - len(self._rest) if self._rest else 0

    def feed(self, data: bytes, ready: deque[bytes]) -> None:
        """Append what is complete now. Garbled when it is compressed, ReplyTooLarge as soon as its size is
        known."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        position, size = 0, len(data)
        while size - position >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(data, position)
            if compressed:
                raise Garbled("a message is compressed, which was not allowed")
            if length > self._bytes_max:
                raise ReplyTooLarge(self._bytes_max)
            begin = position + _PREFIX.size
            end = begin + length
            if end > size:
                self._wanted = end - position
                self._rest += data[position:]
                return
            ready.append(data[begin:end])
            position = end
        self._wanted = _PREFIX.size
        self._rest += data[position:]


NOTHING: Final = memoryview(b"")
_WORTH_TELLING: Final = limits.WINDOW_BYTES // 2


class Carrier(Protocol):
    """What a call needs of its connection."""

    def send(self, frame: bytes) -> None: ...

    def release(self, stream: "Http2Stream", code: Code | None) -> None:
        """The call is over; a reset with that code is sent, unless the server has ended it."""
        ...


class Http2Stream:
    """Has one reader. The backend may send so much ahead of it as the window allows, which moves on only
    when the reader has taken everything and waits; so a slow reader slows the backend down, and no other."""

    __slots__ = (
        "_carrier",
        "_ended",
        "_failure",
        "_headed",
        "_messages",
        "_ready",
        "_waiter",
        "_window",
        "id",
        "loop",
        "send_window",
        "trailers",
        "unsent",
        "waiting_since_s",
    )

    def __init__(
        self, carrier: Carrier, loop: asyncio.AbstractEventLoop, stream_id: int, send_window: int
    ) -> None:
        self.id = stream_id
        self.unsent = NOTHING
        self.send_window = send_window
        self.trailers: Headers = {}  # Of an answer that has ended.
        self.waiting_since_s = math.inf  # Infinite: it is not the backend that is waited for.
        self._carrier = carrier
        self.loop = loop
        self._messages = Messages(limits.RECEIVED_BYTES_MAX)
        self._ready: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._window = limits.WINDOW_BYTES
        self._headed = self._ended = False
        self._failure: CallFailed | None = None

    # For the reader.

    async def read(self) -> bytes | None:
        """The next message; None at the end. CallFailed if that was not a good one, after all that came."""
        while not self._ready:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return None
            self._widen()
            self._waiter = self.loop.create_future()
            self.waiting_since_s = self.loop.time()
            try:
                await self._waiter
            finally:
                self._waiter, self.waiting_since_s = None, math.inf
        return self._ready.popleft()

    def close(self) -> None:
        """The reader has left."""
        if not self._ended:
            self.give_up(HungUp())

    def give_up(self, failure: CallFailed) -> None:
        """Tell the backend to stop, and the reader why. Nothing happens to a call that is over."""
        if not self._ended:
            self._carrier.release(self, Code.CANCEL)
            self.end(failure)

    # For the connection.

    def take_headers(self, headers: Headers, *, last: bool) -> None:
        if last:
            self.trailers = headers
            self._answered(failures.verdict(headers, alone=not self._headed))
        elif self._headed:
            self.give_up(Garbled("headers came in the middle of an answer"))
        elif not failures.informational(headers):
            self._headed = True
            failure = failures.refusal(headers)
            if failure is not None:
                self.give_up(failure)

    def take_data(self, data: bytes, counted_bytes: int, *, last: bool) -> None:
        """`counted_bytes`: with padding. Violation when that is more than the window allowed."""
        self._window -= counted_bytes
        if self._window < 0:
            raise Violation(Code.FLOW_CONTROL_ERROR, "data exceeds flow-control window")
        if not self._headed:
            self.give_up(Garbled("an answer began without headers"))
            return
        try:
            self._messages.feed(data, self._ready)
        except CallFailed as failure:
            self.give_up(failure)
            return
        if last:
            self._answered(failures.unsaid())
        elif self._ready:
            self._wake()
        elif self._waiter is not None:
            self._widen()

    def end(self, failure: CallFailed | None) -> None:
        """The connection knows already."""
        self._ended = True
        self._failure = failure
        self.unsent = NOTHING
        self._wake()

    def _answered(self, failure: CallFailed | None) -> None:
        if failure is None and self._messages.missing_bytes:
            failure = Garbled("the answer ended in the middle of a message")
        self._carrier.release(self, Code.NO_ERROR if self.unsent else None)
        self.end(failure)

    def _widen(self) -> None:
        wanted = limits.WINDOW_BYTES + self._messages.missing_bytes
        if wanted - self._window > _WORTH_TELLING:
            self._carrier.send(frames.window_update(self.id, wanted - self._window))
            self._window = wanted

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

"""One call to a backend, bounded in silence and gone when its block ends, whatever ended it."""

import asyncio
from types import TracebackType
from typing import Self

from remuda.upstreams.http2.failures import Garbled, Silence
from remuda.upstreams.http2.stream import Stream


class GrpcCall:
    """A call that has begun. The one watch over its silence costs no token anything. `read`: the next message
    of a stream; None at its end."""

    def __init__(self, stream: Stream, silence_s: float) -> None:
        self.read = stream.read
        self._stream = stream
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._watch = self._loop.call_later(silence_s, self._look)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        self._stream.close()

    async def whole(self) -> bytes:
        """The one message that a call is answered with."""
        message = await self.read()
        if message is None or await self.read() is not None:
            raise Garbled("there is not one message in the answer")
        return message

    def _look(self) -> None:
        left_s = self._stream.waiting_since_s + self._silence_s - self._loop.time()
        if left_s <= 0:
            self._stream.give_up(Silence(self._silence_s))
        else:
            self._watch = self._loop.call_later(min(left_s, self._silence_s), self._look)

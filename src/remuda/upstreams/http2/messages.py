"""gRPC's messages in the body of an answer. Pure; runs for every token."""

from collections import deque
from struct import Struct
from typing import Final

from remuda.upstreams.http2.failures import Garbled, ReplyTooLarge

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

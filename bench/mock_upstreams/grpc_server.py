"""A backend of canned replies, over just as much HTTP/2 as callers need that read as fast as it writes.

python -m bench.mock_upstreams.grpc_server PORT
"""

import asyncio
import sys
from struct import Struct
from typing import Final

import uvloop
from hpack import Decoder

from bench.mock_upstreams import HOLD, TEXT, TOKENS_PER_S, WORDS
from remuda.rpc import backend_pb2 as pb

_PREFACE_BYTES: Final = 24
_HEAD: Final = Struct("!HBBBI")  # Upper and lower bits of the length, kind, flags, stream.
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_ACK: Final = 1
_LAST: Final = 1
_ALL_HEADERS: Final = 4
_WINDOW_BYTES: Final = (1 << 31) - 1
_WINDOW_TOLD_BYTES: Final = 1 << 30


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def _message(message: "pb.Reply | pb.Result") -> bytes:
    encoded: bytes = message.SerializeToString()
    return b"\0" + len(encoded).to_bytes(4, "big") + encoded


def _reply(text: str, tokens: int) -> bytes:
    deltas = [pb.ChatDelta(content=text)]
    return _message(pb.Reply(message=text.encode(), tokens=tokens, prompt_tokens=420, chat_deltas=deltas))


_WHOLE: Final = {
    b"/backend.Backend/Health": _message(pb.Reply(message=b"OK")),
    b"/backend.Backend/LoadModel": _message(pb.Result(success=True)),
    b"/backend.Backend/Predict": _reply(TEXT, 72),
}
_TOKENS: Final = tuple(_reply(word, 1) for word in WORDS)
_STATUS_200: Final = b"\x88\x0f\x10\x10application/grpc"
_STATUS_OK: Final = b"\x00\x0bgrpc-status\x010"
# No table of headers, so that equal headers are equal bytes; and callers need not wait for room.
_GREETING: Final = (
    _frame(_SETTINGS, 0, 0, Struct("!HIHI").pack(1, 0, 4, _WINDOW_BYTES))
    + _frame(_SETTINGS, _ACK, 0)
    + _frame(_WINDOW_UPDATE, 0, 0, Struct("!I").pack(_WINDOW_BYTES - 65_535))
)


class Call:
    """A request as it comes, and the stream that answers it."""

    def __init__(self, replica: "Replica", stream: int, path: bytes) -> None:
        self._replica = replica
        self._stream = stream
        self._path = path
        self._timer: asyncio.TimerHandle | None = None
        self.body = b""

    def answer(self) -> None:
        self._replica.write(_frame(_HEADERS, _ALL_HEADERS, self._stream, _STATUS_200))
        if self._path in _WHOLE:
            self._replica.write(_frame(_DATA, 0, self._stream, _WHOLE[self._path]))
            self._end()
            return
        self._left = pb.PredictOptions.FromString(self.body[5:]).Tokens or 64
        self._due_s = self._replica.loop.time()
        self._say()

    def give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        self._replica.write(_frame(_DATA, 0, self._stream, _TOKENS[self._left % len(_TOKENS)]))
        if self._left >= HOLD:
            return
        self._left -= 1
        self._due_s += 1 / TOKENS_PER_S
        self._timer = self._replica.loop.call_at(self._due_s, self._say if self._left else self._end)

    def _end(self) -> None:
        self._replica.write(_frame(_HEADERS, _ALL_HEADERS | _LAST, self._stream, _STATUS_OK))
        self._replica.calls.pop(self._stream)


class Replica(asyncio.Protocol):
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: dict[int, Call] = {}
        self._decoder = Decoder()
        self._paths: dict[bytes, bytes] = {}  # By all the headers of a call.
        self._arrived = b""
        self._preface_bytes = _PREFACE_BYTES
        self._read_bytes = 0
        self._unsent = list[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        for call in self.calls.values():
            call.give_up()

    def write(self, frame: bytes) -> None:
        """With all others of the same turn."""
        if not self._unsent:
            self.loop.call_soon(self._send)
        self._unsent.append(frame)

    def _send(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived + data
        at = 0
        if self._preface_bytes and len(arrived) >= _PREFACE_BYTES:
            self.write(_GREETING)
            at, self._preface_bytes = self._preface_bytes, 0
        while len(arrived) - at >= _HEAD.size and not self._preface_bytes:
            upper, lower, kind, flags, stream = _HEAD.unpack_from(arrived, at)
            end = at + _HEAD.size + (upper << 8 | lower)
            if end > len(arrived):
                break
            self._take(kind, flags, stream, arrived[at + _HEAD.size : end])
            at = end
        self._arrived = arrived[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _HEADERS:
            self.calls[stream] = Call(self, stream, self._path(payload))
        elif kind == _DATA and (call := self.calls.get(stream)):
            self._make_room(len(payload))
            call.body += payload
            if flags & _LAST:
                call.answer()
        elif kind == _RST_STREAM and (call := self.calls.pop(stream, None)):
            call.give_up()
        elif kind == _PING and not flags & _ACK:
            self.write(_frame(_PING, _ACK, 0, payload))

    def _path(self, block: bytes) -> bytes:
        if known := self._paths.get(block):
            return known
        path = dict(self._decoder.decode(block, raw=True))[b":path"]
        if not self._decoder.header_table.dynamic_entries:
            self._paths[block] = path
        return path

    def _make_room(self, read_bytes: int) -> None:
        self._read_bytes += read_bytes
        if self._read_bytes >= _WINDOW_TOLD_BYTES:
            self.write(_frame(_WINDOW_UPDATE, 0, 0, self._read_bytes.to_bytes(4, "big")))
            self._read_bytes = 0


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Replica, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))

"""The server at the other end of a connection, frame by frame and without a network.

What it says is built by another implementation than the one under test.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import anyio
from hpack import Encoder
from hyperframe import frame as hyper

from remuda.upstreams.http2.connection import Http2Connection
from remuda.upstreams.http2.frames import PREFACE, request_block
from remuda.upstreams.http2.stream import Http2Stream, prefixed

BLOCK = request_block("/backend.Backend/PredictStream", "10.0.0.5:50100", "secret")
OK = ((":status", "200"), ("content-type", "application/grpc"))
WELL = (("grpc-status", "0"),)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.waiting_bytes = 0
        self.ended = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written after the end"
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Peer:
    """Introduces itself at once, unless told not to."""

    def __init__(self, *, greeting: Iterable[hyper.Frame] | None = None, **settings: int) -> None:
        self.wire = Wire()
        self.connection = Http2Connection(asyncio.get_running_loop())
        self.connection.connection_made(self.wire)
        self._encoder = Encoder()
        self._encoder.header_table_size = 0
        self._read_to = 0
        self.says(*(greeting if greeting is not None else (self.settings(**settings),)))

    def call(self, message: bytes = b"ask") -> Http2Stream:
        assert self.connection.has_room
        return self.connection.call(BLOCK, prefixed(message))

    def says(self, *frames: hyper.Frame) -> None:
        self.sends(b"".join(frame.serialize() for frame in frames))

    def sends(self, data: bytes) -> None:
        self.connection.data_received(data)

    def heard(self) -> list[Any]:
        """The frames it was told since it was last asked, each kind with fields of its own."""
        data = bytes(self.wire.written)
        if not self._read_to:
            assert data.startswith(PREFACE)
            self._read_to = len(PREFACE)
        frames = []
        while self._read_to < len(data):
            head = memoryview(data)[self._read_to : self._read_to + 9]
            frame, length = hyper.Frame.parse_frame_header(head)
            begin = self._read_to + 9
            frame.parse_body(memoryview(data)[begin : begin + length])
            frames.append(frame)
            self._read_to = begin + length
        return frames

    def headers(
        self, stream: Http2Stream, headers: Iterable[tuple[str, str]], *flags: str
    ) -> hyper.HeadersFrame:
        block = self._encoder.encode(list(headers))
        return hyper.HeadersFrame(stream.id, block, flags=("END_HEADERS", *flags))

    def begins(self, stream: Http2Stream) -> hyper.HeadersFrame:
        return self.headers(stream, OK)

    def ends(self, stream: Http2Stream, *trailers: tuple[str, str]) -> hyper.HeadersFrame:
        return self.headers(stream, trailers or WELL, "END_STREAM")

    def answer(self, stream: Http2Stream, *messages: bytes) -> list[hyper.Frame]:
        return [self.begins(stream), *(message_in(stream, one) for one in messages), self.ends(stream)]

    @staticmethod
    def settings(**settings: int) -> hyper.SettingsFrame:
        named = {getattr(hyper.SettingsFrame, name.upper()): value for name, value in settings.items()}
        return hyper.SettingsFrame(0, settings=named)


def message_in(stream: Http2Stream, message: bytes) -> hyper.DataFrame:
    return data_in(stream, prefixed(message))


def data_in(stream: Http2Stream, data: bytes, *flags: str, pad_bytes: int = 0) -> hyper.DataFrame:
    return hyper.DataFrame(stream.id, data, flags=flags, pad_length=pad_bytes)


async def next_of(stream: Http2Stream) -> bytes | None:
    with anyio.fail_after(5):
        return await stream.read()


async def rest_of(stream: Http2Stream) -> list[bytes]:
    """All messages that are left."""
    messages = []
    while (message := await next_of(stream)) is not None:
        messages.append(message)
    return messages

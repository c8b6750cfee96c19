"""One connection to a backend, shared by all calls to it, and how it is opened. All is done as it arrives,
without a task.
"""

import asyncio
import os
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, cast

import anyio

from remuda.core.reach import host_and_port
from remuda.host.outbound import AddressRefused, connected
from remuda.upstreams import sockets
from remuda.upstreams.http2 import failures, frames, limits
from remuda.upstreams.http2.failures import (
    BackendTurnedAway,
    BrokenOff,
    CallFailed,
    Garbled,
    GrpcStatus,
    HungUp,
    Mute,
    Unprocessed,
    Unreachable,
    Vanished,
)
from remuda.upstreams.http2.frames import (
    Code,
    FrameType,
    HeaderReader,
    SettingsParameter,
    Splitter,
    Violation,
)
from remuda.upstreams.http2.stream import NOTHING, Http2Stream
from remuda.upstreams.sockets import turned_away

# What one call may not read ahead, another may: the connection as a whole sets no bound that is ever reached.
_WINDOW_BYTES: Final = frames.WINDOW_BYTES_MAX
_GREETING: Final = (
    frames.PREFACE
    + frames.settings(
        {
            SettingsParameter.HEADER_TABLE_SIZE: 0,
            SettingsParameter.ENABLE_PUSH: 0,
            SettingsParameter.MAX_HEADER_LIST_SIZE: limits.HEADERS_BYTES_MAX,
        }
    )
    + frames.window_update(0, _WINDOW_BYTES - frames.WINDOW_BYTES)
)


class Http2Connection(asyncio.Protocol):
    """Implements stream.Carrier. Takes calls once the server has introduced itself, as long as `has_room`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.heard_s = float("-inf")  # When anything came, by the loop's clock.
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._splitter = Splitter()
        self._headers = HeaderReader()
        self._streams: dict[int, Http2Stream] = {}
        self._next_id = 1
        self._introduced = loop.create_future()
        self._failure: CallFailed | None = None
        self._leaving = False  # There will be no more calls; the last one takes the connection with it.
        self._due: FrameType | None = FrameType.SETTINGS  # What the next frame has to be.
        self._block = bytearray()
        self._block_of = 0
        self._block_is_last = False
        self._window = _WINDOW_BYTES
        self._send_window = self._stream_window = frames.WINDOW_BYTES
        self._payload_bytes_max = frames.PAYLOAD_BYTES_MAX
        self._streams_max = frames.STREAM_ID_MAX
        self._sending: OrderedDict[Http2Stream, None] = (
            OrderedDict()
        )  # Those that could, were there room for all.
        self._congested = False

    # For callers.

    async def introduced(self) -> None:
        """Wait until the server has introduced itself. CallFailed when it does not."""
        await self._introduced
        if self._failure is not None:
            raise self._failure

    @property
    def has_room(self) -> bool:
        """For one more call."""
        return not self._leaving and len(self._streams) < self._streams_max

    @property
    def closed(self) -> bool:
        return self._transport is None

    @property
    def open_calls(self) -> int:
        return len(self._streams)

    def call(self, block: bytes, body: bytes) -> Http2Stream:
        """Begin a call, where there is room for one."""
        stream = Http2Stream(self, self._loop, self._next_id, self._stream_window)
        self._next_id += 2
        self._leaving = self._next_id > frames.STREAM_ID_MAX
        self._streams[stream.id] = stream
        size, most = len(body), self._payload_bytes_max
        if size <= most and size <= self._send_window and size <= self._stream_window and len(block) <= most:
            self.send(frames.whole_request(stream.id, block, body))
            self._send_window -= size
            stream.send_window -= size
        else:
            self.send(frames.headers(stream.id, block, most))
            stream.unsent = memoryview(body)
            self._sending[stream] = None
            self._pump()
        return stream

    def close(self) -> None:
        """Hang up. Calls that are open fail."""
        self._give_out(HungUp())
        self._hang_up(Code.NO_ERROR)

    # For its streams.

    def send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def release(self, stream: Http2Stream, code: Code | None) -> None:
        self._streams.pop(stream.id, None)
        self._sending.pop(stream, None)
        if code is not None:
            self.send(frames.rst_stream(stream.id, code))
        if self._leaving and not self._streams:
            self._hang_up(Code.NO_ERROR)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it.
        sockets.keep_alive(transport)
        sockets.expect_acknowledgement(transport)
        self.send(_GREETING)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._due is FrameType.SETTINGS:
            self._give_out(BackendTurnedAway("it closed the connection before it said anything"))
        elif sockets.vanished(error):
            self._give_out(Vanished())
        else:
            self._give_out(BrokenOff(GrpcStatus.UNAVAILABLE, "the connection was lost"))

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        self._pump()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return  # It was on its way when we hung up.
        self.heard_s = self._loop.time()
        try:
            for kind, flags, stream_id, payload in self._splitter.feed(data):
                if self._due is not None and kind != self._due:
                    raise Violation(
                        Code.PROTOCOL_ERROR, f"a frame of kind {kind} came instead of {self._due.name}"
                    )
                take = _TAKERS.get(kind)
                if take is not None:
                    take(self, flags, stream_id, payload)
        except Violation as violation:
            self._give_out(Garbled(str(violation)))
            self._hang_up(violation.code)

    # What frames do.

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._window -= size
        if self._window < _WINDOW_BYTES // 2:
            self.send(frames.window_update(0, _WINDOW_BYTES - self._window))
            self._window = _WINDOW_BYTES
        stream = self._stream(stream_id)
        if stream is not None:
            data = frames.data_of(flags, payload)
            stream.take_data(data, size, last=bool(flags & frames.END_STREAM))

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._block_of, self._block_is_last = stream_id, bool(flags & frames.END_STREAM)
        self._take_block(flags, frames.fragment_of(flags, payload))

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._due is not FrameType.CONTINUATION or stream_id != self._block_of:
            raise Violation(Code.PROTOCOL_ERROR, "unexpected CONTINUATION frame")
        self._take_block(flags, payload)

    def _take_block(self, flags: int, fragment: bytes) -> None:
        self._block += fragment
        if len(self._block) > limits.HEADERS_BYTES_MAX:
            raise Violation(Code.ENHANCE_YOUR_CALM, "header block too large")
        if not flags & frames.END_HEADERS:
            self._due = FrameType.CONTINUATION
            return
        self._due = None
        headers = self._headers.read(bytes(self._block))
        self._block.clear()
        stream = self._stream(self._block_of)
        if stream is not None:
            stream.take_headers(headers, last=self._block_is_last)

    def _take_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self._stream(stream_id)
        code = frames.code_of(payload)
        if stream is not None:
            self.release(stream, None)
            stream.end(failures.reset(code))

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or (flags & frames.ACK and (payload or self._due)):
            raise Violation(Code.PROTOCOL_ERROR, "malformed SETTINGS frame")
        if flags & frames.ACK:
            return
        for name, value in frames.settings_of(payload).items():
            self._set(name, value)
        self._answer(frames.SETTINGS_ACK)
        self._due = None
        if not self._introduced.done():
            self._introduced.set_result(None)
        self._pump()

    def _set(self, name: int, value: int) -> None:
        if name == SettingsParameter.MAX_CONCURRENT_STREAMS:
            self._streams_max = value
        elif name == SettingsParameter.MAX_FRAME_SIZE:
            if not frames.PAYLOAD_BYTES_MAX <= value <= frames.PAYLOAD_BYTES_MAX_MAX:
                raise Violation(Code.PROTOCOL_ERROR, f"frames of {value} bytes are not possible")
            self._payload_bytes_max = min(value, limits.PIECE_BYTES_MAX)
        elif name == SettingsParameter.INITIAL_WINDOW_SIZE:
            for stream in self._streams.values():
                self._widen(stream, value - self._stream_window)
            self._stream_window = _checked_window(value)

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        question = frames.ping_of(payload)
        if stream_id:
            raise Violation(Code.PROTOCOL_ERROR, "PING on a stream")
        if not flags & frames.ACK:
            self._answer(frames.pong(question))

    def _take_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        last_id, _ = frames.parse_goaway(payload)
        self._leaving = True
        for stream in [stream for stream in self._streams.values() if stream.id > last_id]:
            self.release(stream, None)
            stream.end(Unprocessed("it is about to stop"))
        if not self._streams:
            self._hang_up(Code.NO_ERROR)

    def _take_window(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = frames.increment_of(payload)
        if not stream_id:
            if not increment:
                raise Violation(Code.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
            self._send_window = _checked_window(self._send_window + increment)
        elif (stream := self._stream(stream_id)) is not None:
            if not increment:
                stream.give_up(Garbled("its window does not change"))
            else:
                self._widen(stream, increment)
        self._pump()

    def _take_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Violation(Code.PROTOCOL_ERROR, "unexpected PUSH_PROMISE frame")

    # How it is done.

    def _stream(self, stream_id: int) -> Http2Stream | None:
        """None: it is over. What is still said about it is of no interest."""
        stream = self._streams.get(stream_id)
        if stream is None and (stream_id % 2 == 0 or stream_id >= self._next_id):
            raise Violation(Code.PROTOCOL_ERROR, f"frame for idle stream {stream_id}")
        return stream

    def _widen(self, stream: Http2Stream, increment: int) -> None:
        stream.send_window = _checked_window(stream.send_window + increment)
        if stream.unsent and stream.send_window > 0:
            self._sending[stream] = None

    def _pump(self) -> None:
        """Send what the windows allow, by turns."""
        while self._sending and self._send_window > 0 and not self._congested:
            stream, _ = self._sending.popitem(last=False)
            size = min(len(stream.unsent), self._payload_bytes_max, self._send_window, stream.send_window)
            if size <= 0:
                continue
            piece, stream.unsent = stream.unsent[:size], stream.unsent[size:] or NOTHING
            stream.send_window -= size
            self._send_window -= size
            flags = 0 if stream.unsent else frames.END_STREAM
            self.send(b"".join((frames.head(FrameType.DATA, flags, stream.id, size), piece)))
            if stream.unsent:
                self._sending[stream] = None

    def _answer(self, frame: bytes) -> None:
        """To a question, of which a server that does not read may ask any number."""
        if self._transport is not None and self._transport.get_write_buffer_size() > limits.UNREAD_BYTES_MAX:
            raise Violation(Code.ENHANCE_YOUR_CALM, "too many unread control replies")
        self.send(frame)

    def _hang_up(self, code: Code) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.write(frames.goaway(code))
        if self._congested:
            transport.abort()  # It would wait for a server that does not read.
        else:
            transport.close()

    def _give_out(self, failure: CallFailed) -> None:
        """No new calls; open ones end."""
        self._leaving = True
        if self._failure is None:
            self._failure = failure
        streams, self._streams = list(self._streams.values()), {}
        self._sending.clear()
        for stream in streams:
            stream.end(failure)
        if not self._introduced.done():
            self._introduced.set_result(None)


def _checked_window(size: int) -> int:
    if size > frames.WINDOW_BYTES_MAX:
        raise Violation(Code.FLOW_CONTROL_ERROR, "flow-control window exceeds 2^31-1")
    return size


_TAKERS: Final[dict[int, Callable[[Http2Connection, int, int, bytes], None]]] = {
    FrameType.DATA: Http2Connection._take_data,
    FrameType.HEADERS: Http2Connection._take_headers,
    FrameType.RST_STREAM: Http2Connection._take_reset,
    FrameType.SETTINGS: Http2Connection._take_settings,
    FrameType.PUSH_PROMISE: Http2Connection._take_promise,
    FrameType.PING: Http2Connection._take_ping,
    FrameType.GOAWAY: Http2Connection._take_goaway,
    FrameType.WINDOW_UPDATE: Http2Connection._take_window,
    FrameType.CONTINUATION: Http2Connection._take_continuation,
}


async def dial(address: str) -> Http2Connection:
    """`address`: host:port, with brackets where a host has colons. CallFailed without a SETTINGS frame;
    a port that is closed tells at once."""
    parts = host_and_port(address)
    if parts is None:
        raise Unreachable("its address is not HOST:PORT")
    host, port = parts
    loop = asyncio.get_running_loop()
    taken = False
    try:
        with anyio.fail_after(limits.CONNECT_S):
            _, connection = await connected(
                host,
                port,
                lambda one: loop.create_connection(lambda: Http2Connection(loop), one, port),
            )
            taken = True
            try:
                await connection.introduced()
            except BaseException:
                connection.close()
                raise
    except TimeoutError:
        words = f"it did not answer within {limits.CONNECT_S:g} s"
        raise (Mute if taken else Unreachable)(words) from None
    except (OSError, OverflowError, UnicodeError) as error:
        raise _failure(error) from error
    return connection


def _failure(error: Exception) -> Unreachable:
    """Without the address, which is no business of clients."""
    if isinstance(error, AddressRefused):
        return Unreachable("its name leads to an address that no node has")
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError):
        return Unreachable("its name is not resolved")
    if turned_away(error):
        return BackendTurnedAway("connection refused")
    return Unreachable(os.strerror(error.errno).lower() if error.errno else "none of its addresses answers")

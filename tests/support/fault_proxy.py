"""A TCP link between two real peers that misbehaves when told to: slow, thin, silent, cut. On loopback."""

import math
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream, SocketAttribute, SocketStream

HOST = "127.0.0.1"
_CHUNK_BYTES = 1024
_CHUNKS_UNDERWAY_MAX = 1024
# The last is what uvloop says of a connection that is over.
_CUT = (anyio.BrokenResourceError, anyio.ClosedResourceError, RuntimeError)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Lane:
    """One direction. What is changed here holds at once, for connections that are open as well."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = math.inf
        self._open = anyio.Event()
        self._open.set()

    def stall(self) -> None:
        """A black hole: nothing arrives, not even the end of a connection."""
        if self._open.is_set():
            self._open = anyio.Event()

    def resume(self) -> None:
        """What was held back arrives, as what a network lost is sent again."""
        self._open.set()

    async def carry(self, source: SocketStream, target: SocketStream) -> bool:
        """Pass on until one side ends; whether it ended in good order."""
        send, receive = anyio.create_memory_object_stream[tuple[float, bytes | None]](_CHUNKS_UNDERWAY_MAX)
        in_order = False
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, source, send)
            with suppress(*_CUT):
                in_order = await self._deliver(receive, target)
            tasks.cancel_scope.cancel()
        return in_order

    async def _deliver(
        self, receive: ObjectReceiveStream[tuple[float, bytes | None]], target: SocketStream
    ) -> bool:
        async for due, chunk in receive:
            await anyio.sleep_until(due)
            await self._open.wait()
            if not chunk:
                break
            await target.send(chunk)
            await anyio.sleep(len(chunk) / self.bytes_per_s)
        if chunk is None:
            return False
        await target.send_eof()
        return True

    async def _read(self, source: SocketStream, send: ObjectSendStream[tuple[float, bytes | None]]) -> None:
        """No bytes stand for the orderly end of the source, None for any other."""
        chunk: bytes | None = b"-"
        while chunk:
            try:
                chunk = await source.receive(_CHUNK_BYTES)
            except anyio.EndOfStream:
                chunk = b""
            except _CUT:
                chunk = None
            await send.send((anyio.current_time() + self.delay_s, chunk))


class FaultProxy:
    """Passes connections on to a port of this machine, and counts them."""

    def __init__(self, port: int, upstream_port: int) -> None:
        self.port = port
        self.accepted = 0
        self.reset_next = 0  # So many new connections are cut as soon as they are made.
        self.up, self.down = Lane(), Lane()  # Away from whoever connects, and back.
        self._upstream_port = upstream_port
        self._open: dict[anyio.CancelScope, tuple[SocketStream, SocketStream]] = {}

    def slow(self, delay_s: float, bytes_per_s: float = math.inf) -> None:
        for lane in (self.up, self.down):
            lane.delay_s, lane.bytes_per_s = delay_s, bytes_per_s

    def stall(self) -> None:
        self.up.stall()
        self.down.stall()

    def resume(self) -> None:
        self.up.resume()
        self.down.resume()

    def reset(self) -> None:
        """Cut every open connection, with a reset to both sides."""
        for scope in self._open:
            scope.cancel()

    async def half_close(self) -> None:
        """Say to those who connected that nothing more will come; they may go on speaking."""
        for caller, _ in list(self._open.values()):
            with suppress(*_CUT):
                await caller.send_eof()

    @property
    def connections(self) -> int:
        return len(self._open)

    async def accept(self, caller: SocketStream) -> None:
        self.accepted += 1
        async with caller:
            if self.reset_next > 0:
                self.reset_next -= 1
                _reset_on_close(caller)
                return
            with suppress(OSError):  # Nobody there: then there is nothing to pass on.
                async with await anyio.connect_tcp(HOST, self._upstream_port) as callee:
                    await self._join(caller, callee)

    async def _join(self, caller: SocketStream, callee: SocketStream) -> None:
        async def carry(lane: Lane, source: SocketStream, target: SocketStream) -> None:
            if not await lane.carry(source, target):
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            self._open[tasks.cancel_scope] = (caller, callee)
            tasks.start_soon(carry, self.up, caller, callee)
            tasks.start_soon(carry, self.down, callee, caller)
        del self._open[tasks.cancel_scope]
        if tasks.cancel_scope.cancel_called:
            _reset_on_close(caller)
            _reset_on_close(callee)


def _reset_on_close(stream: SocketStream) -> None:
    with suppress(OSError, AttributeError):  # It is over already, and its socket gone.
        raw: socket.socket = stream.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


@asynccontextmanager
async def fault_proxy(upstream_port: int) -> AsyncIterator[FaultProxy]:
    """A proxy to that port, which behaves until it is told otherwise, and ends with the block."""
    async with (
        await anyio.create_tcp_listener(local_host=HOST) as listener,
        anyio.create_task_group() as tasks,
    ):
        proxy = FaultProxy(listener.extra(SocketAttribute.local_port), upstream_port)
        tasks.start_soon(listener.serve, proxy.accept)
        yield proxy
        tasks.cancel_scope.cancel()

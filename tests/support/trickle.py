"""A TCP relay in front of a registry that counts what it passes back, and cuts, stalls, thins or refuses it.

For bulk: the fault proxy's faults are finer, but it carries a kilobyte at a time.
"""

import math
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
from anyio.abc import SocketAttribute, SocketStream

HOST = "127.0.0.1"
_CHUNK_BYTES = 64 << 10
_TICK_S = 0.02
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BUSY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_CUT = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class Relay:
    """What is set here holds for connections that are open as well."""

    def __init__(self, port: int, upstream_port: int, buffer_bytes: int = 0) -> None:
        self.port = port
        self.bytes_back = 0
        self.connections = 0  # Open ones.
        self.reset_after = math.inf  # Bytes passed back by one connection, which is then cut.
        self.stall_after = math.inf  # The same, but it falls silent.
        self.bytes_per_s = math.inf  # Of each connection.
        self.bytes_per_s_together = math.inf  # Of all of them.
        self._free_s = 0.0  # When the next chunk may pass, of all of them.
        self.busy_next = 0  # So many new connections are told to come again.
        self._allowed = math.inf
        self._allows_more = anyio.Event()
        self._upstream_port = upstream_port
        self._buffer_bytes = buffer_bytes
        self._passing = anyio.Event()
        self._passing.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing more is passed back meanwhile, but for what is on its way."""
        self._passing = anyio.Event()
        try:
            yield
        finally:
            self._passing.set()

    def pause_at(self, bytes_back: float) -> None:
        """No more than so many are passed back in all, until this is called again."""
        self._allowed = bytes_back
        self._allows_more.set()
        self._allows_more = anyio.Event()

    async def accept(self, caller: SocketStream) -> None:
        self.connections += 1
        try:
            await self._serve(caller)
        finally:
            self.connections -= 1

    async def _serve(self, caller: SocketStream) -> None:
        async with caller:
            if self.busy_next > 0:
                self.busy_next -= 1
                await caller.receive()
                await caller.send(_BUSY)
                return
            with suppress(OSError):
                async with (
                    await self._connected() as callee,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(self._forth, caller, callee, tasks.cancel_scope)
                    await self._back(callee, caller)
                    tasks.cancel_scope.cancel()

    async def _connected(self) -> SocketStream:
        if not self._buffer_bytes:
            return await anyio.connect_tcp(HOST, self._upstream_port)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
        try:
            raw.connect((HOST, self._upstream_port))
        except OSError:
            raw.close()
            raise
        raw.setblocking(False)
        return await SocketStream.from_socket(raw)

    async def _forth(self, caller: SocketStream, callee: SocketStream, scope: anyio.CancelScope) -> None:
        with suppress(*_CUT):
            while True:
                await callee.send(await caller.receive(_CHUNK_BYTES))
        scope.cancel()

    async def _back(self, callee: SocketStream, caller: SocketStream) -> None:
        passed = 0
        with suppress(*_CUT):
            while True:
                chunk = await callee.receive(self._portion())
                await self._may_pass(len(chunk))
                if passed + len(chunk) > self.stall_after:
                    await anyio.sleep_forever()
                if passed + len(chunk) > self.reset_after:
                    raw: socket.socket = caller.extra(SocketAttribute.raw_socket)
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    return
                await self._send(caller, chunk)
                passed += len(chunk)
                if math.isfinite(self.bytes_per_s):
                    await anyio.sleep(len(chunk) / self.bytes_per_s)
                await self._their_turn(len(chunk))

    async def _may_pass(self, size: int) -> None:
        await self._passing.wait()
        while self.bytes_back + size > self._allowed:
            await self._allows_more.wait()

    async def _their_turn(self, passed: int) -> None:
        if math.isfinite(self.bytes_per_s_together):
            now_s = anyio.current_time()
            self._free_s = max(self._free_s, now_s) + passed / self.bytes_per_s_together
            await anyio.sleep(self._free_s - now_s)

    async def _send(self, caller: SocketStream, chunk: bytes) -> None:
        """Counted from the moment it is on its way."""
        self.bytes_back += len(chunk)
        try:
            await caller.send(chunk)
        except _CUT:
            self.bytes_back -= len(chunk)
            raise

    def _portion(self) -> int:
        if math.isinf(self.bytes_per_s):
            return _CHUNK_BYTES
        return min(max(int(self.bytes_per_s * _TICK_S), 1), _CHUNK_BYTES)


@asynccontextmanager
async def relay(upstream_port: int, buffer_bytes: int = 0) -> AsyncIterator[Relay]:
    """A relay to that port of this machine, which ends with the block. `buffer_bytes`: how much may wait on
    its way there; 0: as much as the kernel sees fit."""
    async with (
        await anyio.create_tcp_listener(local_host=HOST) as listener,
        anyio.create_task_group() as tasks,
    ):
        passed = Relay(listener.extra(SocketAttribute.local_port), upstream_port, buffer_bytes)
        tasks.start_soon(listener.serve, passed.accept)
        yield passed
        tasks.cancel_scope.cancel()

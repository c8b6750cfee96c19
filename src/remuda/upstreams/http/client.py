"""Connections to HTTP servers, kept for the next request. Plain HTTP/1.1, without a task for any request."""

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

import anyio

from remuda.core.reach import host_and_port
from remuda.host.dialing import connected
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.upstreams.http.connection import HttpConnection, HttpTimeouts, ServerTurnedAway
from remuda.upstreams.sockets import turned_away

_LOOK_EVERY_S: Final = 1.0  # Limits are noticed so much late, or by a quarter of the shortest.


class ServerAddress(NamedTuple):
    host: str
    port: int

    @classmethod
    def parsed(cls, text: str) -> "ServerAddress":
        """Of HOST:PORT. UpstreamFailed for any other text: a worker may say anything."""
        parts = host_and_port(text)
        if parts is None:
            raise UpstreamFailed(Fault.UNREACHABLE, "the worker's address is not HOST:PORT", unsent=True)
        return cls(*parts)


class Pool:
    """Belongs to the event loop in which it is first used. Limits are looked after by one timer for all."""

    def __init__(self, timeouts: HttpTimeouts | None = None) -> None:
        self._timeouts = timeouts = timeouts or HttpTimeouts()
        shortest_s = min(timeouts.whole_s, timeouts.silence_s, timeouts.idle_s)
        self._look_every_s = min(_LOOK_EVERY_S, shortest_s / 4)
        self._busy: dict[HttpConnection, ServerAddress] = {}
        self._idle: dict[ServerAddress, list[tuple[HttpConnection, float]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def exchange(
        self, address: ServerAddress, head: bytes, body: bytes, *, streamed: bool = False
    ) -> HttpConnection:
        """Send a request, and wait until its answer begins. Whoever gets the connection reads the answer by
        `piece`, and gives the connection back by `release`, whatever happens."""
        kept = self._kept(address)
        if kept is not None:
            try:
                return await self._asked(kept, address, head, body, streamed)
            except UpstreamFailed as failure:
                if failure.fault is not Fault.UNREACHABLE:
                    raise
                # The server gave it up while it lay idle, as far as can be told: ask anew, once.
        return await self._asked(await self._connected(address), address, head, body, streamed)

    def release(self, connection: HttpConnection) -> None:
        """An answer that was not read to its end is broken off, which tells the server to stop."""
        address = self._busy.pop(connection)
        idle = self._idle.setdefault(address, [])
        if connection.finish() and len(idle) < self._timeouts.idle_max:
            idle.append((connection, self._loop.time()))
        else:
            connection.abort()

    def close(self) -> None:
        """Hang up everywhere. Requests under way fail."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in [*self._busy, *self._resting()]:
            connection.abort()
        self._idle.clear()

    @property
    def busy(self) -> int:
        return len(self._busy)

    @property
    def idle(self) -> int:
        return sum(1 for _ in self._resting())

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _resting(self) -> Iterator[HttpConnection]:
        return (connection for kept in self._idle.values() for connection, _ in kept)

    def _kept(self, address: ServerAddress) -> HttpConnection | None:
        """The one used last: those that are too many grow old."""
        kept = self._idle.get(address)
        while kept:
            connection, _ = kept.pop()
            if not connection.closed:
                return connection
        return None

    async def _connected(self, address: ServerAddress) -> HttpConnection:
        loop = self._loop
        try:
            with anyio.fail_after(self._timeouts.connect_s):
                _, connection = await connected(
                    address.host,
                    address.port,
                    lambda one: loop.create_connection(
                        lambda: HttpConnection(loop, self._timeouts), one, address.port
                    ),
                )
        except TimeoutError:
            words = f"the worker could not be reached within {self._timeouts.connect_s:g} s"
            raise UpstreamFailed(Fault.UNREACHABLE, words, unsent=True) from None
        except OSError as error:
            words = f"the worker could not be reached: {error.strerror or error}"
            if turned_away(error):
                raise ServerTurnedAway(words) from error
            raise UpstreamFailed(Fault.UNREACHABLE, words, unsent=True) from error
        return connection

    async def _asked(
        self, connection: HttpConnection, address: ServerAddress, head: bytes, body: bytes, streamed: bool
    ) -> HttpConnection:
        self._busy[connection] = address
        if self._timer is None:
            self._timer = self._loop.call_later(self._look_every_s, self._look)
        try:
            await connection.ask(head, body, streamed=streamed)
        except BaseException:
            self.release(connection)
            raise
        return connection

    def _look(self) -> None:
        """Has anybody waited for too long, or anything lain idle for too long?"""
        now_s = self._loop.time()
        for connection in self._busy:
            connection.hurry(now_s)
        for address, kept in list(self._idle.items()):
            fresh = [(each, since_s) for each, since_s in kept if self._may_stay(each, since_s, now_s)]
            if fresh:
                self._idle[address] = fresh
            else:
                del self._idle[address]
        in_use = self._busy or self._idle
        self._timer = self._loop.call_later(self._look_every_s, self._look) if in_use else None

    def _may_stay(self, connection: HttpConnection, since_s: float, now_s: float) -> bool:
        if connection.closed:
            return False
        if now_s - since_s < self._timeouts.idle_s:
            return True
        connection.abort()
        return False

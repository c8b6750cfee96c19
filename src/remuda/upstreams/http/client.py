"""Connections to HTTP servers, kept for the next request: plain HTTP/1.1, without a task for any request.

Made for relaying: one request at a time, the body is handed over in the pieces that arrived, and nothing
more is read from the socket while the reader is behind. Knows nothing of what is said.
"""

import asyncio
import math
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import anyio
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from remuda.core import limits
from remuda.core.reach import host_and_port
from remuda.host.outbound import connected
from remuda.host.tunnels import Proxy, proxy_to, tunnel
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.upstreams import sockets
from remuda.upstreams.sockets import turned_away

if TYPE_CHECKING:  # Workers use this client, and know nothing of requests.
    from remuda.inference.model import ReplicaEndpoint

_JOINED_BYTES_MAX: Final = 64 << 10  # Copying a body to its head costs less than two buffers do, up to here.
HELD_BYTES_MAX: Final = 256 << 10  # Of the unread part of a body; the socket then waits.


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """How long is waited for what, and what is kept."""

    connect_s: float = 5.0
    whole_s: float = 3600.0  # To the beginning of an answer that is not streamed: all of it is made before.
    silence_s: float = 300.0  # Before a streamed answer, and between two pieces of any.
    idle_s: float = 30.0  # Less than our workers keep a connection.
    idle_max: int = 64  # Idle connections to one address.


class ServerTurnedAway(UpstreamFailed):
    """Nothing listens at the address: it was reached, and refused the connection or dropped it at once."""

    def __init__(self, message: str, *, unsent: bool = True) -> None:
        super().__init__(Fault.UNREACHABLE, message, unsent=unsent)


class HttpConnection(asyncio.Protocol):
    """Belongs to one request, until it is given back to its pool."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: HttpTimeouts) -> None:
        self.heard_s = -math.inf  # When anything came, by the loop's clock.
        self._loop = loop
        self._timeouts = timeouts
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._asked = False
        self._sent_s = math.inf
        self._deadline_s = math.inf  # Of the read that waits.
        self._begins_within_s = timeouts.whole_s
        self._forget()

    def _forget(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.raw_headers: list[tuple[bytes, bytes]] = []  # All of them, as they came.
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._paused = False
        self._spoken = self._headed = self._complete = self._surplus = False
        self._reusable = self._ends_with_connection = False
        self._framing_bytes = 0
        self._failure: UpstreamFailed | None = None

    # For callers.

    async def ask(self, head: bytes, body: bytes, *, streamed: bool = False) -> None:
        """Send a request and wait for the head of its answer: `status`, and `headers` by lower-case names."""
        self._forget()
        self._begins_within_s = self._timeouts.silence_s if streamed else self._timeouts.whole_s
        self._asked = True
        if self._transport is None or self._transport.is_closing():
            raise _lost(unsent=True)
        self._sent_s = self._loop.time()
        if len(body) <= _JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        while not self._headed:
            if self._failure is not None:
                raise self._failure
            await self._news(self._begins_within_s)

    async def piece(self) -> bytes:
        """What has come of the body, once there is some; empty at its end."""
        while not self._pieces:
            if self._complete:
                return b""
            if self._failure is not None:
                raise self._failure
            await self._news(self._timeouts.silence_s)
        pieces = self._pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces, self._held_bytes = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def finish(self) -> bool:
        """The exchange is over. Whether there can be another: not unless all of the answer was read, and
        nothing else came."""
        self._asked = False
        clean = self._complete and not self._pieces and not self._surplus
        return clean and self._reusable and not self.closed

    def abort(self) -> None:
        """Hang up at once. The server sees that its answer is not wanted."""
        if self._transport is not None:
            self._transport.abort()

    def hurry(self, now_s: float) -> None:
        """Fail the exchange if the reader has waited long enough, by the loop's clock, or if the other
        machine is gone."""
        if self._transport is not None and sockets.unacknowledged(self._transport, now_s - self._sent_s):
            self._fail(self._cut_off())
            return
        if now_s < self._deadline_s:
            return
        words = f"the backend did not begin to answer within {self._begins_within_s:g} s"
        if self._headed:
            words = (
                f"the backend paused for more than {self._timeouts.silence_s:g} s in the middle of its answer"
            )
        self._fail(UpstreamFailed(Fault.SILENT, words, status=504))

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    async def _news(self, within_s: float) -> None:
        self._waiter = self._loop.create_future()
        self._deadline_s = self._loop.time() + within_s
        try:
            await self._waiter
        finally:
            self._waiter, self._deadline_s = None, math.inf

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it.
        sockets.keep_alive(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self._asked or self._complete:
            return
        if self._headed and self._ends_with_connection and error is None:
            self._complete = True
            self._wake()
        elif sockets.vanished(error):
            self._fail(self._cut_off())
        else:
            broke = UpstreamFailed(Fault.BROKE, "the backend broke off in the middle of its answer")
            failure = broke if self._spoken else _lost(unsent=False)
            failure.__cause__ = error
            self._fail(failure)

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self.abort()  # No request is open.
            return
        self._spoken = True
        self.heard_s = self._loop.time()
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._garbled("what the backend sent is not an HTTP answer")
            return
        if self._framing_bytes > limits.HEAD_BYTES_MAX:
            self._garbled("the backend sent too many headers")
            return
        if self._held_bytes > HELD_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._surplus = self._complete  # A second answer to one request.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:  # Later ones are trailers.
            self.headers[name.lower()] = value
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._surplus:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            self.raw_headers.clear()  # Only a word in between.
            return
        self.status = status
        self._headed = True
        self._reusable = self._parser.should_keep_alive()
        self._ends_with_connection = (
            b"content-length" not in self.headers and b"transfer-encoding" not in self.headers
        )

    def on_body(self, body: bytes) -> None:
        if self._surplus:
            return
        self._framing_bytes = 0
        self._held_bytes += len(body)
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = self._headed

    def _cut_off(self) -> UpstreamFailed:
        """Without `_spoken` another replica may be asked, though this one may have heard all of it."""
        fault = Fault.BROKE if self._spoken else Fault.UNREACHABLE
        return UpstreamFailed(
            fault, "the worker's machine stopped acknowledging what it was sent; is it off the network?"
        )

    def _garbled(self, words: str) -> None:
        self._surplus = self._complete
        if self._surplus:
            self._wake()
        else:
            self._fail(UpstreamFailed(Fault.BROKE, words))

    def _fail(self, failure: UpstreamFailed) -> None:
        if self._failure is None:
            self._failure = failure
        self.abort()
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


async def body_of(answer: HttpConnection, bytes_max: int) -> bytes:
    """The whole body; of a longer one, a little more than `bytes_max`."""
    pieces, size = list[bytes](), 0
    while size <= bytes_max and (piece := await answer.piece()):
        pieces.append(piece)
        size += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def json_head(endpoint: "ReplicaEndpoint", path: str, *added: str) -> bytes:
    """Of a request that posts JSON: all of it but the length of the body. `added` are header lines."""
    asked = path.removeprefix("/v1") if endpoint.versioned else path
    lines = (
        f"POST {endpoint.path}{asked} HTTP/1.1",
        f"Host: {endpoint.address.removesuffix(':443') if endpoint.encrypted else endpoint.address}",
        *(("User-Agent: remuda", "X-Remuda-Via: 1") if endpoint.server else ()),
        *added,
        "Content-Type: application/json",
        "Accept-Encoding: identity",
        "Content-Length: ",
    )
    return "\r\n".join(lines).encode()


def _lost(*, unsent: bool) -> ServerTurnedAway:
    return ServerTurnedAway("the backend closed the connection before it answered", unsent=unsent)


_LOOK_EVERY_S: Final = 1.0  # Limits are noticed so much late, or by a quarter of the shortest.


class ServerAddress(NamedTuple):
    host: str
    port: int
    encrypted: bool = False

    @classmethod
    def parsed(cls, text: str, *, encrypted: bool = False) -> "ServerAddress":
        """Of HOST:PORT. UpstreamFailed for any other text: a worker may say anything."""
        parts = host_and_port(text)
        if parts is None:
            raise UpstreamFailed(Fault.UNREACHABLE, "the worker's address is not HOST:PORT", unsent=True)
        return cls(*parts, encrypted)


class Pool:
    """Belongs to the event loop in which it is first used. Limits are looked after by one timer for all."""

    def __init__(
        self,
        timeouts: HttpTimeouts | None = None,
        *,
        peer: str = "the worker",
        asks_again: bool = True,
        proxied: bool = False,
    ) -> None:
        """`peer`: what those who answer are called in failures. `asks_again`: a request on a connection that
        had been idle, and was lost before an answer, is sent once more. `proxied`: encrypted connections
        go through the proxy that the environment names."""
        self._proxied = proxied
        self._timeouts = timeouts = timeouts or HttpTimeouts()
        self._peer = peer
        self._asks_again = asks_again
        self._tls: ssl.SSLContext | None = None  # Made when it is first needed: it reads all certificates.
        shortest_s = min(timeouts.whole_s, timeouts.silence_s, timeouts.idle_s)
        self._look_every_s = min(_LOOK_EVERY_S, shortest_s / 4)
        self._busy: dict[HttpConnection, ServerAddress] = {}
        self._idle: dict[ServerAddress, list[tuple[HttpConnection, float]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None

    async def exchange(
        self, address: ServerAddress, head: bytes, body: bytes, *, streamed: bool = False
    ) -> HttpConnection:
        """Send a request, and wait until its answer begins. The caller reads the answer by `piece`, and gives
        the connection back by `release`, whatever happens."""
        kept = self._kept(address)
        if kept is not None:
            try:
                return await self._asked(kept, address, head, body, streamed)
            except UpstreamFailed as failure:
                if failure.fault is not Fault.UNREACHABLE or not (self._asks_again or failure.unprocessed):
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

    def heard_s(self, address: ServerAddress) -> float:
        """When a server said anything to a request that is under way, by the loop's clock."""
        return max((one.heard_s for one, where in self._busy.items() if where == address), default=-math.inf)

    @property
    def busy(self) -> int:
        return len(self._busy)

    @property
    def idle(self) -> int:
        return sum(1 for _ in self._resting())

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._own_loop is None:  # Kept: asking which loop runs asks the kernel which process this is.
            self._own_loop = asyncio.get_running_loop()
        return self._own_loop

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
                proxy = proxy_to(address.host) if self._proxied and address.encrypted else None
                if proxy is not None:
                    return await self._through(proxy, address)
                _, connection = await connected(
                    address.host,
                    address.port,
                    lambda one: loop.create_connection(
                        lambda: HttpConnection(loop, self._timeouts),
                        one,
                        address.port,
                        ssl=self._tls_context() if address.encrypted else None,
                        server_hostname=address.host if address.encrypted else None,
                    ),
                )
        except TimeoutError:
            words = f"{self._peer} could not be reached within {self._timeouts.connect_s:g} s"
            raise UpstreamFailed(Fault.UNREACHABLE, words, unsent=True) from None
        except OSError as error:
            words = f"{self._peer} could not be reached: {error.strerror or error}"
            if turned_away(error):
                raise ServerTurnedAway(words) from error
            raise UpstreamFailed(Fault.UNREACHABLE, words, unsent=True) from error
        return connection

    async def _through(self, proxy: Proxy, address: ServerAddress) -> HttpConnection:
        transport = await tunnel(proxy, address.host, address.port)
        connection = HttpConnection(self._loop, self._timeouts)
        try:
            secured = await self._loop.start_tls(
                transport, connection, self._tls_context(), server_hostname=address.host
            )
        except BaseException:
            transport.abort()
            raise
        if secured is None:
            raise ConnectionResetError("the connection broke off while it was encrypted")
        connection.connection_made(secured)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

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
        """Has a caller waited, or a connection been idle, for too long?"""
        now_s = self._loop.time()
        for connection in self._busy:
            connection.hurry(now_s)
        for address, kept in list(self._idle.items()):
            fresh = [(each, since_s) for each, since_s in kept if self._is_reusable(each, since_s, now_s)]
            if fresh:
                self._idle[address] = fresh
            else:
                del self._idle[address]
        in_use = self._busy or self._idle
        self._timer = self._loop.call_later(self._look_every_s, self._look) if in_use else None

    def _is_reusable(self, connection: HttpConnection, since_s: float, now_s: float) -> bool:
        if connection.closed:
            return False
        if now_s - since_s < self._timeouts.idle_s:
            return True
        connection.abort()
        return False

"""Runs the ASGI application on a socket that is already bound, and passes it the state of each request's
connection beyond ASGI, so that a handler learns at once, without a task of its own, that the client
disconnected or reads too slowly; and which address a request comes from, behind proxies or not.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from remuda.core import limits
from remuda.core.errors import HeadTooLarge, Invalid, RemudaError, RequestIncomplete
from remuda.fleet.identity import host_of, plain_ip
from remuda.gateway.messages import error_body
from remuda.host.web_sockets import WebSocketProtocol

PEER: Final = "remuda.peer"
"""In a request's scope: the other end of the connection. `client` is what headers may have made of it."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """`X-Forwarded-For` can be written by any client, so it counts only from these."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> "TrustedProxies":
        """Addresses and networks as people write them; ValueError."""
        return cls(tuple(ipaddress.ip_network(word, strict=False) for word in words))

    @property
    def any_local(self) -> bool:
        """Whether a proxy on this machine is among them."""
        return any(network[0].is_loopback for network in self.networks)

    def source(self, client: str, forwarded: Sequence[str]) -> str:
        """The nearest address that is not a trusted proxy's own. `forwarded` has the header's values in the
        order they came; each proxy appends the address it was called from. Where that is unreadable, the
        proxy's own address counts: a caller without an address could pass for anyone."""
        source = plain_ip(client)
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        while hops and self.trusts(source):
            hop = hops.pop()
            caller = plain_ip(hop.strip("[]")) or plain_ip(host_of(hop).strip("[]"))
            if not caller:
                break
            source = caller
        return source

    def claimed(self, client: str, forwarded: Sequence[str]) -> str:
        """The address by which a caller's claims are limited: the last one of the header, from any source.
        A proxy that is not named as trusted wrote its caller's there, which is not on this machine."""
        hop = forwarded[-1].rpartition(",")[2].strip() if forwarded else ""
        return ("" if self.trusts(plain_ip(client)) else plain_ip(hop.strip("[]"))) or self.source(
            client, forwarded
        )

    def trusts(self, address: str) -> bool:
        if not address or not self.networks:
            return False
        return any(ipaddress.ip_address(address) in network for network in self.networks)


class KnownPeer:
    """Stands before everything that believes headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = scope.get("client")
        await self._app(scope, receive, send)


EXTENSION: Final = "remuda.line"

HeaderPairs = tuple[tuple[bytes, bytes], ...]


class ClientConnection(Protocol):
    """The connection on which a request came."""

    when_lost: Callable[[], None] | None
    """Called once if the connection is lost; the code that set it takes it back when the request is over."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """In which its requests are answered."""
        ...

    @property
    def congested(self) -> bool:
        """The client reads more slowly than it is written to: the next write waits."""
        ...

    def body(self) -> bytes | None:
        """The request's, if all of it has arrived: it need not be received through ASGI any more."""
        ...

    def answer(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        """All of an answer in one write, which saves a third of what its head and body take one by one. The
        headers are valid, and name no length. Not while the line is congested."""
        ...

    def add(self, data: bytes) -> None:
        """A further part of an answer whose head, which names no length, was sent through ASGI: with messages
        there a token takes a quarter more, sockets apart. Not while the line is congested."""
        ...

    def hang_up(self) -> None:
        """Drop the connection in the middle of an answer that cannot be ended well."""
        ...


def line_of(scope: Scope) -> ClientConnection | None:
    """None where another server than ours runs the application."""
    extensions = scope.get("extensions")
    line: ClientConnection | None = None if extensions is None else extensions.get(EXTENSION)
    return line


class _Connection(HttpToolsProtocol):
    """Bounds what no ASGI application gets to see: heads, framing, and bodies that go on after the answer.

    No connection is closed right after a refusal, as that would take the answer with it.

    It is the ClientConnection of its requests, which are answered one after the other.
    """

    when_lost: Callable[[], None] | None = None
    _answered: RequestResponseCycle  # The request whose turn it is; `cycle` is the one that came last.
    _refused = False
    _upgraded = False
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None  # Not set for heads that come at once, as most do.
    _incoming = False
    _framing_bytes = 0

    @property
    def congested(self) -> bool:
        return self.flow.write_paused

    def body(self) -> bytes | None:
        if self._incoming:
            return None
        request = self._answered
        body, request.body = bytes(request.body), bytearray()
        self.flow.resume_reading()  # Paused by a request right behind: a lost client would go unnoticed.
        return body

    def answer(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        request = self._answered
        if request.disconnected:
            return
        parts = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not request.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"content-length: %d\r\n\r\n" % len(body), body)
        self.transport.write(b"".join(parts))
        request.response_started = request.response_complete = True
        if not request.keep_alive:
            self.transport.close()
        request.on_response()

    def add(self, data: bytes) -> None:
        if data and not self._answered.disconnected:  # An empty part would be the end.
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def hang_up(self) -> None:
        self._answered.disconnected = True  # Else it would be reported that the answer has no end.
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head_came()
        if self.when_lost is not None:
            self.when_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._refused:
            return
        self._framing_bytes += len(data)
        if self._in_head and self._framing_bytes > limits.HEAD_BYTES_MAX:
            self._refuse(HeadTooLarge(f"the request's head has more than {limits.HEAD_BYTES_MAX} bytes"))
        elif self._framing_bytes > limits.FRAMING_BYTES_MAX:
            self.transport.close()
        elif not self._upgraded and self._head_timer is None and (self._in_head or self._resting):
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]
        self._in_head, self._incoming, self._framing_bytes = True, True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > limits.HEADERS_MAX:
            raise HeadTooLarge("the request has too many headers")  # Which stops the parser.

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_came()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._incoming = False
        super().on_message_complete()
        if self.cycle is not None and self.cycle is self._answered:
            # A large last part of the body has paused reading, and an application that has the whole body
            # does not receive again: that the client leaves would not be noticed.
            self.flow.resume_reading()

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection belongs to another protocol, which has bounds of its own."""
        self._upgraded = True
        super().handle_websocket_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._incoming:
            self.loop.call_later(limits.LINGER_S, self._hang_up_on, self.cycle)

    def send_400_response(self, msg: str) -> None:
        if len(self.headers) <= limits.HEADERS_MAX:
            self._refuse(Invalid("this is not an HTTP request"))
        elif self._in_head:
            self._refuse(HeadTooLarge(f"the request has more than {limits.HEADERS_MAX} headers"))
        else:  # Trailers: it may have been answered.
            self._refused = True
            self.transport.close()

    @property
    def _resting(self) -> bool:
        """No request is under way: all that came since the last one were empty lines."""
        return not self._incoming and (self.cycle is None or self.cycle.response_complete)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(limits.HEAD_READ_S, self._give_up_on_head)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up_on_head(self) -> None:
        """A slow head behind a request that is being answered does not end that one."""
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()
            return
        if self._in_head and not self._refused:
            self._refuse(
                RequestIncomplete(f"the request's head did not arrive within {limits.HEAD_READ_S:.0f} s")
            )
        self.transport.close()

    def _hang_up_on(self, request: RequestResponseCycle) -> None:
        if self._incoming and self.cycle is request:
            self.transport.close()

    def _refuse(self, error: RemudaError) -> None:
        """Before there is a path, and with it a choice of shapes."""
        status, body = HTTPStatus(error.http_status), error_body(error, "")
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        )
        self.transport.write("\r\n".join((*head, "", "")).encode() + body)
        if self.transport.can_write_eof():  # Not with TLS.
            self.transport.write_eof()
        self._refused = True
        self.loop.call_later(limits.LINGER_S, self.transport.close)


class _Server(uvicorn.Server):
    """Signals belong to the composition root."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then stop accepting, let requests finish within a bound, and return."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws=WebSocketProtocol,
        ws_max_size=limits.LOG_SOCKET_BYTES_MAX,
        ws_ping_interval=limits.LOG_SOCKET_PING_S,
        ws_ping_timeout=limits.LOG_SOCKET_PONG_S,
        server_header=False,
        proxy_headers=False,  # The application sees to them, where they matter.
        timeout_keep_alive=int(limits.KEEP_ALIVE_S),
        timeout_graceful_shutdown=int(limits.SHUTDOWN_S),
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    config.load()
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve_to_the_end, server, listener)
        task_status.started()  # The socket listens already: connections made now are served in a moment.
        try:
            await anyio.sleep_forever()
        finally:
            server.should_exit = True


async def _serve_to_the_end(server: uvicorn.Server, listener: socket.socket) -> None:
    """Cancellation ends serving through `should_exit`, so that requests in flight get their bounded time."""
    with anyio.CancelScope(shield=True):
        await server.serve([listener])

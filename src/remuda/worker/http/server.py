"""The worker's HTTP server: ASGI types, helpers for answers and errors, and running an ASGI application on
a socket that is already bound, with bounds on connections that no application gets to see.
"""

import socket
from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import anyio
import uvicorn
from anyio.abc import TaskStatus
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from remuda.core import limits
from remuda.core.errors import HeadTooLarge, RemudaError, WrongMethod
from remuda.host.web_sockets import WebSocketProtocol
from remuda.wire.codec import encode
from remuda.wire.nodes import NodeError
from remuda.wire.process_keys import ROLE_HEADER, WORKER_ROLE

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[Scope, AsgiReceive, AsgiSend], Awaitable[None]]
HeaderLine = tuple[bytes, bytes]

TEXT = b"text/plain; charset=utf-8"
JSON = b"application/json"
CODE_HEADER: Final = b"x-remuda-code"  # On every refusal: the code of the error.
ROLE: Final[HeaderLine] = (ROLE_HEADER.encode(), WORKER_ROLE.encode())
_LINE: Final = "remuda.line"
_PATH_ALONE: Final = "remuda.path_alone"
_CONTRACT_PATHS: Final = ("/healthz", "/readyz", "/v1/backend-logs", "/v1/files")


def cut(scope: Scope) -> None:
    """Drop the connection at once, with what was written to it and not taken: closing it in order would wait
    for a caller that takes nothing."""
    scope[_LINE].transport.abort()


def line_of(scope: Scope) -> "BoundedConnection":
    """The connection on which a request came."""
    line: BoundedConnection = scope[_LINE]
    return line


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that lower-case name, as it was sent."""
    found: bytes | None = next((value for key, value in scope["headers"] if key == name), None)
    return found


def raw_path(scope: Scope) -> str:
    """The path with its escapes as they were sent: in an id that was escaped as a whole, a slash is a part of
    it, where `path` no longer shows the difference."""
    sent: bytes = scope["raw_path"]
    return sent.decode("latin-1")


def is_path_alone(scope: Scope) -> bool:
    """Whether nothing follows the path, not even a question mark with nothing behind it: who does not escape
    one in a name means another file."""
    alone: bool = scope.get(_PATH_ALONE, not scope["query_string"])
    return alone


async def answer(
    scope: Scope, send: AsgiSend, status: int, body: str, kind: bytes = TEXT, more: Iterable[HeaderLine] = ()
) -> None:
    """The whole answer, also to a request for a WebSocket, which is thereby refused."""
    content = body.encode()
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content)), ROLE, *more]
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": content, "more_body": False})


def of_contract(scope: Scope) -> bool:
    """Whether the path is one of LocalAI's workers, whose errors are plain text."""
    return raw_path(scope).startswith(_CONTRACT_PATHS)


async def refuse(scope: Scope, send: AsgiSend, error: RemudaError, more: Iterable[HeaderLine] = ()) -> None:
    """The error as frontends answer it, or as plain text where the contract has that."""
    problem, status = error.problem(), error.http_status
    headers = [(CODE_HEADER, problem.code.encode()), *more]
    if of_contract(scope):
        await answer(scope, send, status, error.public, more=headers)
    else:
        body = encode(NodeError.of(status, error.public_text, problem.code, problem.hint)).decode()
        await answer(scope, send, status, body, JSON, headers)


async def refuse_method(scope: Scope, send: AsgiSend, allowed: bytes) -> None:
    words = f"use {allowed.decode()} here"
    error = WrongMethod("method not allowed", hint="" if of_contract(scope) else words)
    await refuse(scope, send, error, [(b"allow", allowed)])


class BoundedConnection(HttpToolsProtocol):
    """Refuses a head that is too long, and a body with more framing (sizes of chunks, trailers) than makes
    sense: both are held in memory before a token was shown."""

    when_lost: Callable[[], None] | None = None
    """Called once if the connection is lost; the code that set it takes it back when its request is over."""
    _in_head = True
    _framing_bytes = 0

    @property
    def congested(self) -> bool:
        """The caller reads more slowly than it is written to: the next write waits."""
        return self.flow.write_paused

    def watch(self, when_lost: Callable[[], None]) -> None:
        """Of a request that has arrived whole: nothing more is received through ASGI, which would notice."""
        self.when_lost = when_lost
        self.flow.resume_reading()  # Paused by a large last part of the body.

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._framing_bytes += len(data)  # Afterwards: a new message in it begins at nothing.
        bound = limits.HEAD_BYTES_MAX if self._in_head else limits.FRAMING_BYTES_MAX
        if self._framing_bytes > bound and not self.transport.is_closing():
            self.send_400_response("the request headers are too long")

    def on_message_begin(self) -> None:
        self._in_head, self._framing_bytes = True, 0
        super().on_message_begin()
        self.scope[_LINE] = self  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > limits.HEADERS_MAX:
            raise HeadTooLarge("the request has too many headers")  # Which stops the parser.

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.scope[_PATH_ALONE] = not (b"?" in self.url or b"#" in self.url)  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        super().on_body(body)


async def serve(
    app: App, listening: socket.socket, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Answer on this socket until cancelled; then finish what is open within a bound, and close it."""
    server = _Server(
        uvicorn.Config(
            app,
            http=BoundedConnection,
            ws=WebSocketProtocol,
            ws_max_size=limits.LOG_SOCKET_BYTES_MAX,
            ws_ping_interval=limits.LOG_SOCKET_PING_S,
            ws_ping_timeout=limits.LOG_SOCKET_PONG_S,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.KEEP_ALIVE_S),
            timeout_graceful_shutdown=int(limits.PROBE_SHUTDOWN_S),
        )
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_to_the_end, server, listening)
        await server.up.wait()
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            server.should_exit = True


async def _to_the_end(server: "_Server", listening: socket.socket) -> None:
    with anyio.CancelScope(shield=True):  # It is asked to leave, and bounded by its own grace.
        await server.serve(sockets=[listening])


class _Server(uvicorn.Server):
    """Signals belong to the process, not to a server inside it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

"""Runs the worker's ASGI application on a socket that is already bound, with bounds on connections that no
application gets to see."""

import socket
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import uvicorn
from anyio.abc import TaskStatus
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from remuda.core import limits
from remuda.core.errors import HeadTooLarge
from remuda.host.web_sockets import WebSocketProtocol
from remuda.worker.http.asgi import App


class BoundedConnection(HttpToolsProtocol):
    """Refuses a head that is too long, and a body with more framing (sizes of chunks, trailers) than makes
    sense: both are held in memory before anybody has shown a token."""

    _in_head = True
    _framing_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._framing_bytes += len(data)  # Afterwards: a new message in it begins at nothing.
        bound = limits.HEAD_BYTES_MAX if self._in_head else limits.FRAMING_BYTES_MAX
        if self._framing_bytes > bound and not self.transport.is_closing():
            self.send_400_response("the request headers are too long")

    def on_message_begin(self) -> None:
        self._in_head, self._framing_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > limits.HEADERS_MAX:
            raise HeadTooLarge("the request has too many headers")  # Which stops the parser.

    def on_headers_complete(self) -> None:
        self._in_head = False
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

"""Runs the worker's ASGI application on a socket that is already bound."""

import socket
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import uvicorn
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.host.web_sockets import WebSocketProtocol
from remuda.worker.http.asgi import App
from remuda.worker.http.connection import Connection


async def serve(
    app: App, listening: socket.socket, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Answer on this socket until cancelled; then finish what is open within a bound, and close it."""
    server = _Server(
        uvicorn.Config(
            app,
            http=Connection,
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

"""Runs the ASGI application on a socket that is already bound."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from remuda.core import limits


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
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=int(limits.KEEP_ALIVE_S),
        timeout_graceful_shutdown=int(limits.SHUTDOWN_S),
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    config.load()
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve_to_the_end, server, listener)
        task_status.started()  # The socket listens already: whoever connects now is served in a moment.
        try:
            await anyio.sleep_forever()
        finally:
            server.should_exit = True


async def _serve_to_the_end(server: uvicorn.Server, listener: socket.socket) -> None:
    """Cancellation ends serving through `should_exit`, so that requests in flight get their bounded time."""
    with anyio.CancelScope(shield=True):
        await server.serve([listener])

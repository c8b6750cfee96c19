"""The worker's own HTTP server. Liveness and readiness are open to anyone; nothing else is there yet."""

import socket
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any

import anyio
import uvicorn
from anyio.abc import TaskStatus

from remuda.core import limits

# ASGI's own shapes.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_NOT_READY = b"not ready: NATS connection is down: worker cannot receive work"


def probes(ready: Callable[[], bool]) -> App:
    """/healthz: this process answers. /readyz: it can receive work as well."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server is told to offer nothing else"
        status, text = _answer(scope["method"], scope["path"], ready)
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text))]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else text})

    return app


def _answer(method: str, path: str, ready: Callable[[], bool]) -> tuple[int, bytes]:
    if path not in ("/healthz", "/readyz"):
        return 404, b"not found"
    if method not in ("GET", "HEAD"):
        return 405, b"method not allowed"
    if path == "/readyz" and not ready():
        return 503, _NOT_READY
    return 200, b"ok"


async def serve(
    app: App, listening: socket.socket, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Answer on this socket until cancelled; then finish what is open within a bound, and close it."""
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",  # The smallest: a probe now and then is all there is to serve.
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
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

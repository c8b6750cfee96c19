"""A worker's HTTP server on a port of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.host.ports import listen
from remuda.wire.models import ModelsRunningReply
from remuda.wire.process_keys import ProcessKey
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.http.app import ListRunning, TokenGuard, application
from remuda.worker.http.backend_proxy import open_door
from remuda.worker.http.server import App, serve
from remuda.worker.processes.logs import ProcessLogs

TOKEN = "the-registration-token"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


async def nothing_runs() -> ModelsRunningReply:
    return ModelsRunningReply()


@asynccontextmanager
async def listening(app: App) -> AsyncIterator[str]:
    """Its URL."""
    socket = listen("127.0.0.1", 0)
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve, app, socket)
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def worker(
    folder: Path,
    *,
    logs: ProcessLogs | None = None,
    find: Callable[[ProcessKey], int | None] = lambda _: None,
    guard: TokenGuard | None = None,
    headers: dict[str, str] = AUTHORIZED,
    running: ListRunning = nothing_runs,
) -> AsyncIterator[aiohttp.ClientSession]:
    """A caller of the whole application."""
    guard = guard or TokenGuard(OpeningTokens(SecretStr(TOKEN)))
    async with open_door(find) as door:
        app = application(lambda: "", guard, logs or ProcessLogs(folder, SystemClock()), door, running)
        async with listening(app) as url:
            unlimited = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(url, connector=unlimited, headers=headers) as caller:
                yield caller

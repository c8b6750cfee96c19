"""Everything the worker answers over HTTP: probes for anyone, the rest for those who hold the token."""

from collections.abc import Callable

from remuda.core.errors import NotFound, Unauthorized
from remuda.wire.process_keys import PROCESSES_PATH, RUNNING_PATH
from remuda.worker.http.asgi import App, Receive, Scope, Send, of_contract, raw_path, refuse
from remuda.worker.http.door import Door
from remuda.worker.http.guard import TokenGuard
from remuda.worker.http.logs import LogPages
from remuda.worker.http.probes import PATHS as PROBE_PATHS
from remuda.worker.http.probes import probes
from remuda.worker.http.running import Running, running_page
from remuda.worker.processes.logs import ProcessLogs


def application(
    why_unready: Callable[[], str], guard: TokenGuard, logs: ProcessLogs, door: Door, running: Running
) -> App:
    """`why_unready` says why the worker cannot receive work; empty when it can."""
    probe, list_running = probes(why_unready), running_page(running)
    # By prefix, as ids in paths contain slashes. The first that fits counts.
    pages: tuple[tuple[str, App], ...] = (("/v1/backend-logs", LogPages(logs)), (PROCESSES_PATH, door))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBE_PATHS:
            await probe(scope, receive, send)
            return
        if not guard.admits(scope):
            words = "unauthorized" if of_contract(scope) else "missing or invalid token"
            await refuse(scope, send, Unauthorized(words), [(b"www-authenticate", b"Bearer")])
            return
        path = raw_path(scope)
        if path == RUNNING_PATH:
            await list_running(scope, receive, send)
            return
        page = next((page for prefix, page in pages if path.startswith(prefix)), _nothing)
        await page(scope, receive, send)

    return app


async def _nothing(scope: Scope, _receive: Receive, send: Send) -> None:
    await refuse(scope, send, NotFound("not found"))

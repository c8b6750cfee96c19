"""Everything the worker answers over HTTP: probes for anyone; logs, processes and which of them run for
the holders of the token that its frontends present."""

import hmac
from collections.abc import Awaitable, Callable

from remuda.core.errors import NotFound, Unauthorized, Unavailable
from remuda.wire.codec import encode
from remuda.wire.model_file_urls import WORKER_PATH
from remuda.wire.models import ModelsRunningReply
from remuda.wire.node_facts import WORKER_HEADER
from remuda.wire.process_keys import PROCESSES_PATH, RUNNING_PATH
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.http.backend_proxy import BackendProxy
from remuda.worker.http.logs import LogPages
from remuda.worker.http.server import (
    JSON,
    App,
    AsgiReceive,
    AsgiSend,
    Scope,
    answer,
    header,
    of_contract,
    raw_path,
    refuse,
    refuse_method,
)
from remuda.worker.processes.logs import ProcessLogs


class TokenGuard:
    """Without a token every request is refused, unless the worker was started without one."""

    def __init__(self, tokens: OpeningTokens, *, open_without_token: bool = False) -> None:
        self._tokens = tokens
        self._open = open_without_token

    def admits(self, scope: Scope) -> bool:
        """Whether the request carries the token, in `Authorization: Bearer`. Compared in constant time."""
        token = self._tokens.http.encode()
        if self._open and not token and not self._tokens.own:
            return True
        scheme, _, given = (header(scope, b"authorization") or b"").partition(b" ")
        return scheme == b"Bearer" and bool(token) and hmac.compare_digest(given, token)


FILES_PATH = "/v1/files"
PROBE_PATHS = ("/healthz", "/readyz")

_NOT_READY = "not ready: NATS connection is down: worker cannot receive work"


def probes(why_unready: Callable[[], str], mark: str = "") -> App:
    """/healthz: this process answers, and which worker it is (`mark`). /readyz: it can receive work as well;
    otherwise it says why not."""
    marked = [(WORKER_HEADER.encode(), mark.encode())] if mark else []

    async def app(scope: Scope, _receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http" or scope["path"] not in PROBE_PATHS:
            await refuse(scope, send, NotFound("not found"))
        elif scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, b"GET, HEAD")
        elif scope["path"] == "/readyz" and (reason := why_unready()):
            await refuse(scope, send, Unavailable(f"{_NOT_READY} ({reason})"))
        else:
            await answer(scope, send, 200, "ok", more=marked)

    return app


ListRunning = Callable[[], Awaitable[ModelsRunningReply]]


def running_page(running: ListRunning) -> App:
    async def app(scope: Scope, _receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await refuse(scope, send, NotFound("not found"))
        elif scope["method"] != "GET":
            await refuse_method(scope, send, b"GET")
        else:
            await answer(scope, send, 200, encode(await running()).decode(), JSON)

    return app


def application(
    why_unready: Callable[[], str],
    guard: TokenGuard,
    logs: ProcessLogs,
    door: BackendProxy,
    running: ListRunning,
    files: App | None = None,
    giving: App | None = None,
    mark: str = "",
) -> App:
    """`why_unready` says why the worker cannot receive work; empty when it can. `mark` is its own. `files`
    answers below FILES_PATH, `giving` below that of model files, whose addresses are signed."""
    probe, list_running = probes(why_unready, mark), running_page(running)
    # By prefix, as ids in paths contain slashes. The first that fits counts.
    pages: tuple[tuple[str, App], ...] = (
        ("/v1/backend-logs", LogPages(logs)),
        (PROCESSES_PATH, door),
        (FILES_PATH, files or _nothing),
    )

    async def app(scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["path"] in PROBE_PATHS:
            await probe(scope, receive, send)
            return
        if giving is not None and raw_path(scope).startswith(WORKER_PATH):
            await giving(scope, receive, send)
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


async def _nothing(scope: Scope, _receive: AsgiReceive, send: AsgiSend) -> None:
    await refuse(scope, send, NotFound("not found"))

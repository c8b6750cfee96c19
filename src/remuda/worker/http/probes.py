"""Liveness and readiness, open to anyone."""

from collections.abc import Callable

from remuda.core.errors import NotFound, Unavailable
from remuda.worker.http.asgi import App, Receive, Scope, Send, answer, refuse, refuse_method

PATHS = ("/healthz", "/readyz")

_NOT_READY = "not ready: NATS connection is down: worker cannot receive work"


def probes(why_unready: Callable[[], str]) -> App:
    """/healthz: this process answers. /readyz: it can receive work as well; otherwise it says why not."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await refuse(scope, send, NotFound("not found"))
        elif scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, b"GET, HEAD")
        elif scope["path"] == "/readyz" and (reason := why_unready()):
            await refuse(scope, send, Unavailable(f"{_NOT_READY} ({reason})"))
        else:
            await answer(scope, send, 200, "ok")

    return app

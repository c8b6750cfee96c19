"""Which backend processes run, for a frontend that cannot ask over the bus.

GET /v1/processes
"""

from collections.abc import Awaitable, Callable

from remuda.core.errors import NotFound
from remuda.wire.codec import encode
from remuda.wire.models import ModelsRunningReply
from remuda.worker.http.asgi import JSON, App, Receive, Scope, Send, answer, refuse, refuse_method

Running = Callable[[], Awaitable[ModelsRunningReply]]


def running_page(running: Running) -> App:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await refuse(scope, send, NotFound("not found"))
        elif scope["method"] != "GET":
            await refuse_method(scope, send, b"GET")
        else:
            await answer(scope, send, 200, encode(await running()).decode(), JSON)

    return app

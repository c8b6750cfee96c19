"""Refuses bodies over the bound, before they are read where the length is announced, else as they arrive."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remuda.core import limits
from remuda.core.errors import TooLarge
from remuda.gateway.messages import refusal

_WORDS = f"the request body is larger than {limits.BODY_BYTES_MAX} bytes"


class BodyLimit:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not length.isdigit() or int(length) > limits.BODY_BYTES_MAX:
            # Closing spares us from reading what was refused.
            await refusal(413, _WORDS, {"connection": "close"})(scope, receive, send)
            return
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > limits.BODY_BYTES_MAX:
                raise TooLarge(_WORDS)
            return message

        await self._app(scope, counted, send)

"""uvicorn's WebSocket protocol, without its error report for each refused handshake."""

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Knows that a handshake which was answered with a refusal is over: uvicorn reports each one as an error
    of the application."""

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

"""One connection to the worker, with bounds on what no ASGI application gets to see."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from remuda.core import limits
from remuda.core.errors import HeadTooLarge


class Connection(HttpToolsProtocol):
    """Refuses a head that is too long, and a body with more framing (sizes of chunks, trailers) than makes
    sense: both are held in memory before anybody has shown a token."""

    _in_head = True
    _framing_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._framing_bytes += len(data)  # Afterwards: a new message in it begins at nothing.
        bound = limits.HEAD_BYTES_MAX if self._in_head else limits.FRAMING_BYTES_MAX
        if self._framing_bytes > bound and not self.transport.is_closing():
            self.send_400_response("the request headers are too long")

    def on_message_begin(self) -> None:
        self._in_head, self._framing_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > limits.HEADERS_MAX:
            raise HeadTooLarge("the request has too many headers")  # Which stops the parser.

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        super().on_body(body)

"""State of a request's connection that our server passes to applications beyond ASGI, so that a handler
learns at once, without a task of its own, that the client disconnected or reads too slowly."""

from collections.abc import Callable
from typing import Final, Protocol

from starlette.types import Scope

EXTENSION: Final = "remuda.line"

Headers = tuple[tuple[bytes, bytes], ...]


class ClientConnection(Protocol):
    """The connection on which a request came."""

    when_lost: Callable[[], None] | None
    """Called once if the connection is lost; the code that set it takes it back when the request is over."""

    @property
    def congested(self) -> bool:
        """The client reads more slowly than it is written to: the next write waits."""
        ...

    def body(self) -> bytes | None:
        """The request's, if all of it has arrived: it need not be received through ASGI any more."""
        ...

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """All of an answer in one write, which saves a third of what its head and body take one by one. The
        headers are valid, and name no length. Not while the line is congested."""
        ...

    def hang_up(self) -> None:
        """Drop the connection in the middle of an answer that cannot be ended well."""
        ...


def line_of(scope: Scope) -> ClientConnection | None:
    """None where another server than ours runs the application."""
    extensions = scope.get("extensions")
    line: ClientConnection | None = None if extensions is None else extensions.get(EXTENSION)
    return line

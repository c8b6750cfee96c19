"""The response to one request on the client's connection, in whichever API it was asked: held back while the
answer may still become another one, and ended properly whatever happens.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import anyio
import structlog
from starlette.types import Send

from remuda.accounts.limit_state import LimitState
from remuda.accounts.limiter import Charge
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.gateway.server import ClientConnection, HeaderPairs
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import CallTally, RequestKind
from remuda.router.dispatch import RoutingRecord
from remuda.router.loading import LoadStatus

log = structlog.get_logger()
CLIENT_GONE: Final = 499  # It is not sent; it is logged and counted.
_HELD_BYTES_MAX: Final = 256 << 10  # Of an answer that is not a stream; what is longer goes out in parts.
_SOUND: Final = b"audio/"  # Heard while it comes.
_STALL_S: Final = 120.0  # A client that takes nothing for so long holds up a replica for nothing.
_SILENCE_S: Final = 2.0  # A failure that comes sooner keeps its status.
_COMMENT_EVERY_S: Final = 3.0
_RETRY_AFTER: Final = (b"retry-after", b"5")


class ClientGone(Exception):
    """The client has left."""


class ErrorBody(Protocol):
    """An error as a client gets it: as a whole answer, or as an event in a stream that has begun."""

    @property
    def status(self) -> int: ...

    @property
    def code(self) -> str: ...

    @property
    def body(self) -> bytes: ...

    @property
    def headers(self) -> HeaderPairs: ...


class ApiFormat(Protocol):
    """How an API writes what is no part of an answer: errors, and what frames a stream."""

    @property
    def stream_headers(self) -> HeaderPairs: ...

    @property
    def request_id_headers(self) -> tuple[bytes, ...]:
        """By which answers name their request."""
        ...

    def limit_headers(self, limits: Sequence[LimitState]) -> HeaderPairs:
        """How the limits of the caller's key stand."""
        ...

    def is_stream(self, content_type: bytes) -> bool: ...

    def error(self, error: RemudaError) -> ErrorBody: ...

    def last_event(self, body: bytes, written: bytes) -> bytes:
        """The end of a stream of which `written` came last, with the body of an error or a whole answer."""
        ...

    def node_comment(self, node_name: str) -> bytes:
        """Whose answer it is, where the head was sent too early to say it."""
        ...

    def loading_comment(self, status: LoadStatus) -> bytes:
        """Empty: the format has no comments, and nothing is sent before the answer."""
        ...


class ClientResponse:
    """Implements inference.answers.ByteSink, and keeps what the log and the metrics note at the end.

    Made by the task that answers the request. It is that task's own cancellation that stops the work, not a
    cancel scope, which would cost as much as all checks of a request together.
    """

    __slots__ = (
        "_clock",
        "_comment_at_s",
        "_content_type",
        "_format",
        "_held",
        "_held_bytes",
        "_last",
        "_line",
        "_over",
        "_passing",
        "_send",
        "_started",
        "_task",
        "added",
        "began_s",
        "begun",
        "body_bytes",
        "caller",
        "charge",
        "ended_by",
        "error",
        "error_message",
        "expose_node",
        "gone",
        "headers",
        "key_id",
        "kind",
        "limits",
        "model",
        "request_id",
        "routing",
        "status",
        "stream",
        "tally",
    )

    def __init__(
        self,
        kind: RequestKind,
        request_id: str,
        send: Send,
        line: ClientConnection | None,
        clock: Clock,
        format: ApiFormat,
        *,
        expose_node: bool,
    ) -> None:
        self.kind = kind
        self.request_id = request_id
        self._send = send
        self._line = line
        self._clock = clock
        self._format = format
        self.expose_node = expose_node
        # Without the loop it is looked for, which takes seven times as long.
        self._task = asyncio.current_task(None if line is None else line.loop)
        self.began_s = clock.monotonic()
        self.tally = CallTally()
        self.routing = RoutingRecord()
        self.body_bytes = 0
        self.caller = ""
        self.key_id = ""
        self.headers: Mapping[bytes, bytes] | None = None  # With which the caller was let in by a key.
        self.charge: Charge | None = None  # To the limits of the caller's key.
        self.limits: Sequence[LimitState] = ()
        self.added: HeaderPairs = ()  # To the answer's headers, whatever it is.
        self.model = ""
        self.stream = False
        self.begun = False  # Something of the answer was sent; comments do not count.
        self.gone = False
        self.ended_by: RemudaError | None = None
        self.status = 200
        self.error = ""
        self.error_message = ""
        self._started = False  # The head was sent.
        self._over = False  # So was the end.
        self._passing = False  # What is written goes out at once.
        self._content_type = b""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._last = b""  # What was written last.
        self._comment_at_s = self.began_s + _SILENCE_S

    def leave(self) -> None:
        """The client is gone: stop whatever is done for it."""
        if not self._over:
            error = self._told_to_stop()
            self.gone = True
            if not error:
                self._interrupt()

    def end(self, why: RemudaError) -> None:
        """Stop, and tell the client why."""
        if not self._over and not self._told_to_stop():
            self.ended_by = why
            self._interrupt()

    def interrupted(self) -> bool:
        """The task was cancelled by this response, which is over now; else it was from outside."""
        if self._task is None or not self._told_to_stop():
            return False
        self._task.uncancel()
        return True

    def _told_to_stop(self) -> bool:
        """A task that is cancelled twice has to be called back twice, so it is done once."""
        return self.gone or self.ended_by is not None

    async def begin(self, status: int, content_type: bytes) -> None:
        """Only noted: until the first bytes the request may be given to another replica."""
        self.status = status
        self._content_type = content_type
        self._passing = self._format.is_stream(content_type) or content_type.startswith(_SOUND)
        self._held.clear()
        self._held_bytes = 0

    async def write(self, data: bytes) -> None:
        if self._passing:
            if not self.begun:
                await self._pass_on()
            self._last = data
            await self._put(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_BYTES_MAX and not self._started:
            self._passing = True
            await self._pass_on()
            await self._put(b"".join(self._held))
            self._held.clear()

    async def finish(self) -> None:
        """The answer is whole."""
        if not self._content_type:
            raise UpstreamFailed(Fault.BROKE, "empty response from the replica")
        if self._passing:
            if not self.begun:
                await self._pass_on()
            await self._put(b"", more=False)
        elif self._started:  # By comments, in a stream that is now to hold one thing.
            await self._put(self._format.last_event(b"".join(self._held), b""), more=False)
        else:
            headers: HeaderPairs = ((b"content-type", self._content_type),)
            if self.status == 429:  # By a replica that speaks HTTP: its words are passed on, not its headers.
                headers = (*headers, _RETRY_AFTER)
            await self.answer(self.status, headers, b"".join(self._held))

    async def fail(self, error: RemudaError) -> None:
        """Tell the client, in the way that is left."""
        if self._over:
            return
        if error.public != error.message:
            log.warning("inference_refused", request_id=self.request_id, reason=error.message)
        body = self._format.error(error)
        self.status, self.error, self.error_message = body.status, body.code, error.public
        if not self._started:
            await self.answer(body.status, body.headers, body.body)
        elif self.begun and not self._format.is_stream(self._content_type):
            self._drop()
        else:
            await self._put(self._format.last_event(body.body, self._last), more=False)

    async def answer(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        """A whole answer at once."""
        self.status = status
        if self._line is None or self._line.congested:
            await self._start((*headers, (b"content-length", b"%d" % len(body))))
            await self._put(body, more=False)
        elif self.gone:
            raise ClientGone
        else:
            self._started = self._over = True
            self._line.answer(status, self._named(headers), body)

    async def meanwhile(self, status: LoadStatus) -> None:
        """The model is being loaded: a stream's reader sees how far it is."""
        now_s = self._clock.monotonic()
        if not self.stream or now_s < self._comment_at_s:
            return
        self._comment_at_s = now_s + _COMMENT_EVERY_S
        comment = self._format.loading_comment(status)
        if not comment:
            return
        if not self._started:
            self.status = 200
            await self._start(self._format.stream_headers)
        await self._put(comment)

    def spent_s(self) -> float:
        """Since the request came."""
        return self._clock.monotonic() - self.began_s

    @property
    def waited_s(self) -> float:
        """For a replica, and perhaps for its load."""
        return self.routing.waited_s

    async def _pass_on(self) -> None:
        """From here on it is this answer."""
        if not self._started:
            plain: HeaderPairs = ((b"content-type", self._content_type),)
            stream = self._format.is_stream(self._content_type)
            await self._start(self._format.stream_headers if stream else plain)
        elif self.expose_node and self.routing.route is not None:  # The head came too early to say it.
            await self._put(self._format.node_comment(self.routing.route.node_name))
        self.begun = True
        if self.tally.first_token_s is None:
            self.tally.first_token_s = self._clock.monotonic()

    async def _start(self, headers: HeaderPairs) -> None:
        self._started = True
        named = self._named(headers)
        await self._send({"type": "http.response.start", "status": self.status, "headers": named})

    def _named(self, headers: HeaderPairs) -> HeaderPairs:
        """With those that say whose answer it is."""
        text = self.request_id.encode()
        named = (*headers, *[(name, text) for name in self._format.request_id_headers])
        if self.added:
            named = (*named, *self.added)
        if self.limits:
            named = (*named, *self._format.limit_headers(self.limits))
        route = self.routing.route
        if not self.expose_node or route is None:
            return named
        node_name, node = route.node_name.encode(), route.node.encode()
        return (*named, (b"x-remuda-node", node_name), (b"x-localai-node", node))

    async def _put(self, data: bytes, *, more: bool = True) -> None:
        if self.gone:
            raise ClientGone
        self._over = not more
        line = self._line
        if more and line is not None and not line.congested:
            line.add(data)
            return
        message = {"type": "http.response.body", "body": data, "more_body": more}
        if line is None or not line.congested:
            await self._send(message)
            return
        with anyio.move_on_after(_STALL_S) as scope:
            await self._send(message)
        if scope.cancelled_caught:
            self.gone = True
            self._drop()
            raise ClientGone

    def _interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _drop(self) -> None:
        self._over = True
        if self._line is None:
            raise ConnectionAbortedError("the answer cannot be ended well")
        self._line.hang_up()

"""The error tree, the closed list of codes, and Problem (an error as data).

RemudaError          code, message, hint, retryable
  Rejected           the caller must change something   NotFound Invalid Conflict Forbidden Unauthorized
  Unavailable        the same call may work later       StoreUnusable BusUnusable NoCapacity
  PeerFailed         something we depend on failed      NodeUnreachable FrontendUnreachable BackendFailed
(no class)           a bug: assert, let it crash, log the whole chain

Clients rely on codes, people read messages. Every code stands in docs/reference/errors.md.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

_SERVER_ADDRESSES: Final = re.compile(r"(?:nats|tls|wss?)://\S+?(?=[;,):]?(?:\s|$))")
UNREACHABLE_SINCE: Final = "unreachable since"  # In messages about a source that is waited for.


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as data: what crosses a process boundary or is written to a row."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False
    wait_s: int = 0  # For which a server asked to be left alone; 0: it did not.
    unanswered: int = 0  # So many attempts in a row were not answered; 0: the last one was.
    unanswered_since: datetime | None = None
    kept_bytes: int = (
        0  # Of what is fetched, as of the furthest attempt yet; the next one goes on from there.
    )


class RemudaError(Exception):
    """Expected trouble. `message` says what is wrong, `hint` what the reader can do about it.

    `message` is for the log and for the terminal of the person who runs this process. `public` is for all
    others: it names no address of a database or a bus, and nothing that their drivers say.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    param: str = ""  # The field of a request that is to blame, as `messages[0].role`; empty: none is known.

    def __init__(
        self, message: str, *, hint: str = "", reason: str = "", public: str = "", details: Sequence[str] = ()
    ) -> None:
        """`reason`: the code that a peer gave, where it says more than the code of the class. `details`: one
        line each, where the message ends with the first of them and perhaps more."""
        super().__init__(message)
        self.details = tuple(details)
        self.message = message
        self.hint = hint
        self.reason = reason
        self.public = public or message

    def __str__(self) -> str:
        return _with_hint(self.message, self.hint)

    @property
    def public_text(self) -> str:
        """What clients of the API may read."""
        return _with_hint(self.public, self.hint)

    def problem(self) -> Problem:
        """For other processes, and for what is stored and shown to them later."""
        return Problem(self.reason or self.code, self.public, self.hint, self.retryable)


def _with_hint(message: str, hint: str) -> str:
    return f"{message} ({hint})" if hint else message


class Rejected(RemudaError):
    code = "rejected"
    http_status = 400


class Invalid(Rejected):
    code = "invalid"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        reason: str = "",
        public: str = "",
        details: Sequence[str] = (),
        param: str = "",
    ) -> None:
        super().__init__(message, hint=hint, reason=reason, public=public, details=details)
        self.param = param


@contextmanager
def in_field(param: str) -> Iterator[None]:
    """What turns out to be invalid here is so because of this field, unless it names one itself."""
    try:
        yield
    except Invalid as error:
        error.param = error.param or param
        raise


class Misconfigured(Rejected):
    """A setting cannot be used; the process does not start."""

    code = "misconfigured"


class Unauthorized(Rejected):
    code = "unauthorized"
    http_status = 401


class Forbidden(Rejected):
    code = "forbidden"
    http_status = 403


class NotFound(Rejected):
    code = "not_found"
    http_status = 404


class NoSuchEndpoint(NotFound):
    """No route has this path: a client may be newer than the frontend."""

    code = "no_such_endpoint"


class NodeRemoved(NotFound):
    """An administrator removed this node."""

    code = "node_removed"


class WrongMethod(Rejected):
    code = "wrong_method"
    http_status = 405


class RequestIncomplete(Rejected):
    """The request did not arrive in time."""

    code = "request_incomplete"
    http_status = 408


class Conflict(Rejected):
    code = "conflict"
    http_status = 409


class TooLarge(Rejected):
    code = "too_large"
    http_status = 413


class HeadTooLarge(TooLarge):
    http_status = 431


class Internal(RemudaError):
    """A defect of ours: the log has the details."""


class Unavailable(RemudaError):
    code = "unavailable"
    http_status = 503
    retryable = True


class StoreUnusable(Unavailable):
    code = "store_unusable"


class NoCapacity(Unavailable):
    """No node can take a model; the message has a few of the reasons, and `details` all of them."""

    code = "no_capacity"


class _BusTrouble(RemudaError):
    """Where the NATS server is concerns only those who run the frontend."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "", public: str = "") -> None:
        public = public or _SERVER_ADDRESSES.sub("the NATS server", message)
        super().__init__(message, hint=hint, reason=reason, public=public)


class BusUnusable(_BusTrouble, Unavailable):
    code = "bus_unusable"


class PeerFailed(RemudaError):
    code = "peer_failed"
    http_status = 502
    retryable = True


class BusRefused(_BusTrouble, PeerFailed):
    """The bus refused a permission or our credentials: waiting does not help, other credentials do."""

    code = "bus_refused"
    retryable = False


class FrontendUnreachable(PeerFailed):
    code = "frontend_unreachable"


class NodeUnreachable(PeerFailed):
    code = "node_unreachable"


class NoAnswerYet(NodeUnreachable):
    """It was reached, and may still be at work on the answer."""


class BackendFailed(PeerFailed):
    """A backend's process did not become ready, or did not stay up."""

    code = "backend_failed"


class StartFailed(BackendFailed):
    """A backend's files are there, and its process did not become ready."""

    code = "start_failed"


class RolledBack(BackendFailed):
    """A backend's new version did not start, and the one before it is in use again."""

    code = "rolled_back"


class ChildFailed(PeerFailed):
    """A process we supervise does not stay up."""

    code = "child_failed"

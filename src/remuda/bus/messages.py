"""What users of the bus see: messages, the connection's state, and the ways a request fails."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from remuda.core.bus_reach import UnreachedBus
from remuda.core.errors import BusUnusable, NodeUnreachable, PeerFailed


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message. `respond` is None when the sender expects no answer."""

    subject: str
    payload: bytes
    respond: Callable[[bytes], Awaitable[None]] | None
    unheard: bool = False  # The server's own answer to a request on a subject without subscribers.


Handler = Callable[[Incoming], Awaitable[None]]
Taker = Callable[[Incoming], None]
"""Done with a message in a moment."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """The first attempt is not over."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Connected:
    """All subscriptions stand, each confirmed by the server."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Down:
    """Not connected, and trying again for ever. `reason` is for people and holds no secrets."""

    reason: str
    since: datetime
    unreached: UnreachedBus | None = None  # None: it was reached, and something else is wrong.


State = Connecting | Connected | Down


class BusUnreached(BusUnusable):
    """No connection came about."""

    def __init__(self, unreached: UnreachedBus, advice: str) -> None:
        super().__init__(f"{unreached}; {advice}")
        self.unreached = unreached


class NoResponders(NodeUnreachable):
    """The subject has no subscriber: known at once, unlike a time-out."""


class RequestTimedOut(PeerFailed):
    """A subscriber may have heard the request, and may still be at work on it."""

    code = "request_timed_out"

"""What operations need of the bus."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol


class Heard(Protocol):
    @property
    def subject(self) -> str: ...

    @property
    def payload(self) -> bytes: ...


class Lines(Protocol):
    """The bus. Raises BusUnusable while it is down, BusRefused when it does not let us."""

    async def request(self, subject: str, payload: bytes, limit: timedelta) -> bytes:
        """The reply. Raises NodeUnreachable when nobody listens, and PeerFailed after `limit`: somebody may
        have heard it then, and may be at work on it."""
        ...

    async def publish(self, subject: str, payload: bytes) -> None: ...

    async def subscribe(self, subject: str, handler: Callable[[Heard], Awaitable[None]]) -> object:
        """Returns when the server has confirmed it, however long that takes."""
        ...


class PatientLines(Lines, Protocol):
    async def request(
        self, subject: str, payload: bytes, limit: timedelta, *, on_gap: Callable[[], None] | None = None
    ) -> bytes:
        """The same. With `on_gap` a lost connection ends nothing: that is called, for the reply may have been
        missed, and one that comes when the bus is back counts."""
        ...


class Taps(Protocol):
    """A bus connection on which nothing waits behind what is tapped."""

    async def tap(self, subject: str, take: Callable[[Heard], None]) -> Callable[[], Awaitable[None]]:
        """Returns when the server has confirmed it, however long that takes; answers how to end it."""
        ...

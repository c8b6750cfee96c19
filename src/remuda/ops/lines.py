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


class Taps(Protocol):
    """A bus connection on which nothing waits behind what is tapped."""

    async def tap(self, subject: str, take: Callable[[Heard], None]) -> Callable[[], Awaitable[None]]:
        """Returns when the server has confirmed it, however long that takes; answers how to end it."""
        ...

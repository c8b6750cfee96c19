"""What the bus client needs of one connection, from open to lost. `nats` implements it; tests have a broker
in memory."""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Protocol

import anyio

from remuda.bus.auth import Login, Servers
from remuda.bus.messages import Receiver

SendMessage = Callable[[str, bytes], Awaitable[None]]


class Link(Protocol):
    """A connection. Once lost it stays lost, and everything that waits on it fails at once."""

    @property
    def group(self) -> str:
        """Links of one group share a subscription's messages between them."""
        ...

    @property
    def lost(self) -> bool: ...

    @property
    def reason(self) -> str:
        """Why it was lost."""
        ...

    async def open(self, servers: Servers, login: Login, *, name: str, tls: ssl.SSLContext | None) -> object:
        """Connect and log in. Raises BusUnusable, or BusRefused when the credentials are not accepted."""
        ...

    def require(self) -> None:
        """Raises BusUnusable once the link is lost."""
        ...

    async def attach(self, receivers: Sequence[Receiver]) -> None:
        """Subscribe, and return when the server has agreed. Raises BusRefused when it did not."""
        ...

    async def detach(self, receiver: Receiver) -> None:
        """Has the server send no more of it. Without effect where it is not attached."""
        ...

    async def publish(self, subject: str, payload: bytes) -> None: ...

    async def ask(self, subject: str, payload: bytes, inbox: str, answered: anyio.Event) -> None:
        """Publish what is to be answered to `inbox`, and return when `answered` is set.

        Raises BusRefused, and BusUnusable once the link is lost."""
        ...

    async def round_trip(self, limit: timedelta) -> None:
        """Ping the server. Raises BusUnusable when no answer comes in time."""
        ...

    async def prove(self, limit: timedelta) -> None:
        """The same, and a link that does not answer is lost."""
        ...

    async def retire(self, limit: timedelta) -> None:
        """Take no more messages, see open requests and answers through, then close."""
        ...

    async def close(self) -> None: ...


MakeLink = Callable[[str, Callable[[Link], None], SendMessage], Link]
"""From a group, what is known of the loss, and the way for answers once the link is lost."""

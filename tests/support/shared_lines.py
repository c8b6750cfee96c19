"""A bus between frontends in one process, without a server and without delays."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from remuda.core.errors import BusUnusable
from remuda.ops.ports import BusMessage

Handler = Callable[[BusMessage], Awaitable[None]]


@dataclass(frozen=True)
class Sent:
    subject: str
    payload: bytes


class SharedLines:
    """Whoever publishes is heard by all at once, itself included."""

    def __init__(self) -> None:
        self.down = False
        self.lost = set[str]()  # Subjects whose messages do not arrive.
        self.sent: list[Sent] = []
        self._handlers = defaultdict[str, list[Handler]](list)

    async def request(self, subject: str, payload: bytes, limit: timedelta) -> bytes:
        raise AssertionError("nobody is asked here")

    async def publish(self, subject: str, payload: bytes) -> None:
        if self.down:
            raise BusUnusable("the bus is down")
        self.sent.append(Sent(subject, payload))
        for handler in () if subject in self.lost else self._handlers[subject]:
            await handler(Sent(subject, payload))

    async def subscribe(self, subject: str, handler: Handler) -> object:
        self._handlers[subject].append(handler)
        return self

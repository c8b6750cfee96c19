"""What a worker needs of the frontend, of the bus, of the machine and of the part that runs its backends."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from remuda.core.bus_reach import UnreachedBus
from remuda.core.ids import NodeId
from remuda.wire.nodes import (
    BusTrouble,
    Departure,
    Heartbeat,
    HeartbeatReply,
    ModelRow,
    RegisterReply,
    RegisterRequest,
    Report,
)
from remuda.worker.enrolment import IssuedBusUser
from remuda.worker.hardware.model import Hardware


class FrontendCalls(Protocol):
    """Raises FrontendUnreachable where trying again may help, and a Rejected where it does not."""

    async def register(self, request: RegisterRequest) -> RegisterReply: ...

    async def heartbeat(self, node: NodeId, beat: Heartbeat) -> HeartbeatReply: ...

    async def bus_trouble(self, node: NodeId, trouble: BusTrouble) -> None: ...

    async def drain(self, node: NodeId, departure: Departure) -> None: ...

    async def deregister(self, node: NodeId, departure: Departure) -> None: ...

    async def models(self, node: NodeId) -> Sequence[ModelRow]: ...


@dataclass(frozen=True, slots=True)
class BusTarget:
    """Where the bus is, and who we are to it."""

    url: str = field(repr=False)  # May hold a password.
    credentials: Callable[[], IssuedBusUser | None]  # Asked at each connect; None: the frontend issued none.


class BusRequest(Protocol):
    """A message. `respond` is None when the sender expects no answer."""

    @property
    def payload(self) -> bytes: ...

    @property
    def respond(self) -> Callable[[bytes], Awaitable[None]] | None: ...


Hear = Callable[[BusRequest], Awaitable[None]]
Publish = Callable[[str, bytes], Awaitable[None]]


class WorkerBus(Protocol):
    """One connection, kept for ever. Not connected is a state, not an error."""

    @property
    def trouble(self) -> str:
        """Why the bus cannot be used now, in words without secrets; empty while it can."""
        ...

    @property
    def unreached(self) -> UnreachedBus | None:
        """Where no connection comes about; None while it is connected, or something else is wrong."""
        ...

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the connection until cancelled. Started does not mean connected."""
        ...

    @property
    def changed(self) -> anyio.Event:
        """Set at the next change of `trouble`. Take it before looking, and no change is missed."""
        ...

    async def subscribe(self, subject: str, hear: Hear) -> None:
        """Returns when the server has confirmed it, however long the bus is down before that.

        Raises BusRefused when the server refuses. Survives reconnects. Messages are heard side by side; the
        connection that brought one is kept until `hear` returns, for it alone may answer.
        """
        ...

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send and forget. Raises BusUnusable while the bus is down."""
        ...

    def rotate(self) -> None:
        """The credentials have changed: move over to a new connection, missing nothing."""
        ...


OpenBus = Callable[[BusTarget], WorkerBus]


class BusHandlers(Protocol):
    def handlers(self, node: NodeId, publish: Publish) -> Mapping[str, Hear]:
        """The handlers of messages to this node, by subject. From now on `publish` is the way to answer back
        beyond replies."""
        ...


class HardwareSource(Protocol):
    async def current(self) -> Hardware:
        """The machine with the figures of now. Never raises, and answers within `limits.HARDWARE_S`."""
        ...


class ReportSource(Protocol):
    def report(self) -> Report:
        """What is installed, running and in hand; the reporter adds boot and sequence."""
        ...

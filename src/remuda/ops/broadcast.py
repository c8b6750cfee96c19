"""How frontends announce to each other that something has changed. A lost message costs one interval: each
frontend also reads what is stored now and then.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, Generic, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.broadcast import DebouncedBroadcast
from remuda.core.errors import Rejected, RemudaError
from remuda.core.events import Notifier
from remuda.core.ids import FrontendId
from remuda.ops.ports import BusMessage, BusPort
from remuda.wire import subjects
from remuda.wire.broadcasts import ChangeMessage, FrontendMessage
from remuda.wire.codec import decode, encode

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=FrontendMessage)


class FrontendSubject(Generic[M]):
    """One subject on which frontends publish to each other. `undecodable` stands for each message that cannot
    be decoded; None: those are dropped."""

    def __init__(
        self,
        bus: BusPort,
        subject: str,
        frontend: FrontendId,
        kind: type[M],
        *,
        undecodable: M | None = None,
    ) -> None:
        self._bus = bus
        self._subject = subject
        self._frontend = frontend
        self._kind = kind
        self._undecodable = undecodable

    async def publish(self, message: M) -> bool:
        """Whether it was sent."""
        try:
            await self._bus.publish(self._subject, encode(message))
        except RemudaError as error:
            log.debug("change_not_published", subject=self._subject, reason=error.message)
            return False
        return True

    async def listen(self, receive: Callable[[M], None]) -> None:
        """Subscribes. `receive` gets what other frontends publish."""

        async def handle(message: BusMessage) -> None:
            decoded = self._decoded(message)
            if decoded is not None and decoded.frontend != self._frontend:
                receive(decoded)

        try:
            await self._bus.subscribe(self._subject, handle)
        except RemudaError as error:
            log.warning("changes_not_received", subject=self._subject, reason=error.message)

    def _decoded(self, message: BusMessage) -> M | None:
        try:
            return decode(self._kind, message.payload)
        except Rejected as error:
            log.warning("change_not_decoded", subject=self._subject, reason=error.message)
            return self._undecodable


_GAP: Final = timedelta(milliseconds=100)


class OpsChanged(ChangeMessage):
    """Frontend to frontends, ours: look at the operations again."""


class ChangeSignal:
    """Wakes what waits for changed operations, on every frontend."""

    def __init__(self, bus: BusPort, frontend: FrontendId, gap: timedelta = _GAP) -> None:
        self._frontend = frontend
        self._changes = Notifier()
        self._subject = FrontendSubject(
            bus, subjects.OPS_CHANGED, frontend, OpsChanged, undecodable=OpsChanged()
        )
        self._broadcast = DebouncedBroadcast(self._publish, gap_s=gap.total_seconds())

    @property
    def changed(self) -> anyio.Event:
        """Set at the next change. Take it before looking at the store, and none is missed."""
        return self._changes.changed

    def notify(self) -> None:
        """Something was written. Never waits."""
        self._changes.notify()
        self._broadcast.send()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._subject.listen, self._receive)
            task_status.started()
            await self._broadcast.run()

    async def _publish(self) -> bool:
        return await self._subject.publish(OpsChanged(frontend=self._frontend))

    def _receive(self, _: OpsChanged) -> None:
        self._changes.notify()

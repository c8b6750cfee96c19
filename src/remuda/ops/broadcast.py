"""Announces that something has changed, so that listeners read it again: at once on this frontend, over the
bus on the others. A lost message costs one interval.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Final, Generic, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import Rejected, RemudaError
from remuda.core.events import AutoResetEvent, Notifier
from remuda.core.ids import FrontendId
from remuda.ops.ports import BusMessage, BusPort
from remuda.wire import subjects
from remuda.wire.codec import OMIT_EMPTY, OptionalMessage, decode, encode

log = structlog.get_logger(__name__)


class ChangeMessage(OptionalMessage):
    frontend: Annotated[str, OMIT_EMPTY] = ""  # Who says it, and need not be told.


M = TypeVar("M", bound=ChangeMessage)


class Broadcast(Generic[M]):
    """`run` it once. `message` makes what is sent next; `heard` gets what other frontends sent."""

    def __init__(
        self,
        bus: BusPort,
        subject: str,
        frontend: FrontendId,
        message: Callable[[], M],
        heard: Callable[[M], None],
        *,
        kind: type[M],
        gap_s: float,
    ) -> None:
        self._bus = bus
        self._subject = subject
        self._frontend = frontend
        self._message = message
        self._heard = heard
        self._kind = kind
        self._gap_s = gap_s
        self._wanted = AutoResetEvent()

    def send(self) -> None:
        """Soon. What changes until then, or within the gap after a message, is told together. Never waits."""
        self._wanted.set()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            while True:
                await self._wanted.wait()
                await self._publish()
                await anyio.sleep(self._gap_s)

    async def _listen(self) -> None:
        try:
            await self._bus.subscribe(self._subject, self._hear)
        except RemudaError as error:
            log.warning("changes_not_received", subject=self._subject, reason=error.message)

    async def _publish(self) -> None:
        try:
            await self._bus.publish(self._subject, encode(self._message()))
        except RemudaError as error:  # The others look by themselves, a little later.
            log.debug("change_not_published", subject=self._subject, reason=error.message)

    async def _hear(self, message: BusMessage) -> None:
        try:
            message_body = decode(self._kind, message.payload)
        except Rejected:
            message_body = self._kind()
        if message_body.frontend != self._frontend:
            self._heard(message_body)


_GAP: Final = timedelta(milliseconds=100)


class OpsChanged(ChangeMessage):
    """Frontend to frontends, ours: look at the operations again."""


class ChangeSignal:
    def __init__(self, bus: BusPort, frontend: FrontendId, gap: timedelta = _GAP) -> None:
        self._changes = Notifier()
        self._broadcast = Broadcast(
            bus,
            subjects.OPS_CHANGED,
            frontend,
            lambda: OpsChanged(frontend=frontend),
            lambda _: self._changes.notify(),
            kind=OpsChanged,
            gap_s=gap.total_seconds(),
        )

    @property
    def changed(self) -> anyio.Event:
        """Set at the next change. Take it before looking at the store, and none is missed."""
        return self._changes.changed

    def notify(self) -> None:
        """Something was written. Never waits."""
        self._changes.notify()
        self._broadcast.send()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await self._broadcast.run()

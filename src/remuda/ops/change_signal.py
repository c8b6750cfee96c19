"""The news that operations have changed: at once on this frontend, by the bus on the others.

It says no more than that. Whoever wakes reads the store; a lost signal costs one interval.
"""

from datetime import timedelta
from typing import Annotated, Final

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

_GAP: Final = timedelta(milliseconds=100)


class OpsChanged(OptionalMessage):
    """Frontend to frontends, ours: look at the operations again."""

    frontend: Annotated[str, OMIT_EMPTY] = ""  # Who says it, and need not be told.


class ChangeSignal:
    def __init__(self, lines: BusPort, frontend: FrontendId, gap: timedelta = _GAP) -> None:
        self._lines = lines
        self._frontend = frontend
        self._gap = gap
        self._changes = Notifier()
        self._to_tell = AutoResetEvent()

    @property
    def changed(self) -> anyio.Event:
        """Set at the next change. Take it before looking at the store, and none is missed."""
        return self._changes.changed

    def notify(self) -> None:
        """Something was written. Never waits."""
        self._changes.notify()
        self._to_tell.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            task_status.started()
            while True:
                await self._to_tell.wait()
                await self._tell()
                await anyio.sleep(self._gap.total_seconds())  # What changes meanwhile is told together.

    async def _listen(self) -> None:
        try:
            await self._lines.subscribe(subjects.OPS_CHANGED, self._hear)
        except RemudaError as error:
            log.warning("ops_signal_not_heard", reason=error.message)

    async def _tell(self) -> None:
        try:
            await self._lines.publish(subjects.OPS_CHANGED, encode(OpsChanged(frontend=self._frontend)))
        except RemudaError as error:  # The others look by themselves, a little later.
            log.debug("ops_signal_lost", reason=error.message)

    async def _hear(self, message: BusMessage) -> None:
        try:
            said = decode(OpsChanged, message.payload)
        except Rejected:
            said = OpsChanged()
        if said.frontend != self._frontend:
            self._changes.notify()

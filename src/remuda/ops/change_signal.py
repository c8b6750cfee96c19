"""Tells that operations have changed: at once on this frontend, over the bus on the others."""

from datetime import timedelta
from typing import Final

import anyio
from anyio.abc import TaskStatus

from remuda.core.events import Notifier
from remuda.core.ids import FrontendId
from remuda.ops.broadcast import Broadcast, ChangeMessage
from remuda.ops.ports import BusPort
from remuda.wire import subjects

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

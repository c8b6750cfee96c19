"""Owns tasks that are started by calls from outside its task group."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Never, TypeVarTuple, Unpack

import anyio
from anyio.abc import TaskGroup, TaskStatus

Args = TypeVarTuple("Args")


class TaskOwner:
    """Tasks begin while it is open, and none outlives it: those still at work at its end are waited for, or
    cancelled with the task that opened it."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None

    @property
    def is_open(self) -> bool:
        return self._group is not None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        try:
            async with anyio.create_task_group() as self._group:
                yield
        finally:
            self._group = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Open until cancelled."""
        async with self.open():
            task_status.started()
            await anyio.sleep_forever()

    def start(self, work: Callable[[Unpack[Args]], Coroutine[object, Never, object]], *args: *Args) -> None:
        assert self._group is not None, "tasks are started only while their owner is open"
        self._group.start_soon(work, *args)

"""Tasks that are started by calls from outside their task group, and ones that end together."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Never, TypeVarTuple, Unpack

import anyio
from anyio.abc import TaskGroup, TaskStatus

from remuda.core.errors import RemudaError

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


async def side_by_side(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Does all of them at once, each by its number. The first that fails ends the others, and is raised."""
    failures: list[RemudaError] = []

    async def one(number: int) -> None:
        try:
            await work(number)
        except RemudaError as error:
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)
    if failures:
        raise failures[0]

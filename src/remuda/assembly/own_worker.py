"""The worker process that `remuda up` starts on its own machine: restarted when it exits, with the reason
reported to the fleet."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.host.children import Child, LaunchSpec, supervise
from remuda.host.folder import DataFolder, write_json
from remuda.host.restarts import RestartPolicy

log = structlog.get_logger()

_RESTARTS: Final = RestartPolicy(
    first=timedelta(milliseconds=500), most=timedelta(seconds=30), healthy_after=timedelta(seconds=30)
)
_ERROR: Final = "error: "  # Prefix of the line in which our commands report an error; see cli.exits.


class OwnWorker:
    """`tell_fleet` is called with the reason each time the worker exits; `show` with each line it prints."""

    def __init__(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        folder: DataFolder,
        *,
        tell_fleet: Callable[[str], Awaitable[None]],
        show: Callable[[str], None],
    ) -> None:
        self.trouble = ""  # The last process's error message; empty: none.
        self._folder = folder
        self._tell_fleet = tell_fleet
        self._show = show
        self._error = ""
        grace = timedelta(seconds=limits.LOCAL_WORKER_STOP_S)
        self._spec = LaunchSpec("worker", argv, env=env, output=self._hear, grace=grace)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            # An exit with success was asked for, for example by an administrator who removed this node.
            await supervise(
                self._spec,
                _RESTARTS,
                on_start=self._started,
                on_end=self._ended,
                ends_with_success=True,
                task_status=task_status,
            )
        finally:
            self._forget_ending()

    def _hear(self, line: str) -> None:
        if line.startswith(_ERROR):
            self._error = line.removeprefix(_ERROR)
        self._show(line)

    async def _started(self, child: Child) -> None:
        self._error = ""

    async def _ended(self, ending: str) -> None:
        self.trouble = self._error
        why = f"its worker ended ({self._error or ending}); remuda up starts it again"
        self._keep_ending(self._error or ending)
        with anyio.move_on_after(limits.STORE_PING_S) as scope:
            try:
                await self._tell_fleet(why)
            except RemudaError as error:
                log.warning("worker_end_not_recorded", reason=error.message)
        if scope.cancelled_caught:
            log.warning("worker_end_not_recorded", reason="the database does not answer")

    def _keep_ending(self, why: str) -> None:
        """For `remuda doctor`. Best effort: when the disk is full, doctor finds that by itself."""
        with suppress(OSError):
            write_json(self._folder.worker_ending, {"reason": why})

    def _forget_ending(self) -> None:
        with suppress(OSError):
            self._folder.worker_ending.unlink(missing_ok=True)

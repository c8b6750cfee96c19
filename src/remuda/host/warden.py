"""The warden: a small process that ends what a worker started when the worker itself no longer can.

It waits at the end of a pipe. However the worker dies, the kernel closes that pipe; then the warden kills
every process of that worker's life, and ends. The program itself is in `descendants`.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import anyio
import anyio.abc
import structlog

from remuda.core.ids import BootId
from remuda.host import descendants
from remuda.host.descendants import Identity
from remuda.host.restarts import Restart, RestartPolicy, after_exit

log = structlog.get_logger(__name__)

_LAST_SWEEP_LIMIT_S = 10.0
_KILL_LIMIT_S = 1.0
_RESTARTS = RestartPolicy(
    first=timedelta(milliseconds=100), most=timedelta(seconds=30), healthy_after=timedelta(seconds=60)
)


class Warden:
    """`run` it in a task group that ends after everything that starts processes."""

    def __init__(self, owner: str, boot: BootId) -> None:
        self._owner = owner
        self._boot = boot
        self._leaders: set[Identity] = set()
        self._pipe: int | None = None

    def watch(self, leader: Identity) -> None:
        """Also end the session that this process leads: not everything in it may keep its mark."""
        self._leaders.add(leader)
        self._tell("+", leader)

    def forget(self, leader: Identity) -> None:
        """Nothing of it is left, and its number may become somebody else's."""
        self._leaders.discard(leader)
        self._tell("-", leader)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Have a warden at all times; started means that there is one.

        Cancelled, it lets the warden end what is left of this life, within a bound, and go.
        """
        report: Callable[[], None] = task_status.started
        short_lives = 0
        while True:
            began = anyio.current_time()
            try:
                process = await self._start()
                report()
                report = _nothing
                ending = await self._until_it_ends(process)
            except OSError as error:
                ending = error.strerror or "cannot be started"
            decision = after_exit(_RESTARTS, short_lives, timedelta(seconds=anyio.current_time() - began))
            assert isinstance(decision, Restart), "this policy never gives up"
            short_lives = decision.short_lives
            log.error("supervisor_ended", ending=ending, restart_in_s=decision.delay.total_seconds())
            await anyio.sleep(decision.delay.total_seconds())

    async def _start(self) -> anyio.abc.Process:
        source, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        # Where there is no /proc it needs an installed package.
        bare = ["-I", "-S"] if sys.platform == "linux" else ["-I"]
        try:
            with anyio.CancelScope(shield=True):  # Cancelled half-way, nobody would hold the process.
                process = await anyio.open_process(
                    [sys.executable, *bare, descendants.__file__, self._owner, self._boot],
                    stdin=source,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,  # Whoever kills our group does not mean the warden.
                )
        except OSError:
            self._close_pipe()
            raise
        finally:
            os.close(source)
        log.info("supervisor_started", pid=process.pid)
        for leader in self._leaders:
            self._tell("+", leader)
        return process

    async def _until_it_ends(self, process: anyio.abc.Process) -> str:
        try:
            return f"exit code {await process.wait()}"
        finally:
            self._close_pipe()
            with anyio.CancelScope(shield=True):
                await _dismiss(process)

    def _tell(self, verb: str, leader: Identity) -> None:
        if self._pipe is None:  # Told when there is a warden again.
            return
        try:
            os.write(self._pipe, f"{verb} {leader.pid} {leader.started}\n".encode("ascii"))
        except OSError as error:  # It ended, and the next one is told; or it is suspended and its pipe full.
            log.warning("supervisor_not_told", reason=error.strerror)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


async def _dismiss(process: anyio.abc.Process) -> None:
    """Its pipe is closed: give it the time for a last look around."""
    with anyio.move_on_after(_LAST_SWEEP_LIMIT_S):
        await process.wait()
        return
    log.error("supervisor_not_done", pid=process.pid)
    process.kill()
    with anyio.move_on_after(_KILL_LIMIT_S):
        await process.wait()


def _nothing() -> None:
    """Said before."""

"""A process with all its descendants: which are alive, waiting until all have ended, and killing them.
Those that lose their parent come to this process, which reaps them (only on Linux); and when this process
is killed itself, the reaper ends them.

The reaper is a small process that waits at the end of a pipe. However the worker dies, the kernel closes
that pipe; then the reaper kills every process of that worker's life, and ends. Its program is in
`descendants`.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from remuda.core.ids import BootId
from remuda.host import descendants, tether
from remuda.host.descendants import Identity, Mark, Seen, everyone
from remuda.host.restarts import Restart, RestartPolicy, after_exit

log = structlog.get_logger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_REAP_EVERY_S = 5.0


def tied(argv: Sequence[str], *, niceness: int = 0) -> list[str]:
    """The command that runs the program at this absolute path tied to this process, where the kernel can, and
    giving way to others by so much.

    A program in between, because a function between fork and exec can deadlock where threads run.
    """
    if sys.platform != "linux":
        return ["/usr/bin/nice", "-n", str(niceness), *argv] if niceness else [*argv]
    return [sys.executable, "-I", "-S", tether.__file__, f"{os.getpid()}:{niceness}", *argv]


def adopt_orphans() -> None:
    """From now on what our descendants leave behind becomes our child instead of init's."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log.warning("orphans_not_adopted")


async def reap_orphans() -> None:
    """Runs until cancelled: reaps zombies that no code waits for, since reaping others loses exit codes."""
    if sys.platform != "linux":
        return
    before: frozenset[Identity] = frozenset()
    while True:
        await anyio.sleep(_REAP_EVERY_S)
        before = await reap_once(before)


async def reap_once(before: frozenset[Identity]) -> frozenset[Identity]:
    """One pass, given the zombies that the pass before left; answers those that it leaves."""
    if not _any_zombie():
        return frozenset()
    processes = await anyio.to_thread.run_sync(everyone, abandon_on_cancel=True)
    zombies = [seen for seen in processes if seen.zombie and seen.parent == os.getpid()]
    left = set[Identity]()
    for seen in zombies:
        # Our own children are waited for at once, so one seen in two passes has no waiter.
        if _came_to_us(seen) or seen.identity in before:
            reap(seen.pid)
        else:
            left.add(seen.identity)
    return frozenset(left)


def _came_to_us(seen: Seen) -> bool:
    """A child that we started is in our session, or leads its own."""
    return seen.session not in (os.getsid(0), seen.pid)


def _any_zombie() -> bool:
    assert sys.platform == "linux", "orphans are adopted on Linux only"
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # There is no child at all.
        return False


def reap(pid: int) -> None:
    """Reap a zombie that no other code waits for."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


_POLL_FIRST_S = 0.01
_POLL_MOST_S = 0.2


class ProcessFamily:
    """Those in `leaders`, those whose mark fits, and all they started. Who was found once stays known.

    Leaders are children of this process that are waited for.
    """

    def __init__(self, leaders: Collection[Identity], marked: Callable[[Mark], bool]) -> None:
        self._leaders = leaders
        self._marked = marked
        self._known = frozenset(leaders)  # Replaced, not changed: a thread may be reading it.

    def present(self) -> list[Seen]:
        """Everyone of the family who has a pid now, zombies too."""
        found = descendants.family(descendants.everyone(), self._known, self._marked)
        self._known |= {seen.identity for seen in found}
        return found

    async def alive(self) -> list[Seen]:
        """The zombies that came to us when their parents died are cleared away meanwhile."""
        # In a thread: reading the environment of a process that hangs in the kernel may block.
        found = await anyio.to_thread.run_sync(self.present, abandon_on_cancel=True)
        for seen in found:
            if seen.zombie and seen.parent == os.getpid() and seen.identity not in self._leaders:
                reap(seen.pid)
        return [seen for seen in found if not seen.zombie]

    async def until_gone(self) -> None:
        await self._until_gone(lambda seen: None)

    async def kill(self) -> None:
        """Until none is left: those being killed may be starting more."""
        await self._until_gone(lambda seen: descendants.send(seen.identity, signal.SIGKILL))

    async def _until_gone(self, act: Callable[[Seen], None]) -> None:
        pause_s = _POLL_FIRST_S
        while left := await self.alive():
            for seen in left:
                act(seen)
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MOST_S)


_LAST_SWEEP_LIMIT_S = 10.0
_KILL_LIMIT_S = 1.0
_RESTARTS = RestartPolicy(
    first=timedelta(milliseconds=100), most=timedelta(seconds=30), healthy_after=timedelta(seconds=60)
)


class Reaper:
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
        """Nothing of it is left, and its number may be reused."""
        self._leaders.discard(leader)
        self._tell("-", leader)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Have a reaper at all times; started means that there is one.

        Cancelled, it lets the reaper end what is left of this life, within a bound, and go.
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
            log.error("reaper_ended", ending=ending, restart_in_s=decision.delay.total_seconds())
            await anyio.sleep(decision.delay.total_seconds())

    async def _start(self) -> anyio.abc.Process:
        source, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        # Where there is no /proc it needs an installed package.
        bare = ["-I", "-S"] if sys.platform == "linux" else ["-I"]
        try:
            with anyio.CancelScope(shield=True):  # Cancelled half-way, the process would have no owner.
                process = await anyio.open_process(
                    [sys.executable, *bare, descendants.__file__, self._owner, self._boot],
                    stdin=source,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,  # A signal to our group is not meant for the reaper.
                )
        except OSError:
            self._close_pipe()
            raise
        finally:
            os.close(source)
        log.info("reaper_started", pid=process.pid)
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
        if self._pipe is None:  # Told when there is a reaper again.
            return
        try:
            os.write(self._pipe, f"{verb} {leader.pid} {leader.started}\n".encode("ascii"))
        except (
            OSError
        ) as error:  # It ended, and the next one gets this; or it is suspended and its pipe full.
            log.warning("reaper_not_reached", reason=error.strerror)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


async def _dismiss(process: anyio.abc.Process) -> None:
    """Its pipe is closed: give it the time for a last look around."""
    with anyio.move_on_after(_LAST_SWEEP_LIMIT_S):
        await process.wait()
        return
    log.error("reaper_not_done", pid=process.pid)
    process.kill()
    with anyio.move_on_after(_KILL_LIMIT_S):
        await process.wait()


def _nothing() -> None:
    """Said before."""

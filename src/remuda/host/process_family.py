"""A process with all its descendants: which are alive, waiting until all have ended, and killing them.
Those that lose their parent come to this process, which reaps them (only on Linux).
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress

import anyio
import anyio.to_thread
import structlog

from remuda.host import descendants
from remuda.host.descendants import Identity, Mark, Seen, everyone

log = structlog.get_logger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_REAP_EVERY_S = 5.0


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

    Leaders are children of this process that somebody waits for.
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
        # In a thread: a process that hangs in the kernel may hold whoever reads its environment.
        found = await anyio.to_thread.run_sync(self.present, abandon_on_cancel=True)
        for seen in found:
            if seen.zombie and seen.parent == os.getpid() and seen.identity not in self._leaders:
                reap(seen.pid)
        return [seen for seen in found if not seen.zombie]

    async def until_gone(self) -> None:
        await self._until_gone(lambda seen: None)

    async def kill(self) -> None:
        """Until nobody is left: those being killed may be starting more."""
        await self._until_gone(lambda seen: descendants.send(seen.identity, signal.SIGKILL))

    async def _until_gone(self, act: Callable[[Seen], None]) -> None:
        pause_s = _POLL_FIRST_S
        while left := await self.alive():
            for seen in left:
                act(seen)
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MOST_S)

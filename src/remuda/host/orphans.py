"""Orphans: processes that lost their parent come to this one, which reaps them. Only on Linux."""

import ctypes
import os
import sys
from contextlib import suppress

import anyio
import anyio.to_thread
import structlog

from remuda.host.descendants import Identity, Seen, everyone

log = structlog.get_logger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_REAP_EVERY_S = 5.0


def adopt_orphans() -> None:
    """From now on what our descendants leave behind becomes our child instead of init's."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log.warning("orphans_not_adopted")


async def reap_orphans() -> None:
    """For ever: clear away zombies that nobody waits for. Whoever waits for one would lose its exit code."""
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
        # Who waits for a child of ours does so at once: one that is here twice is nobody's.
        if _came_to_us(seen) or seen.identity in before:
            reap(seen.pid)
        else:
            left.add(seen.identity)
    return frozenset(left)


def _came_to_us(seen: Seen) -> bool:
    """A child that we started is in our session, or leads its own."""
    return seen.session not in (os.getsid(0), seen.pid)


def _any_zombie() -> bool:
    assert sys.platform == "linux", "nobody comes to us elsewhere"
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # There is no child at all.
        return False


def reap(pid: int) -> None:
    """Clear away a zombie for which nobody else waits."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)

"""Ends, at start, the processes that an earlier life of this worker left running."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import anyio
import psutil
import structlog

from remuda.core.ids import BootId
from remuda.host import descendants
from remuda.host.descendants import Seen
from remuda.host.process_family import ProcessFamily

log = structlog.get_logger(__name__)

_GRACE = timedelta(seconds=5)
_LOOK_LIMIT_S = 5.0  # Reading about a process that hangs in the kernel may hang as well.
_KILL_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Survivor:
    pid: int
    instance: str  # Of the process it descends from; empty when it hides its mark.
    command: tuple[str, ...]
    gone: bool


async def end_survivors(owner: str, boot: BootId, grace: timedelta = _GRACE) -> tuple[Survivor, ...]:
    """End what boots of `owner` before this one left, within a bound, and tell what it was.

    Only for whoever holds the data folder alone: a second worker there would lose its processes.
    """
    kin = ProcessFamily((), lambda mark: mark.owner == owner and mark.boot != boot)
    found = {seen: _command(seen.pid) for seen in await _alive(kin)}
    if not found:
        return ()
    left = await _end(kin, found, grace)
    survivors = tuple(_survivor(seen, command, seen.pid not in left) for seen, command in found.items())
    for survivor in survivors:
        tell = log.warning if survivor.gone else log.error
        tell("survivor_found", pid=survivor.pid, instance=survivor.instance, gone=survivor.gone)
    return survivors


async def _end(kin: ProcessFamily, found: Iterable[Seen], grace: timedelta) -> frozenset[int]:
    """The pids of those that did not end."""
    for seen in found:
        descendants.send(seen.identity, signal.SIGTERM)
        descendants.send(seen.identity, signal.SIGCONT)  # Suspended, it would not hear the first.
    with anyio.move_on_after(grace.total_seconds()):
        await kin.until_gone()
        return frozenset()
    with anyio.move_on_after(_KILL_LIMIT_S):
        await kin.kill()
        return frozenset()
    return frozenset(seen.pid for seen in await _alive(kin))


async def _alive(kin: ProcessFamily) -> list[Seen]:
    with anyio.move_on_after(_LOOK_LIMIT_S):
        return await kin.alive()
    log.error("survivors_not_looked_for")
    return []


def _survivor(seen: Seen, command: tuple[str, ...], gone: bool) -> Survivor:
    return Survivor(seen.pid, seen.mark.instance if seen.mark else "", command, gone)


def _command(pid: int) -> tuple[str, ...]:
    try:
        return tuple(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ()

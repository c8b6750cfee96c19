"""The backend processes of this worker: one per key, with an entry that stays until the process is gone;
those that an earlier life of this worker left running are ended at start.
"""

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import anyio
import psutil
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import BackendFailed, StartFailed, Unavailable
from remuda.core.ids import BootId
from remuda.core.tasks import TaskOwner
from remuda.host import descendants
from remuda.host.descendants import Seen
from remuda.host.process_family import ProcessFamily
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.entry import ProcessEntry, SupervisorContext
from remuda.worker.processes.model import (
    USUAL,
    BackendTimeouts,
    Launch,
    PortBook,
    ProcessPhase,
    ProcessStatus,
    Protocol,
    Stopped,
)
from remuda.worker.processes.ports import Backends, Machine

log = structlog.get_logger(__name__)


class Supervisor:
    """`run` it once; everything else may be called from any task meanwhile."""

    def __init__(
        self,
        machine: Machine,
        backends: Backends,
        ports: PortBook,
        *,
        clock: Clock,
        entropy: Entropy,
        changed: Callable[[], None],
        timeouts: BackendTimeouts = USUAL,
    ) -> None:
        self._context = SupervisorContext(machine, backends, ports, clock, entropy, changed, timeouts)
        self._entries: dict[ProcessKey, ProcessEntry] = {}
        self._tasks = TaskOwner()
        self._closing = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; then every process is ended, without being asked to free its memory first."""
        # Cancelling reaches every entry, and each ends its process first.
        await self._tasks.run(task_status=task_status)

    async def close(self) -> Sequence[Stopped]:
        """The orderly stop: nothing starts any more, and what runs is asked to free its memory first."""
        self._closing = True
        return await self.stop(tuple(self._entries), free=True)

    # Looking.

    def replicas(self) -> Sequence[ProcessStatus]:
        return [self._entries[key].replica for key in sorted(self._entries)]

    def usable(self, key: ProcessKey, name: str) -> ProcessStatus | None:
        entry = self._entries.get(key)
        return entry.replica if entry is not None and entry.usable(name) else None

    def named(self, text: str) -> Sequence[ProcessKey]:
        of_backend = {key for key, entry in self._entries.items() if text in entry.launch.names}
        exact = ProcessKey.parse(text)
        if exact in self._entries:
            return sorted(of_backend | {exact})
        return sorted(of_backend | {key for key in self._entries if key.model_id == text})

    def opened_otherwise(self, token: str) -> Sequence[ProcessKey]:
        """gRPC backends that were started with another token than this."""
        return [
            key
            for key, entry in sorted(self._entries.items())
            if entry.launch.recipe.protocol is Protocol.GRPC and entry.launch.recipe.token != token
        ]

    # Changing.

    async def confirm(self, key: ProcessKey) -> None:
        entry = self._entries.get(key)
        if entry is not None and not await entry.confirmed():
            await self.stop((key,), free=False)

    async def start(self, launch: Launch) -> ProcessStatus:
        while (entry := self._entries.get(launch.key)) is not None and not entry.serves(launch):
            [outcome] = await self.stop((launch.key,), free=True)
            if not outcome.gone:
                raise BackendFailed(f"{launch.key} cannot be replaced: {outcome.trouble}")
        if entry is None:
            entry = self._begin(launch)
        replica = await entry.settled()
        if replica.phase not in (ProcessPhase.READY, ProcessPhase.UNRESPONSIVE) or entry.gone.is_set():
            reason = entry.failure or replica.trouble or "it was stopped while starting"
            model, backend = launch.key.model_id, launch.backend
            what = (
                f"{model} did not start"
                if model == backend
                else f"{backend} could not be started for {model}"
            )
            stopped = entry.stopping and not entry.failure  # Which says nothing about the backend.
            raise (BackendFailed if stopped else StartFailed)(f"{what}: {reason}")
        return replica

    async def stop(self, keys: Sequence[ProcessKey], *, free: bool) -> Sequence[Stopped]:
        entries = [entry for key in keys if (entry := self._entries.get(key)) is not None]
        for entry in entries:
            entry.wish_stop(free=free)
        timeouts = self._context.timeouts
        # And a little for the kernel. What is not gone by then is reported, and still being ended.
        enough_s = (timeouts.free + timeouts.grace).total_seconds() + limits.BACKEND_END_AGAIN_S
        with anyio.move_on_after(enough_s):
            for entry in entries:
                await entry.gone.wait()
        return [entry.outcome() for entry in entries]

    async def free(self, key: ProcessKey) -> str:
        entry = self._entries.get(key)
        if entry is None or not entry.replica.pid:
            return f"nothing runs as {key}"
        return await self._context.backends.free(entry.replica.port, entry.launch.recipe)

    def _begin(self, launch: Launch) -> ProcessEntry:
        if not self._tasks.is_open or self._closing:
            raise Unavailable("this worker is stopping", hint="use another node")
        entry = self._entries[launch.key] = ProcessEntry(launch, self._context)
        self._tasks.start(entry.live, lambda: self._forget(entry))
        return entry

    def _forget(self, entry: ProcessEntry) -> None:
        """An entry is in the table for as long as it lives, and not a moment longer."""
        assert self._entries.pop(entry.launch.key) is entry, "one entry per key"


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

    Only for the sole holder of the data folder: a second worker there would lose its processes.
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

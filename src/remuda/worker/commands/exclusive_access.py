"""What this machine has of a backend, and exclusive access to it, under all its names, while it changes."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.to_thread import run_sync

from remuda.core.errors import BackendFailed, RemudaError
from remuda.gallery.references import same_source
from remuda.wire.backends import BackendUpgradeReply
from remuda.wire.nodes import StoppedReplica
from remuda.wire.process_keys import ProcessKey
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.listing import Listing, find_run_file
from remuda.worker.processes.model import ProcessStatus, Stopped
from remuda.worker.processes.ports import Supervision

_STOPPED_TOLD_S: Final = 60.0  # Longer than between any two reports.
_STOPPED_TOLD_MAX: Final = 64


def known_names(listed: Listing, name: str) -> frozenset[str]:
    """Every name of the backend that `name` stands for: its folder's, in its metadata, alias, meta."""
    found = listed.get(name)
    if found is None:
        return frozenset({name})
    same = [one for one in listed.backends if one.folder == found.folder]
    names = (text for one in same for text in (one.name, one.metadata.name, one.metadata.alias))
    return frozenset({name, found.folder.name, *names}) - {""}


def ordered_names(spec: InstallSpec | None) -> frozenset[str]:
    """The names that it will have."""
    return frozenset() if spec is None else frozenset({spec.name, spec.alias, spec.meta}) - {""}


class NameLocks:
    """One lock per name. Exclusive access to a backend takes the locks of all its names."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()  # Gone with their users.

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def held(self, names: Set[str]) -> AsyncIterator[None]:
        """Always taken in one order, so that no two wait for each other. Not to be nested."""
        async with AsyncExitStack() as stack:
            for name in sorted(names):
                lock = self._locks.get(name) or anyio.Lock()
                self._locks[name] = lock
                await stack.enter_async_context(lock)
            yield


R = TypeVar("R", bound=BackendUpgradeReply)


@dataclass(frozen=True, slots=True)
class InstalledState:
    """One look at a name. Without a run file there is nothing that could be started."""

    name: str
    names: frozenset[str]
    run_file: Path | None = None
    folder: Path | None = None
    digest: str = ""
    uri: str = ""  # Where it was installed from, as far as that is known.
    system: bool = False

    def has(self, digest: str, uri: str = "") -> bool:
        """It is here, and is these bytes where a digest is given; else from this source, where one is
        named: another tag is another version."""
        if self.run_file is None:
            return False
        if digest or not uri or not self.uri:
            return digest in ("", self.digest)
        return same_source(uri, self.uri)

    def came_from_elsewhere(self, uri: str) -> bool:
        """Another reference than this one is recorded."""
        return bool(uri and self.uri) and not self.system and not same_source(uri, self.uri)

    def lacks(self, digest: str, uri: str = "") -> bool:
        """It is here, and is something else."""
        return self.run_file is not None and not self.has(digest, uri)

    def runs(self, replica: ProcessStatus) -> bool:
        """The process is one of this backend's, under whatever name it was asked for."""
        return self.name in replica.names or (self.folder is not None and replica.folder == self.folder)


class ExclusiveAccess:
    def __init__(
        self,
        depot: Depot,
        supervision: Supervision,
        capability: Callable[[], Awaitable[str]],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when processes were stopped."""
        self.locks = NameLocks()
        self._changed = changed
        self._stopped: deque[tuple[float, StoppedReplica]] = deque(maxlen=_STOPPED_TOLD_MAX)
        self._depot = depot
        self._supervision = supervision
        self._capability = capability

    async def look(self, name: str) -> InstalledState:
        listed = await self._depot.installed(await self._capability())
        run_file = await run_sync(find_run_file, self._depot.places, listed, name)
        names = known_names(listed, name)
        if (found := listed.get(name)) is None:
            return InstalledState(name, names, run_file)
        metadata = found.metadata
        return InstalledState(
            name, names, run_file, found.folder, metadata.digest, metadata.uri, found.system
        )

    @asynccontextmanager
    async def alone_with(
        self, seen: InstalledState, spec: InstallSpec | None = None
    ) -> AsyncIterator[InstalledState]:
        """No other command changes what was seen, nor what is ordered, under any of its names.

        While one waits for the locks the backend may get more names: then those are waited for, too.
        """
        while True:
            names = seen.names | ordered_names(spec)
            async with self.locks.held(names):
                seen = await self.look(seen.name)
                if seen.names <= names:
                    yield seen
                    return

    async def stop(
        self, *sights: InstalledState, also: Sequence[ProcessKey] = (), free: bool, by: str
    ) -> Sequence[Stopped]:
        """Stop these backends' processes. Whether each is gone, the caller has to look. `by` is what stops
        them, for the report: "the install of x"."""
        replicas = {replica.key: replica for replica in self._supervision.replicas()}
        meant = {key for key, replica in replicas.items() if any(sight.runs(replica) for sight in sights)}
        outcomes = await self._supervision.stop(sorted(meant | set(also)), free=free)
        ended = [replicas[one.key] for one in outcomes if one.gone and one.key in replicas]
        self._stopped.extend((anyio.current_time(), _stopped(replica, by)) for replica in ended)
        if ended:
            self._changed()
        return outcomes

    def stopped_lately(self) -> tuple[StoppedReplica, ...]:
        """What reports tell of stopped processes, until every frontend has heard it."""
        since = anyio.current_time() - _STOPPED_TOLD_S
        return tuple(stopped for at, stopped in self._stopped if at >= since)


def _stopped(replica: ProcessStatus, by: str) -> StoppedReplica:
    return StoppedReplica(
        model_id=replica.key.model_id,
        replica_index=replica.key.replica_index,
        instance=replica.instance,
        why=f"{by} stopped it",
    )


def require_gone(outcomes: Sequence[Stopped]) -> None:
    """BackendFailed, naming them, when processes are left."""
    if left := [outcome for outcome in outcomes if not outcome.gone]:
        troubles = "; ".join(f"{one.key}: {one.trouble or 'it is still there'}" for one in left)
        raise BackendFailed(f"cannot be stopped: {troubles}")


def stop_report(
    kind: type[R],
    outcomes: Sequence[Stopped],
    error: RemudaError | None = None,
    digest: str = "",
    *,
    unchanged: bool = False,
) -> R:
    """The reply of whatever stops a backend's processes on its way, and tells which also when it fails."""
    return kind(
        success=error is None,
        error="" if error is None else str(error),
        code="" if error is None else error.code,
        stopped_process_keys=tuple(str(outcome.key) for outcome in outcomes if outcome.gone),
        reports_stopped_processes=True,
        digest=digest,
        unchanged=unchanged,
    )

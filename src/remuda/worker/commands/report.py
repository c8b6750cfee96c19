"""The contents of the worker's reports: what is installed, what runs, what is at work.

Told from memory at any moment; the disk is looked at in a task of its own.
"""

from collections.abc import Awaitable, Callable

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import RemudaError
from remuda.core.events import AutoResetEvent
from remuda.wire.nodes import InstalledArtifact, Report, RunningReplica, StartCheck
from remuda.worker.addresses import ReplicaAddresses
from remuda.worker.commands import limits
from remuda.worker.commands.exclusive_access import ExclusiveAccess
from remuda.worker.commands.model_files import ModelListing
from remuda.worker.commands.running_work import WorkInHand
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.layout import DepotLayout, read_last_start, read_record, start_check
from remuda.worker.depot.listing import ListedBackend, tell_changes
from remuda.worker.launching.starting import starts_alone
from remuda.worker.processes.memory_use import UNKNOWN, ProcessMemory
from remuda.worker.processes.model import ProcessStatus, Protocol
from remuda.worker.processes.ports import Supervision

log = structlog.get_logger(__name__)


class ReportBuilder:
    def __init__(
        self,
        depot: Depot,
        supervision: Supervision,
        work: WorkInHand,
        access: ExclusiveAccess,
        addresses: ReplicaAddresses,
        models: ModelListing,
        capability: Callable[[], Awaitable[str]],
        changed: Callable[[], None],
        memory_use: Callable[[str], ProcessMemory] = lambda instance: UNKNOWN,
        *,
        fetches_files: bool = False,
        model_files_budget: str = "",
    ) -> None:
        """`changed` is called when the account has become another by what is installed. `memory_use` tells
        what the process of an instance takes."""
        self._memory_use = memory_use
        self._fetches_files = fetches_files
        self._model_files_budget = model_files_budget
        self._depot = depot
        self._supervision = supervision
        self._work = work
        self._access = access
        self._addresses = addresses
        self._models = models
        self._capability = capability
        self._changed = changed
        self._installed: tuple[InstalledArtifact, ...] = ()
        self._stale = AutoResetEvent()
        self._looking = anyio.Lock()

    def report(self) -> Report:
        return Report(
            installed=self._installed,
            replicas=tuple(self._running_replica(replica) for replica in self._supervision.replicas()),
            work=self._work.report(),
            stopped=self._access.stopped_lately(),
            models_path=self._models.path,
            model_files=self._models.listed.files,
            model_files_more=self._models.listed.more,
            model_files_cut_off=self._models.listed.cut_off,
            fetches_files=self._fetches_files,
            drops_files=self._fetches_files,
            drops_parts=self._fetches_files,
            fetched_bytes=self._models.listed.fetched_bytes,
            model_files_budget=self._model_files_budget,
            model_files_partial=self._models.listed.partial,
        )

    def files_changed(self) -> None:
        """Look again soon at what is installed."""
        self._stale.set()

    async def run(self) -> None:
        """Keep what is known of the disk up to date, until cancelled."""
        async with anyio.create_task_group() as looks:
            looks.start_soon(self._models.run)
            looks.start_soon(tell_changes, self._depot.places.folders, self.files_changed)
            looks.start_soon(self._look_for_ever)

    async def _look_for_ever(self) -> None:
        while True:
            self._stale.clear()
            await self.look_at_backends()
            with anyio.move_on_after(limits.LISTING_EVERY_S):
                await self._stale.wait()

    async def look_at_backends(self) -> None:
        """One look at a time: what an earlier one found does not replace what a later one did."""
        async with self._looking:
            try:
                await self._look()
            except (RemudaError, OSError) as error:
                log.warning("installed_backends_not_read", error=str(error))

    async def _look(self) -> None:
        listed = await self._depot.installed(await self._capability())
        installed = await run_sync(_artifacts, listed.reported, self._depot.places)
        if installed != self._installed:
            self._installed = installed
            self._changed()

    def _running_replica(self, replica: ProcessStatus) -> RunningReplica:
        use = self._memory_use(replica.instance)
        return RunningReplica(
            model_id=replica.key.model_id,
            replica_index=replica.key.replica_index,
            backend=replica.backend,
            address=self._addresses.address(replica),
            state=replica.phase,
            instance=replica.instance,
            protocol=replica.protocol.value if replica.protocol is Protocol.HTTP else "",
            restarts=replica.restarts,
            trouble=replica.trouble,
            ram_bytes=use.ram_bytes,
            vram_bytes=use.vram_bytes,
        )


def _artifacts(backends: tuple[ListedBackend, ...], places: DepotLayout) -> tuple[InstalledArtifact, ...]:
    """Blocks on the disk."""
    return tuple(_artifact(backend, places) for backend in backends)


def _artifact(backend: ListedBackend, places: DepotLayout) -> InstalledArtifact:
    unprovable = not starts_alone(backend.folder) and not _has_run(backend.folder.name, places)
    checked, error = start_check(backend.folder)
    is_reported = not backend.system and not (unprovable and checked is StartCheck.UNCHECKED)
    return InstalledArtifact(
        name=backend.name,
        digest=backend.metadata.digest,
        version=backend.metadata.version,
        alias=backend.metadata.alias,
        platform_digest=read_record(backend.folder).content,
        uri=backend.metadata.uri,
        gallery_url=backend.metadata.gallery_url,
        installed_at=backend.metadata.installed_at,
        is_system=backend.system,
        is_meta=backend.meta,
        unprovable=unprovable,
        start_check=checked.value if is_reported else "",
        start_error=error if is_reported else "",
    )


def _has_run(name: str, places: DepotLayout) -> bool:
    """A model whose file is still there was served by it."""
    start = read_last_start(places.last_start(name))
    return start is not None and start.possible

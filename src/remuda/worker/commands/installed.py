"""Commands about what is there already: `backend.list`, `backend.delete` and `backend.rollback` about
installed backends, `models.running`, `model.unload`, `model.stop` and `backend.stop` about their processes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import Invalid, NotFound, RemudaError
from remuda.wire.backends import (
    BackendDelete,
    BackendDeleteReply,
    BackendList,
    BackendListReply,
    BackendRollback,
    BackendRollbackReply,
    BackendStop,
)
from remuda.wire.models import (
    ModelsRunning,
    ModelsRunningReply,
    ModelStop,
    ModelStopReply,
    ModelUnload,
    ModelUnloadReply,
    RunningModel,
)
from remuda.wire.process_keys import ProcessKey
from remuda.worker.addresses import ReplicaAddresses
from remuda.worker.commands.exclusive_access import ExclusiveAccess, InstalledState, require_gone, stop_report
from remuda.worker.commands.running_work import WorkInHand, WorkKind
from remuda.worker.depot.depot import Depot
from remuda.worker.processes.model import ProcessPhase, ProcessStatus, Protocol, Stopped
from remuda.worker.processes.ports import Supervision

log = structlog.get_logger(__name__)


class ListDeleteRollback:
    """`changed` is called when the installed files have changed."""

    def __init__(
        self,
        depot: Depot,
        holdings: ExclusiveAccess,
        work: WorkInHand,
        capability: Callable[[], Awaitable[str]],
        changed: Callable[[], None],
    ) -> None:
        self._depot = depot
        self._work = work
        self._access = holdings
        self._capability = capability
        self._changed = changed

    async def list_installed(self, _: BackendList) -> BackendListReply:
        """A folder that cannot be read makes the answer an error: peers would take its backend for gone."""
        listed = await self._depot.installed(await self._capability())
        if listed.problems:
            return BackendListReply(error="; ".join(listed.problems))
        return BackendListReply(backends=tuple(one.row for one in listed.reported))

    async def delete(self, request: BackendDelete) -> BackendDeleteReply:
        """Processes first, and files only when all of them are gone. The reply lists what was
        stopped, also after a failure."""
        outcomes: Sequence[Stopped] = ()
        try:
            async with self._alone("delete", request) as sight:
                if sight.system:
                    raise Invalid(f"{request.backend} is a system backend, which Remuda does not remove")
                outcomes = await self._access.stop(sight, free=True, by=f"the removal of {request.backend}")
                require_gone(outcomes)
                await self._depot.remove(request.backend, await self._capability())
                self._changed()
        except RemudaError as error:
            log.warning("backend_delete_failed", backend=request.backend, reason=error.message)
            return stop_report(BackendDeleteReply, outcomes, error)
        return stop_report(BackendDeleteReply, outcomes)

    async def rollback(self, request: BackendRollback) -> BackendRollbackReply:
        """Nothing is stopped unless there is a version to return to. Starts nothing."""
        outcomes: Sequence[Stopped] = ()
        try:
            async with self._alone("rollback", request) as sight:
                if request.from_digest and sight.digest != request.from_digest:
                    return stop_report(BackendRollbackReply, ())  # It has been done.
                folder = await run_sync(self._replaceable, sight)
                outcomes = await self._access.stop(sight, free=False, by=f"the rollback of {request.backend}")
                require_gone(outcomes)
                await self._depot.switch_back(folder)
                self._changed()
        except RemudaError as error:
            log.warning("backend_rollback_failed", backend=request.backend, reason=error.message)
            return stop_report(BackendRollbackReply, outcomes, error)
        return stop_report(BackendRollbackReply, outcomes)

    @asynccontextmanager
    async def _alone(
        self, kind: WorkKind, request: BackendDelete | BackendRollback
    ) -> AsyncIterator[InstalledState]:
        """Shown as work in hand, and not to be given up: processes go."""
        async with self._work.attempting(kind, request) as attempt:
            with attempt.uncancellable():
                seen = await self._access.look(request.backend)
                async with self._access.alone_with(seen) as sight:
                    yield sight

    def _replaceable(self, sight: InstalledState) -> str:
        """The folder that has a predecessor. Blocks on the disk."""
        if sight.folder is None:
            raise NotFound(f"backend not found: {sight.name}")
        if sight.folder.name not in self._depot.places.names_in("previous"):
            hint = "it was removed when a newer one ran"
            raise NotFound(f"no earlier version of {sight.folder.name} is kept", hint=hint)
        return sight.folder.name


class Stopping:
    def __init__(self, supervision: Supervision, addresses: ReplicaAddresses) -> None:
        self._supervision = supervision
        self._addresses = addresses

    async def stop_backend(self, request: BackendStop) -> None:
        """There is no reply, so how it ends is logged."""
        everything = [replica.key for replica in self._supervision.replicas()]
        keys = self._supervision.named(request.backend) if request.backend else everything
        for outcome in await self._supervision.stop(keys, free=not request.force):
            if not outcome.gone:
                log.error("backend_not_stopped", process=str(outcome.key), reason=outcome.trouble)

    async def stop_model(self, request: ModelStop) -> ModelStopReply:
        """Exactly the process that is meant, or none."""
        replica = self._find(request.process_key)
        if replica is None:
            return ModelStopReply(terminated=True, process_key=request.process_key)
        reply = ModelStopReply(
            matched=True, process_key=request.process_key, address=self._addresses.address(replica)
        )
        if objection := self._objection(request, replica):
            return reply.model_copy(update={"error": objection})
        outcomes = await self._supervision.stop([replica.key], free=not request.force)
        if not outcomes:  # It exited at this very moment.
            return ModelStopReply(terminated=True, process_key=request.process_key)
        [outcome] = outcomes
        trouble = outcome.trouble
        if outcome.not_freed and not trouble:
            trouble = f"the backend did not free its memory before it was ended: {outcome.not_freed}"
        return reply.model_copy(update={"freed": outcome.freed, "terminated": outcome.gone, "error": trouble})

    async def unload(self, request: ModelUnload) -> ModelUnloadReply:
        """Ask the processes of this model, or the one at this address, and never any other, to let go of
        their memory. That they were asked is success: backends need not know how."""
        async with anyio.create_task_group() as tasks:
            for replica in self._supervision.replicas():
                if _lives(replica) and self._is_meant(request, replica):
                    tasks.start_soon(self._free, replica)
        return ModelUnloadReply(success=True)

    async def running(self, _: ModelsRunning) -> ModelsRunningReply:
        """Busy ones and those about to be ready count; those on their way out do not."""
        return ModelsRunningReply(
            models=tuple(
                RunningModel(
                    model_id=replica.key.model_id,
                    replica_index=replica.key.replica_index,
                    address=self._addresses.address(replica),
                    instance=replica.instance,
                )
                for replica in self._supervision.replicas()
                if _lives(replica)
            )
        )

    def _find(self, process_key: str) -> ProcessStatus | None:
        key = ProcessKey.parse(process_key)
        return next((one for one in self._supervision.replicas() if one.key == key), None)

    def _objection(self, request: ModelStop, replica: ProcessStatus) -> str:
        """Why this is not the process that is meant, or not to be stopped now."""
        if request.instance and request.instance != replica.instance:
            return f"instance mismatch: {replica.key} is another process now"
        named = request.instance and not request.expected_address
        if not named and not self._addresses.is_at(replica, request.expected_address):
            found = self._addresses.address(replica) or "no address"
            return f"address mismatch: {replica.key} has {found}, not {request.expected_address or 'none'}"
        return f"{replica.key} is already stopping" if replica.phase is ProcessPhase.STOPPING else ""

    def _is_meant(self, request: ModelUnload, replica: ProcessStatus) -> bool:
        """An address is one process's, except that those which speak HTTP share the worker's own."""
        named = replica.key.model_id == request.model_name
        if not request.address:
            return named
        alone = replica.protocol is Protocol.GRPC
        return self._addresses.is_at(replica, request.address) and (alone or named)

    async def _free(self, replica: ProcessStatus) -> None:
        if trouble := await self._supervision.free(replica.key):
            log.warning("model_not_freed", process=str(replica.key), reason=trouble)


def _lives(replica: ProcessStatus) -> bool:
    return replica.pid != 0 and replica.phase is not ProcessPhase.STOPPING

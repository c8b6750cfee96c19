"""`backend.list`, `backend.delete`, `backend.rollback`: what is installed, less of it, or the one before."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

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
)
from remuda.worker.commands.exclusive_access import ExclusiveAccess, InstalledState, require_gone, stop_report
from remuda.worker.commands.running_work import Kind, WorkInHand
from remuda.worker.depot.depot import Depot
from remuda.worker.processes.model import Stopped

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
        """Processes first, and files only when all of them are gone. What was stopped is told in any case."""
        outcomes: Sequence[Stopped] = ()
        try:
            async with self._alone("delete", request) as sight:
                if sight.system:
                    raise Invalid(f"{request.backend} is a system backend, which Remuda does not remove")
                outcomes = await self._access.stop(sight, free=True)
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
                outcomes = await self._access.stop(sight, free=False)
                require_gone(outcomes)
                await self._depot.switch_back(folder)
                self._changed()
        except RemudaError as error:
            log.warning("backend_rollback_failed", backend=request.backend, reason=error.message)
            return stop_report(BackendRollbackReply, outcomes, error)
        return stop_report(BackendRollbackReply, outcomes)

    @asynccontextmanager
    async def _alone(
        self, kind: Kind, request: BackendDelete | BackendRollback
    ) -> AsyncIterator[InstalledState]:
        """Shown as work in hand, and not to be given up: processes go."""
        async with self._work.attempting(kind, request) as attempt:
            with attempt.firm():
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

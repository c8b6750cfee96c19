"""`backend.install` and `backend.upgrade`: a backend and a process of it, or newer files and none. One pull
of a backend serves all requests for it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from remuda.core.errors import BackendFailed, Invalid, RemudaError, RolledBack, StartFailed
from remuda.oci.fetch import PullPhase
from remuda.wire.backends import BackendInstall, BackendInstallReply, BackendUpgrade, BackendUpgradeReply
from remuda.wire.process_keys import ProcessKey, door_path
from remuda.worker.addresses import ReplicaAddresses
from remuda.worker.commands.exclusive_access import ExclusiveAccess, InstalledState, require_gone, stop_report
from remuda.worker.commands.running_work import RunningAttempt, WorkInHand
from remuda.worker.depot.depot import Depot, Installed, Switching
from remuda.worker.depot.fetch_unpack import OnStep, ProgressStep
from remuda.worker.depot.install_spec import InstallSpec, RequestResolver, Wanted, named_backend
from remuda.worker.depot.layout import LastStart
from remuda.worker.processes.model import Launch, ProcessStatus, Protocol, Recipe, Stopped
from remuda.worker.processes.ports import Supervision


class Pulls:
    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self._watching: dict[str, list[OnStep]] = {}

    @contextmanager
    def watched(self, name: str, on_step: OnStep) -> Iterator[None]:
        """`on_step` is called for every pull of this backend, for whichever request."""
        watchers = self._watching.setdefault(name, [])
        watchers.append(on_step)
        try:
            yield
        finally:
            watchers.remove(on_step)
            if not watchers:
                self._watching.pop(name, None)

    async def fetch(self, spec: InstallSpec, *, refresh: bool, switching: Switching) -> Installed:
        """Callers hold the locks of the spec's names. Raises what Depot.install does."""
        on_step = partial(self._tell, spec.name)
        return await self._depot.install(spec, refresh=refresh, on_step=on_step, switching=switching)

    def _tell(self, name: str, step: ProgressStep) -> None:
        for on_step in tuple(self._watching.get(name, ())):
            on_step(step)


log = structlog.get_logger(__name__)

RecipeFor = Callable[[Path, BackendInstall], Recipe | None]
_UNPROVEN: Final = (
    "its remuda.yaml has no `check`, and no model has run with it on this machine, so there is nothing to "
    "start it with"
)
_DIGEST_CHARS: Final = 19  # With "sha256:".
_Served = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Had:
    """What there is after an install."""

    process: ProcessStatus | None  # None: there is none.
    digest: str
    unchanged: bool = False  # All of it was there before.
    untested: bool = False  # Nothing has started it, here and now or before.


class Installs:
    """`recipe_for` tells how a run file is started for a request, None where nothing is; it may look at the
    disk. `changed` is called when the installed files have changed."""

    def __init__(
        self,
        depot: Depot,
        supervision: Supervision,
        orders: RequestResolver,
        holdings: ExclusiveAccess,
        work: WorkInHand,
        addresses: ReplicaAddresses,
        *,
        recipe_for: RecipeFor,
        changed: Callable[[], None],
    ) -> None:
        self._depot = depot
        self._supervision = supervision
        self._resolver = orders
        self._access = holdings
        self._work = work
        self._addresses = addresses
        self._recipe_for = recipe_for
        self._changed = changed
        self._pulls = Pulls(depot)
        self._served: dict[ProcessKey, _Served] = {}  # What HTTP processes were started with.

    async def install(self, received: BackendInstall) -> BackendInstallReply:
        """Raises what stands against it."""
        request = received.model_copy(update={"backend": named_backend(received)})
        key = _key(request.model_id or request.backend, request.replica_index)
        replica = await self._running(key, request)
        if replica is not None and not (request.force or request.digest or request.uri):
            return self._reply(replica).model_copy(update={"unchanged": not request.model_id})
        async with self._work.attempting("install", request, reported=not request.model_id) as attempt:
            had = await self._ensure(request, key, attempt)
        reply = self._reply(had.process, had.digest)
        untested = not had.process if request.prove else had.untested
        unproven = _UNPROVEN if untested and not request.model_id else ""
        unchanged = had.unchanged and not request.model_id
        return reply.model_copy(update={"unproven": unproven, "unchanged": unchanged})

    async def upgrade(self, received: BackendUpgrade) -> BackendUpgradeReply:
        """Processes run on until the new version is complete, and where there is none. What was stopped is
        told also when the rest fails."""
        request = received.model_copy(update={"backend": named_backend(received)})
        outcomes: Sequence[Stopped] = ()
        digest, unchanged, by = "", False, f"the upgrade of {request.backend}"
        try:
            key = _key(request.backend, request.replica_index)
            async with self._work.attempting("upgrade", request) as attempt:
                spec = await self._resolve(request, attempt)
                seen = await self._access.look(request.backend)
                with self._watched(spec, attempt):
                    async with self._access.alone_with(seen, spec) as sight:
                        ordered = await self._access.look(spec.name)

                        async def stop(changed: bool) -> None:
                            nonlocal outcomes, unchanged
                            unchanged = not changed and await self._is_enough(request, ordered)
                            if not unchanged:
                                outcomes = await self._access.stop(
                                    sight, ordered, also=(key,), free=False, by=by
                                )
                            require_gone(outcomes)

                        await self._fetch(
                            spec, refresh=True, switching=partial(_uncancellably, attempt, stop)
                        )
                        digest = (await self._access.look(spec.name)).digest
        except RemudaError as error:
            log.warning("backend_upgrade_failed", backend=request.backend, reason=error.message)
            return stop_report(BackendUpgradeReply, outcomes, error)
        return stop_report(BackendUpgradeReply, outcomes, digest=digest, unchanged=unchanged)

    async def _is_enough(self, request: BackendUpgrade, has: InstalledState) -> bool:
        """Whether an upgrade that found nothing newer leaves everything as it is. LocalAI's frontends, which
        send neither attempts nor digests, mean that the backend is stopped in any case."""
        ours = bool(request.attempt or request.digest)
        if request.force or not ours or has.folder is None:
            return False
        return not await self._depot.has_failed_start(has.folder.name)

    async def _ensure(self, request: BackendInstall, key: ProcessKey, attempt: RunningAttempt) -> _Had:
        """Galleries are asked before the backend is reserved: they may be slow."""
        while True:
            seen = await self._access.look(request.backend)
            here = _has(seen, request) and not request.force
            spec = None if here else await self._resolve(request, attempt)
            with self._watched(spec, attempt):
                async with self._access.alone_with(seen, spec) as sight:
                    if spec is None and not _has(sight, request):
                        continue  # It was removed meanwhile.
                    had = await self._ensure_alone(request, key, sight, spec, attempt)
                    if spec is not None:
                        attempt.arrived()  # Also where another request had brought it before we could watch.
                    return had

    async def _ensure_alone(
        self,
        request: BackendInstall,
        key: ProcessKey,
        sight: InstalledState,
        spec: InstallSpec | None,
        attempt: RunningAttempt,
    ) -> _Had:
        running = await self._running(key, request)
        here = not request.force and _has(sight, request)
        followed = here and await self._follow(request, sight)
        if followed and not (request.model_id or request.prove) and await self._has_started(sight):
            return _Had(running, sight.digest)  # Only where it comes from is another.
        if running is not None and here:
            # Another request was quicker, or only the bytes were in question.
            return _Had(running, sight.digest, unchanged=not followed)
        started = here and not followed and await self._has_started(sight)
        if spec is not None and (request.force or not _has(sight, request)):
            sight = await self._replace(request, key, sight, spec, attempt)
        try:
            process = await self._start(request, key, sight, attempt)
        except StartFailed as error:
            # Also of an attempt that a restart has interrupted. A proof's frontend decides by itself.
            if not request.prove:
                await self._go_back(request, sight, error, attempt)
            raise
        untested = process is None and not await self._has_started(sight)
        return _Had(process, sight.digest, unchanged=started and process is None, untested=untested)

    async def _go_back(
        self, request: BackendInstall, sight: InstalledState, error: StartFailed, attempt: RunningAttempt
    ) -> None:
        """To a version that has run, where there is one: RolledBack then. A server that was given its model
        may have failed because of that, and stays."""
        if sight.folder is None or not await self._depot.failed_after_a_good_one(sight.folder.name):
            return
        with attempt.uncancellable():
            by = f"the rollback of {request.backend}"
            require_gone(await self._access.stop(sight, free=False, by=by))
            await self._depot.switch_back(sight.folder.name)
            self._changed()
        digest = (await self._access.look(request.backend)).digest
        version = f"the version before, {digest[:_DIGEST_CHARS]}…," if digest else "the version before"
        raise RolledBack(f"{error.message}; {version} is in use again") from error

    async def _follow(self, request: BackendInstall, sight: InstalledState) -> bool:
        """Where the bytes are here from another reference, upgrades go by the one asked for now."""
        if sight.folder is None or not sight.came_from_elsewhere(request.uri):
            return False
        followed = await self._depot.follow(sight.folder.name, request.digest, request.uri)
        self._changed()
        return followed

    async def _start(
        self, request: BackendInstall, key: ProcessKey, sight: InstalledState, attempt: RunningAttempt
    ) -> ProcessStatus | None:
        """None: there is nothing to start it with, or it was started only to see that it does."""
        assert sight.run_file is not None, "it was found, or brought"
        without_model = not request.model_id
        if without_model:
            request = await self._as_last_started(request, sight.run_file)
        recipe = await run_sync(self._recipe_for, sight.run_file, request)
        if recipe is None:
            return None
        # A server without a model would be of no use. LocalAI's frontends, which send no attempt, find a gRPC
        # process running after an install.
        of_ours = recipe.protocol is Protocol.HTTP or bool(request.attempt)
        check_only = without_model and not request.prove and of_ours
        if check_only and await self._has_started(sight):
            return None
        launch = Launch(key, request.backend, sight.names | {request.backend}, sight.run_file.parent, recipe)
        with attempt.uncancellable():
            attempt.starting()
            replica = await self._started(launch, sight.run_file, without_model=without_model)
            await self._mark_proven(sight.run_file)
            if check_only:
                require_gone(await self._supervision.stop((key,), free=False))
                return None
            self._remember(key, request)
            if recipe.protocol is Protocol.HTTP and request.model_id:
                await self._note_start(sight.run_file, request)
        return replica

    async def _started(self, launch: Launch, run_file: Path, *, without_model: bool) -> ProcessStatus:
        """A server that was given its model at the start may have failed because of that."""
        try:
            return await self._supervision.start(launch)
        except StartFailed as error:
            if without_model or launch.recipe.protocol is Protocol.GRPC:
                await self._note_failed_start(run_file, str(error))
            raise

    async def _has_started(self, sight: InstalledState) -> bool:
        return sight.folder is not None and await self._depot.has_started(sight.folder.name)

    async def _as_last_started(self, request: BackendInstall, run_file: Path) -> BackendInstall:
        """A server that needs its model from the start is proven with the one that it ran last."""
        last = await self._depot.last_start(run_file.parent.name)
        if last is None:
            return request
        start = {"model_id": last.model_id, "model_path": last.model_path, "options": last.options}
        return request.model_copy(update={**start, "protocol": Protocol.HTTP.value})

    async def _replace(
        self,
        request: BackendInstall,
        key: ProcessKey,
        sight: InstalledState,
        spec: InstallSpec,
        attempt: RunningAttempt,
    ) -> InstalledState:
        """Bring the backend. No process stays behind in a folder that is no longer the installed one.

        That may be another's than was asked for: a meta backend that is not here yet stands for one that is.
        """
        ordered = await self._access.look(spec.name)
        other = partial(InstalledState.lacks, digest=request.digest, uri=request.uri)
        replaced = [one for one in (sight, ordered) if request.force or other(one)]
        also = (key,) if request.force else ()

        async def stop(_changed: bool) -> None:
            free, by = not request.force, f"the install of {request.backend}"
            require_gone(await self._access.stop(*replaced, also=also, free=free, by=by))

        refresh = request.force or other(ordered)
        await self._fetch(spec, refresh=refresh, switching=partial(_uncancellably, attempt, stop))
        for name in (request.backend, spec.name):
            if (found := await self._access.look(name)).run_file is not None:
                return found
        raise BackendFailed(f"backend {request.backend} not found after install attempt")

    async def _resolve(self, wanted: Wanted, attempt: RunningAttempt) -> InstallSpec:
        attempt.stepped(ProgressStep(PullPhase.RESOLVING, 0.0))
        spec = await self._resolver.resolve(wanted)
        attempt.comes_from(spec)
        return spec

    async def _fetch(self, spec: InstallSpec, *, refresh: bool, switching: Switching) -> None:
        try:
            await self._pulls.fetch(spec, refresh=refresh, switching=switching)
        finally:
            self._changed()

    async def _note_start(self, run_file: Path, request: BackendInstall) -> None:
        """If that cannot be noted, the next version is proven with an earlier model, or not at all."""
        if run_file.parent.parent != self._depot.places.backends:
            return
        start = LastStart(model_id=request.model_id, model_path=request.model_path, options=request.options)
        try:
            await self._depot.note_start(run_file.parent.name, start)
            self._changed()  # From now on a new version of it can be proven.
        except OSError as error:
            log.warning("backend_start_not_noted", backend=run_file.parent.name, error=str(error))

    async def _note_failed_start(self, run_file: Path, error: str) -> None:
        if run_file.parent.parent != self._depot.places.backends:
            return
        try:
            await self._depot.note_failed_start(run_file.parent.name, error)
            self._changed()
        except (RemudaError, OSError) as trouble:
            log.warning("backend_failure_not_noted", backend=run_file.parent.name, error=str(trouble))

    async def _mark_proven(self, run_file: Path) -> None:
        """It has run. If that cannot be noted, an older version is kept for longer, which does no harm."""
        if run_file.parent.parent != self._depot.places.backends:
            return
        try:
            await self._depot.mark_proven(run_file.parent.name)
            self._changed()
        except (RemudaError, OSError) as error:
            log.warning("backend_not_marked_proven", backend=run_file.parent.name, error=str(error))

    def _watched(self, spec: InstallSpec | None, attempt: RunningAttempt) -> AbstractContextManager[None]:
        """Progress comes from the request that fetches it, also while this one waits for that to end."""
        return nullcontext() if spec is None else self._pulls.watched(spec.name, attempt.stepped)

    async def _running(self, key: ProcessKey, request: BackendInstall) -> ProcessStatus | None:
        """An HTTP server has its model and options from its start: with others it is another server. A caller
        that got a process which has just ended would wait for it in vain."""
        if self._supervision.usable(key, request.backend) is not None:
            await self._supervision.confirm(key)
        replica = self._supervision.usable(key, request.backend)
        if replica is None or replica.protocol is Protocol.GRPC:
            return replica
        return replica if self._served.get(key) == _served(request) else None

    def _remember(self, key: ProcessKey, request: BackendInstall) -> None:
        living = {replica.key for replica in self._supervision.replicas()}
        self._served = {known: served for known, served in self._served.items() if known in living}
        self._served[key] = _served(request)

    def _reply(self, replica: ProcessStatus | None, digest: str = "") -> BackendInstallReply:
        if replica is None:
            return BackendInstallReply(success=True, digest=digest)
        http = replica.protocol is Protocol.HTTP
        return BackendInstallReply(
            success=True,
            address=self._addresses.address(replica),
            instance=replica.instance,
            protocol=replica.protocol.value if http else "",
            path=door_path(replica.key) if http else "",
            digest=digest,
        )


@asynccontextmanager
async def _uncancellably(
    attempt: RunningAttempt, stop: Callable[[bool], Awaitable[None]], changed: bool
) -> AsyncIterator[None]:
    """Stop processes and switch versions: both happen, or, when it was cancelled just before, neither."""
    with attempt.uncancellable():
        await checkpoint()
        await stop(changed)
        yield


def _has(sight: InstalledState, request: BackendInstall) -> bool:
    return sight.has(request.digest, request.uri)


def _key(model_id: str, replica_index: int) -> ProcessKey:
    if replica_index < 0:
        raise Invalid("replica_index: must not be negative")
    return ProcessKey(model_id, replica_index)


def _served(request: BackendInstall) -> _Served:
    return request.model_path, request.options

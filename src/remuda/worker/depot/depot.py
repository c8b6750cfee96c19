"""Backends on this machine: installed, listed, switched back, removed; and which blobs of them are deleted,
and why: by reference, age and budget.

Everything is safe to repeat and to interrupt, and any number of processes may use one depot.
"""

import sys
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, NotFound, RemudaError
from remuda.oci.blobs import BlobStore, StoredBlob, to_let_go
from remuda.oci.client import RegistryClient
from remuda.oci.disk import disk_trouble_explained
from remuda.oci.errors import DiskFull
from remuda.oci.model import Platform
from remuda.oci.reference import Folder, OciImage, parse_source
from remuda.oci.sources import require_folder
from remuda.wire.nodes import StartCheck
from remuda.wire.sizes import install_size
from remuda.worker.depot.fetch_unpack import InstallTracker, OnStep, SourceUnpacker, ignore_steps
from remuda.worker.depot.install_spec import InstallSpec, all_failed, check_integrity
from remuda.worker.depot.layout import (
    DepotLayout,
    LastStart,
    Record,
    checked_name,
    read_last_start,
    read_record,
    start_check,
    write_failed_start,
    write_last_start,
)
from remuda.worker.depot.listing import FolderFacts, Listing, find_run_file, listing, scan
from remuda.worker.depot.stage_version import VersionStager, is_builtin
from remuda.worker.depot.versions import Disk, VersionStore, try_lock

log = structlog.get_logger()

LOCK_POLL_S = 0.1
SETTLE_POLL_S = 0.01
SETTLE_POLLS_MAX = 100  # Then others' folders are listed as they are.
PARTIALS_STALE = timedelta(hours=24)

Switching = Callable[[bool], AbstractAsyncContextManager[object]]
"""Entered when a new version is complete and held while it takes its place, e.g. to stop processes first. Its
argument says whether there is one: False where what is installed is up to date."""


@dataclass(frozen=True, slots=True)
class Installed:
    name: str
    folder: Path
    changed: bool  # False: it was there already.


class Depot:
    """`client` is None where nothing is to be fetched. `python` is the interpreter that has Remuda: built-in
    backends run on it."""

    def __init__(
        self,
        places: DepotLayout,
        clock: Clock,
        client: RegistryClient | None = None,
        platform: Platform | None = None,
        *,
        require_integrity: bool = False,
        disk: Disk | None = None,
        python: Path | None = None,
    ) -> None:
        self.places = places
        self.store = BlobStore(places.blobs)
        self._clock = clock
        self._versions = VersionStore(places, disk)
        self._stager = VersionStager(places, self._versions, clock, python or Path(sys.executable))
        self._unpacker = SourceUnpacker(client, self.store, platform) if client and platform else None
        self._require_integrity = require_integrity

    # Looking.

    async def installed(self, capability: str = "") -> Listing:
        """While one version takes another's place its name has no folder: that moment is waited for."""
        for _ in range(SETTLE_POLLS_MAX):
            folders, settled = await run_sync(self._look)
            if settled:
                break
            await anyio.sleep(SETTLE_POLL_S)
        return listing(folders, self.places.backends, capability)

    async def run_file(self, name: str, capability: str = "") -> Path | None:
        """What to run for a name: a folder's, a meta backend's or an alias."""
        listed = await self.installed(capability)
        return await run_sync(find_run_file, self.places, listed, name)

    # Changing.

    async def install(
        self,
        spec: InstallSpec,
        *,
        refresh: bool = False,
        on_step: OnStep = ignore_steps,
        switching: Switching = nullcontext,
    ) -> Installed:
        """Have the backend. What is there already is left alone; `refresh` asks whether its source has moved.

        `switching` is entered only once everything has been fetched and unpacked, also where that turned out
        to be unnecessary; if it raises, the installed version stays. An install of the same name is awaited
        first. Raises what its only source said, or what all did; DiskFull before the first byte.
        """
        tracker = InstallTracker(on_step)
        async with self._locked(spec.name):
            try:
                there = not refresh and await run_sync(self._stager.is_there, spec)
                changed = not there and await self._bring(spec, tracker)
                async with switching(changed):
                    if changed:
                        await run_sync(self._stager.switch_in, spec.name)
                    if spec.meta:
                        await run_sync(self._stager.stand_for, spec)
            finally:
                with anyio.CancelScope(shield=True):
                    await run_sync(self._versions.abandon, spec.name)
        tracker.arrive()
        if changed:
            log.info("backend_installed", name=spec.name)
        return Installed(spec.name, self.places.installed(spec.name), changed)

    async def register(self, name: str, manifest: str) -> Installed:
        """A backend that is nothing but a manifest, whose content the caller has checked."""
        spec = InstallSpec(checked_name(name), (), manifest=manifest)
        async with self._locked(spec.name):
            changed = await run_sync(self._stager.manifest_alone, spec)
        return Installed(spec.name, self.places.installed(spec.name), changed)

    async def follow(self, name: str, digest: str, uri: str) -> bool:
        """What is installed came from another reference, and is what this one stands for: upgrades ask this
        one from now on. Nothing is fetched, and what runs is not touched."""
        async with self._locked(name):
            followed = await run_sync(self._stager.follow, name, digest, uri)
        if followed:
            log.info("backend_reference_changed", name=name, uri=uri)
        return followed

    async def refresh_builtins(self) -> None:
        """At start: what ships with Remuda follows it when it was upgraded or moved."""
        for folder in await run_sync(scan, self.places):
            metadata = folder.metadata
            if folder.system or metadata is None or not is_builtin(metadata.uri):
                continue
            spec = InstallSpec(
                folder.path.name, (metadata.uri,), alias=metadata.alias, gallery_url=metadata.gallery_url
            )
            try:
                await self.install(spec, refresh=True)
            except RemudaError as error:
                log.warning("builtin_not_refreshed", name=spec.name, error=str(error))

    async def mark_proven(self, name: str) -> None:
        """It has run: the version before it can go."""
        if await run_sync(self._versions.is_proven, name):
            return  # As at every start but the first.
        async with self._locked(name):
            await run_sync(self._versions.mark_proven, name)

    async def note_failed_start(self, name: str, error: str) -> None:
        """The installed version did not start. Kept until it does, or another takes its place."""
        async with self._locked(name):
            await run_sync(write_failed_start, self.places.installed(name), error)

    async def has_started(self, name: str) -> bool:
        """The last start of the installed version went well."""
        return (await run_sync(start_check, self.places.installed(name)))[0] is StartCheck.STARTED

    async def failed_after_a_good_one(self, name: str) -> bool:
        """The installed version did not start, and the one before it, which has run, is kept."""
        return await run_sync(self._versions.failed_after_a_good_one, name)

    async def has_failed_start(self, name: str) -> bool:
        """The last start of the installed version failed."""
        return (await run_sync(start_check, self.places.installed(name)))[0] is StartCheck.FAILED

    async def note_start(self, name: str, start: LastStart) -> None:
        await run_sync(write_last_start, self.places.last_start(name), start)

    async def last_start(self, name: str) -> LastStart | None:
        """With what to start it once more; None where nothing is known, or its model is gone."""
        start = await run_sync(read_last_start, self.places.last_start(name))
        return start if start is not None and await run_sync(lambda: start.possible) else None

    async def switch_back(self, name: str) -> None:
        """To the version before, which stays the better one until another has run. NotFound without one."""
        async with self._locked(name):
            await run_sync(self._versions.switch_back, name)
        log.info("backend_switched_back", name=name)

    async def remove(self, name: str, capability: str = "") -> tuple[str, ...]:
        """Remove a backend by any of its names, and the meta backends that stood for it.

        Returns the folders that went. NotFound when there is none; a system's backend is refused.
        """
        gone = await run_sync(self._folders_of, name, capability)
        for folder in gone:
            async with self._locked(folder):
                await run_sync(self._versions.remove, folder)
                self.places.last_start(folder).unlink(missing_ok=True)
        log.info("backend_removed", name=name, folders=gone)
        return gone

    async def recover(self) -> None:
        """At start: finish what was decided, and sweep what no live process is making."""
        await run_sync(self._recover)

    # How.

    async def _bring(self, spec: InstallSpec, tracker: InstallTracker) -> bool:
        """Stage the new version; False where the installed one is up to date."""
        failures: list[tuple[str, RemudaError]] = []
        for uri in spec.uris:
            tracker.begin()
            try:
                return await self._bring_from(uri, spec, tracker)
            except DiskFull:
                raise  # Elsewhere there is the same to be kept.
            except RemudaError as error:
                log.info("backend_source_failed", name=spec.name, uri=uri, error=str(error))
                failures.append((uri, error))
        raise all_failed(spec.name, failures)

    async def _bring_from(self, uri: str, spec: InstallSpec, tracker: InstallTracker) -> bool:
        if is_builtin(uri):
            return await run_sync(self._stager.builtin, uri, spec)
        source = parse_source(uri)
        bringer = self._require_unpacker()
        if self._require_integrity:
            check_integrity(source, spec.sha256)
        if isinstance(source, Folder):
            require_folder(source)
            staging = await run_sync(self._stager.stage, spec.name)
            await bringer.copy(source, staging, tracker)
            await run_sync(self._stager.finish, spec, Record(source=uri))
            return True
        image = await bringer.look_up(source, spec.digest, spec.sha256, tracker)
        if await run_sync(self._stager.is_current, spec, image):
            return False
        await bringer.require_room(image, self.places.backends)
        await bringer.unpack(image, partial(self._stager.stage, spec.name), tracker)
        layers = tuple(dict.fromkeys(layer.digest for layer in image.layers))
        record = Record(source=uri, content=image.platform_digest, layers=layers)
        digest = image.digest if isinstance(source, OciImage) else ""
        await run_sync(self._stager.finish, spec, record, digest)
        return True

    def _folders_of(self, name: str, capability: str) -> tuple[str, ...]:
        """What to remove for a name: its folder, and those of meta backends that stand for it."""
        folders = scan(self.places)
        found = listing(folders, self.places.backends, capability).get(name)
        if found is not None and found.system:
            raise Invalid(f"{name} is a system backend, which Remuda does not remove")
        own = {facts.path.name: facts for facts in folders if not facts.system}
        if found is None and name not in own:  # A folder that cannot be listed can be removed all the same.
            hint = "`remuda backends list --local` shows what there is"
            raise NotFound(f"backend not found: {name}", hint=hint)
        target = found.folder.name if found is not None else name
        metas = (
            folder
            for folder, facts in own.items()
            if facts.metadata is not None and facts.metadata.meta_backend_for == target
        )
        return (*sorted(metas), target)

    def _look(self) -> tuple[list[FolderFacts], bool]:
        """The folders, and whether none was about to appear meanwhile."""
        self._settle_now(self.places.names_in("ready"))
        folders = scan(self.places)
        return folders, not self.places.names_in("ready")

    def _settle_now(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                with try_lock(self.places.lock(name)) as ours:
                    if ours:
                        self._versions.settle(name)
            except OSError as error:  # Another user's folder can be looked at all the same.
                log.warning("backend_not_settled", name=name, error=str(error))

    def _recover(self) -> None:
        self._settle_now(self.places.names_in("ready"))
        for name in {*self.places.names_in("staging"), *self.places.names_in("trash")}:
            with try_lock(self.places.lock(name)) as ours:
                if ours:
                    self._versions.abandon(name)
                    self._versions.settle(name)
                    log.info("half_made_backend_swept", name=name)
        partials = self.store.sweep_partials(self._clock.now() - PARTIALS_STALE)
        if partials.count:
            log.info("stale_downloads_swept", count=partials.count, freed_bytes=partials.freed_bytes)

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[None]:
        """Alone with this name. Other processes release it by finishing or by dying; callers may give up."""
        with ExitStack() as held:
            while True:
                with disk_trouble_explained(name, self.places.backends, 0):
                    if held.enter_context(try_lock(self.places.lock(name))):
                        await run_sync(self._versions.settle, name)
                        break
                await anyio.sleep(LOCK_POLL_S)
            yield

    def _require_unpacker(self) -> SourceUnpacker:
        assert self._unpacker is not None, "only a depot with a client installs"
        return self._unpacker


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Leaving:
    blob: StoredBlob
    why: str


@dataclass(frozen=True, slots=True)
class Collected:
    leaving: tuple[Leaving, ...]
    blobs_bytes: int  # Of those that leave.
    partials: int
    partials_bytes: int
    kept_bytes: int


def plan(
    blobs: Sequence[StoredBlob], referenced: Set[str], budget_bytes: int, unused_since: datetime
) -> tuple[Leaving, ...]:
    """First what no installed version is made of, once it is old or the budget needs it; then, while that is
    still exceeded, also the rest, longest unused first: it costs no more than fetching it again. Pure."""
    unwanted = to_let_go(blobs, referenced, budget_bytes, unused_since)
    rest = [blob for blob in blobs if blob not in unwanted]
    squeezed = to_let_go(rest, frozenset(), budget_bytes, _NEVER)
    budget = f"the budget of {install_size(budget_bytes)} is exceeded"
    return (
        *(
            Leaving(blob, "no installed backend needs it" if blob.used_at < unused_since else budget)
            for blob in unwanted
        ),
        *(Leaving(blob, f"{budget}, even by installed backends alone") for blob in squeezed),
    )


async def collect(
    depot: Depot,
    clock: Clock,
    *,
    budget_bytes: int,
    unused: timedelta,
    dry_run: bool = False,
) -> Collected:
    """Let go of blobs and stale downloads; `dry_run` changes nothing and only tells. What is in use stays."""
    return await run_sync(_collect, depot, clock.now(), budget_bytes, unused, dry_run)


def _collect(depot: Depot, now: datetime, budget_bytes: int, unused: timedelta, dry_run: bool) -> Collected:
    blobs = depot.store.listing()
    leaving = plan(blobs, referenced(depot), budget_bytes, now - unused)
    if not dry_run:
        leaving = tuple(one for one in leaving if depot.store.discard(one.blob.digest))
    swept = depot.store.sweep_partials(now - PARTIALS_STALE, dry_run=dry_run)
    gone = sum(one.blob.size for one in leaving)
    kept = sum(blob.size for blob in blobs) - gone
    return Collected(leaving, gone, swept.count, swept.freed_bytes, kept)


def referenced(depot: Depot) -> frozenset[str]:
    """The layers of every version that is installed, about to be, or kept to be switched back to."""
    places = depot.places
    folders = [
        *(path for path in places.backends.glob("*") if path.is_dir()),
        *(places.ready(name) for name in places.names_in("ready")),
        *(places.previous(name) for name in places.names_in("previous")),
    ]
    return frozenset(digest for folder in folders for digest in read_record(folder).layers)

"""Installs one model: what its source stands for, room for it, its files, what they are, and only then the
model itself with its manifest. A frontend that dies over it is replaced; the next one has what was fetched
here before.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PeerFailed,
    Problem,
    Rejected,
    RemudaError,
    Unauthorized,
)
from remuda.core.ids import FrontendId
from remuda.hubs.model import AskRoom, RemoteFile, Resolved
from remuda.model_installs.arrival import Arrival, described, projector_left_out, template_fault
from remuda.model_installs.fetching import FetchProgress, SideBySide
from remuda.model_installs.library import Arrived, BroughtModel, ModelLibrary
from remuda.model_installs.naming import folder_of
from remuda.model_installs.ports import (
    ChooseBackend,
    InstalledModels,
    ModelHub,
    ModelTable,
    ProgressTeller,
)
from remuda.model_installs.rooms import first_of
from remuda.model_installs.source_files import SourceFiles
from remuda.model_installs.uploads import is_uploaded
from remuda.models.config import ModelConfig
from remuda.models.facts import facts_of
from remuda.models.files import FetchedSource, Manifest, ManifestFile, checked_path, make_manifest
from remuda.models.model_folder import folder_backends
from remuda.models.reading import read_model, write_model
from remuda.models.wanted_sources import wanted_sources
from remuda.oci.errors import ContentRefused, DiskFull, UnknownHost, Unreached
from remuda.oci.pauses import FetchPause, telling_pauses
from remuda.ops.model import DoneWithNote, Ending, ModelSpec, NotNeeded, Step
from remuda.scheduler.model import ADDED, StoredModel

log = structlog.get_logger(__name__)

ALREADY_INSTALLED: Final = "already installed, and its source has nothing newer"
_TELL_EVERY_S: Final = 0.3
_ELSEWHERE: Final = (PeerFailed, NotFound, ContentRefused, Unauthorized, Forbidden)
"""Failures after which a mirror may still have the model."""
TAKEN_OVER: Final = NotNeeded("it is not wanted any more, or another frontend has taken over")


@dataclass(frozen=True, slots=True)
class InstallerDeps:
    hub: ModelHub
    library: ModelLibrary
    store: InstalledModels
    room: AskRoom
    progress: ProgressTeller
    table: ModelTable
    frontend: FrontendId
    backends: ChooseBackend = first_of
    patient: frozenset[str] = frozenset()  # Models that no caller waits for: their sources may be away.


class Installer:
    """`begin`: with what a step is carried out, where not every model is installed alike."""

    def __init__(
        self, deps: InstallerDeps, begin: "Callable[[InstallerDeps, Step], Install] | None" = None
    ) -> None:
        self._deps = deps
        self._begin = Install if begin is None else begin

    async def install(self, step: Step) -> Ending:
        """None when the model is there, with all its files. Any other end leaves no trace of it but what was
        fetched, which a later attempt resumes."""
        install = self._begin(self._deps, step)
        ending: Ending = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(install.keep_telling)
            ending = await install.run()
            tasks.cancel_scope.cancel()
        return ending


class Install:
    """Of what its source stands for; where it is to be called so, and served as its files say."""

    def __init__(self, deps: InstallerDeps, step: Step) -> None:
        self._deps = deps
        self._step = step
        self._name = step.source.name
        self._folder = folder_of(self._name)
        self._spec = step.source.model or ModelSpec()
        self._progress = FetchProgress()
        self._reached = False  # Some source has said what the model is.
        self._kept_bytes = 0  # Of the source that brought most.

    async def keep_telling(self) -> None:
        seq, published = 0, None
        while True:
            shown = self._progress.shown()
            if shown != published:
                seq, published = seq + 1, shown
                await self._deps.progress.tell(self._step, shown.event(self._step, seq))
            await anyio.sleep(_TELL_EVERY_S)

    async def run(self) -> Ending:
        """Whatever is expected to go wrong is an ending; a source that does not answer gives way to the
        next."""
        with telling_pauses(self._note_pause):
            return await self._from_any()

    def _note_pause(self, pause: FetchPause | None) -> None:
        self._progress.waits("" if pause is None else str(pause))

    async def _from_any(self) -> Ending:
        problems: list[Problem] = []
        known = False  # Whether there is a host of the name that any source has.
        for text in (self._step.source.uri, *self._spec.mirrors):
            try:
                return await self._from(text)
            except _ELSEWHERE as error:
                log.warning("model_source_failed", source=text, model=self._name, reason=error.message)
                self._reached = self._reached or not isinstance(error, Unreached)
                known = known or not isinstance(error, UnknownHost)
                problems.append(error.problem())
                self._kept_bytes = max(self._kept_bytes, self._progress.fetched_bytes)
            except DiskFull as error:  # Waiting frees nothing: a person has to.
                return replace(error.problem(), retryable=False)
            except RemudaError as error:
                return error.problem()
        # What may pass counts: the source may be back where its mirrors never had the model.
        problem = next((one for one in problems if one.retryable), problems[0])
        if problem.retryable and self._kept_bytes:
            problem = replace(problem, kept_bytes=self._kept_bytes)
        return self._unless_unreached(problem, known=known)

    def _unless_unreached(self, problem: Problem, *, known: bool) -> Problem:
        """A source that does not answer is tried for a while. A host that does not exist is most likely
        misspelled: that is reported at once, unless it was there before, or no caller waits."""
        if self._reached or not problem.retryable:
            return problem
        if known or self._step.problem is not None or self._name in self._deps.patient:
            hint = problem.hint or "see that it can be reached from the frontend's machine"
            return replace(problem, hint=hint, unanswered=1)
        return replace(problem, hint="check how it is spelled", retryable=False)

    async def _from(self, text: str) -> Ending:
        self._progress = FetchProgress()
        before = await self._known()
        sources = SourceFiles(self._deps.hub, self._deps.room, self._step.source.uri, self._spec)
        resolved = await sources.resolved(text)
        self._reached = True
        resolved = replace(resolved, files=tuple(self._pinned(resolved.files)))
        resolved = replace(resolved, files=(*resolved.files, *await sources.companions()))
        for file in resolved.files:  # Before hours of fetching.
            checked_path(f"{self._folder}/{file.path}")
        files = await self._known_content(resolved.revision, resolved.files)
        await self._check_room(files)
        self._progress = FetchProgress(files)
        with ExitStack() as holds:
            fetched = await self._fetch(resolved.revision, files, holds)
            self._progress.checking()
            manifest = make_manifest(
                tuple(fetched),
                self._step.source.uri,
                resolved.revision,
                self._choice(resolved),
                resolved.notes,
            )
            if before is not None and self._is_there(before, manifest):
                return DoneWithNote(ALREADY_INSTALLED)
            return await self._arrived(resolved, manifest)

    def _choice(self, resolved: Resolved) -> str:
        return "; ".join(filter(None, (self._spec.choice, resolved.choice)))

    async def _known(self) -> StoredModel | None:
        """The model of this name, if it was installed before. Conflict for another one."""
        found = next((one for one in await self._deps.store.models() if one.name == self._name), None)
        if found is None:
            return None
        check_replaceable(found, self._step.source.uri)
        return found

    def _is_there(self, before: StoredModel, manifest: Manifest) -> bool:
        same = before.manifest is not None and _contents(before.manifest) == _contents(manifest)
        return same and before.kept_by == self._deps.frontend and self._deps.library.is_whole(manifest.files)

    def _pinned(self, files: Sequence[RemoteFile]) -> Sequence[RemoteFile]:
        """With the checksum that was asked for, which is of its only file."""
        if not self._spec.sha256:
            return files
        if len(files) != 1 or files[0].sha256 not in ("", self._spec.sha256):
            offered = files[0].sha256 if len(files) == 1 else f"{len(files)} files"
            raise ContentRefused(f"{self._name} is to have the checksum {self._spec.sha256}, not {offered}")
        return [replace(files[0], sha256=self._spec.sha256)]

    async def _known_content(self, revision: str, files: Sequence[RemoteFile]) -> Sequence[RemoteFile]:
        """With the digests of what came before, where the source tells none."""
        known = await run_sync(self._deps.library.arrived, self._step.op, revision)
        return [
            replace(file, sha256=known[file.path]) if not file.sha256 and file.path in known else file
            for file in files
        ]

    async def _check_room(self, files: Sequence[RemoteFile]) -> None:
        """Before the first byte. What was uploaded is on this disk already, and will be linked."""
        sizes = [file.size for file in files]
        known = None not in sizes
        whole = sum(size for size in sizes if size is not None)
        library = self._deps.library

        def check() -> None:
            missing = sum(
                library.missing_bytes(file.digest, file.size) if file.digest else file.size
                for file in files
                if file.size is not None and not is_uploaded(file)
            )
            library.check_room(self._name, missing if known else None, whole if known else None)

        await run_sync(check)

    async def _fetch(
        self,
        revision: str,
        files: Sequence[RemoteFile],
        holds: ExitStack,
        hub: ModelHub | None = None,
    ) -> Sequence[ManifestFile]:
        library = self._deps.library

        async def note(fetched: Sequence[ManifestFile | None]) -> None:
            came = {file.path: got.sha256 for file, got in zip(files, fetched, strict=True) if got}
            await run_sync(library.note_arrived, self._step.op, Arrived(revision, came))

        fetch = SideBySide(hub or self._deps.hub, library.blobs, self._folder, self._progress)
        return await fetch.all(files, holds, note)

    async def _arrived(self, resolved: Resolved, manifest: Manifest) -> Ending:
        library, step = self._deps.library, self._step
        paths = [file.path for file in manifest.files]
        staged = await run_sync(library.stage, step.op, manifest.files)
        try:
            choice = await self._deps.backends(folder_backends(paths))
            arrival = Arrival(
                self._name,
                staged,
                paths,
                _roles(self._name, resolved),
                resolved.hints,
                self._spec.config,
                choice.backend,
            )
            config = await run_sync(described, arrival)
            text = write_model(config)
            before = await self._known()  # Downloads take hours, in which people add and edit models.
            if before is not None and _still_fits(before, paths):
                text, config = before.text, read_model(before.text)
            left_out = await run_sync(projector_left_out, arrival, config)
            brought = BroughtModel(self._name, step.op, manifest.files)
            await run_sync(library.publish, brought, staged)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(library.discard_staged, step.op)
        manifest = await run_sync(with_facts, manifest, library.models, config.file)
        manifest = manifest.model_copy(update={"fetched": _fetched(config)})
        model = StoredModel(
            self._name, text, config.revision, ADDED, manifest=manifest, kept_by=self._deps.frontend
        )
        if await self._deps.store.put_installed(model, before, step.op, step.attempt) is None:
            return TAKEN_OVER
        self._deps.table.rows_changed()
        await run_sync(library.forget_arrived, step.op)
        log.info("model_installed", model=self._name, source=step.source.uri, bytes=manifest.size)
        warning = choice.warning if config.backend == choice.backend else ""
        unused = "" if config.template.use_tokenizer_template else template_fault(resolved.hints)
        notes = (self._choice(resolved), *resolved.notes, warning, unused, left_out)
        return DoneWithNote("; ".join(filter(None, notes))) if any(notes) else None


def with_facts(manifest: Manifest, models: Path, file: str) -> Manifest:
    """With what the model says of itself, which other frontends cannot read. Blocks on the disk."""
    if not file:
        return manifest
    try:
        facts = facts_of(models / file)
    except (Rejected, OSError):  # It says nothing of itself, and is described by a person.
        return manifest
    return manifest.model_copy(update={"facts": facts, "described": file})


def _fetched(config: ModelConfig) -> tuple[FetchedSource, ...]:
    """All that its configuration names came with it."""
    return tuple(FetchedSource(key=key, source=source) for key, source in wanted_sources(config).items())


def _roles(name: str, resolved: Resolved) -> Mapping[str, str]:
    """What files are beside the model, by the places they have."""
    return {f"{folder_of(name)}/{file.path}": file.role for file in resolved.files if file.role}


def _still_fits(before: StoredModel, paths: Sequence[str]) -> bool:
    """Whether what people made of its configuration still names one of its files."""
    try:
        return before.manifest is not None and read_model(before.text).file in paths
    except Invalid:
        return False


def _contents(manifest: Manifest) -> Sequence[tuple[str, str]]:
    return [(file.path, file.sha256) for file in manifest.files]


def _alias_of(model: StoredModel) -> str:
    try:
        return read_model(model.text).alias
    except Invalid:
        return ""


def check_replaceable(found: StoredModel, source: str) -> None:
    """Conflict for a model that an install from this source must not touch."""
    hint = "choose another name with --name, or remove that model first"
    if found.manifest is None and (alias := _alias_of(found)):
        raise Conflict(f"{found.name} is already another name for the model {alias}", hint=hint)
    if found.manifest is None or not found.manifest.source:
        where = f"by the file {found.file}" if found.file else "by hand"
        raise Conflict(f"there is a model {found.name} already, which was added {where}", hint=hint)
    if found.manifest.source != source:
        raise Conflict(
            f"there is a model {found.name} already, which came from {found.manifest.source}", hint=hint
        )

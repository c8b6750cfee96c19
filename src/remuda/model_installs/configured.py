"""Fetches what the configuration of a model names: the model itself where `parameters.model` is a source,
`download_files` and `artifacts`. The model is there already, and stays as people have written it: what comes
is recorded beside it, all at once.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import Conflict, Invalid, RemudaError
from remuda.hubs.model import ModelHints, RemoteFile
from remuda.model_installs.arrival import Arrival, described
from remuda.model_installs.companions import COMPANION, WantedSnapshot
from remuda.model_installs.fetching import FetchProgress
from remuda.model_installs.installer import TAKEN_OVER, Install, InstallerDeps, with_facts
from remuda.model_installs.library import BroughtModel
from remuda.model_installs.naming import folder_of
from remuda.model_installs.ports import ModelHub
from remuda.model_installs.removed_files import users_of
from remuda.model_installs.source_files import SourceFiles
from remuda.models.config import ModelConfig, Parameters, parse_document
from remuda.models.files import FetchedSource, Manifest, ManifestFile, checked_path, make_manifest
from remuda.models.gguf import read_header
from remuda.models.model_folder import folder_backends
from remuda.models.reading import field_path, read_model
from remuda.models.source_refs import is_source, parse_source
from remuda.models.wanted_sources import (
    MODEL,
    artifact_folder,
    artifact_key,
    artifact_source,
    as_fetched,
    file_key,
    is_complete,
    wanted_sources,
)
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.ops.model import DoneWithNote, Ending, ModelSpec, NotNeeded, Step
from remuda.scheduler.model import StoredModel

log = structlog.get_logger(__name__)

_CHANGED: Final = NotNeeded("the model was removed, or its configuration names other files by now")
_ALL_HERE: Final = DoneWithNote("nothing was to be fetched: all files were there already")
_GGUF: Final = ".gguf"


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the sources, with its files as paths below the folder of models. Without any it is there: since
    an earlier fetch (`kept`), or because a person has put it there."""

    key: str
    named_by: str
    files: tuple[RemoteFile, ...] = ()
    place: str = ""
    kept: FetchedSource | None = None
    hints: ModelHints = field(default_factory=ModelHints)
    notes: tuple[str, ...] = ()


class ConfiguredInstall(Install):
    """Of what one configuration names. It is not begun, or not finished, for another one."""

    def __init__(self, deps: InstallerDeps, step: Step) -> None:
        super().__init__(deps, step)
        self._own_folder, self._folder = self._folder, ""
        self._sources = SourceFiles(deps.hub, deps.room, step.source.uri, self._spec)

    async def _from(self, text: str) -> Ending:
        self._progress = FetchProgress()
        row = await self._row()
        if row is None:
            return _CHANGED
        config = read_model(row.text)
        if is_complete(config, row.manifest):
            return _ALL_HERE
        parts = [part async for part in self._parts(row, config)]
        self._reached = True
        files = await self._known_content("", [file for part in parts for file in part.files])
        await self._check_room(files)
        self._progress = FetchProgress(files)
        with ExitStack() as holds:
            fields = {file.path: self._where(row, part) for part in parts for file in part.files}
            fetched = await self._fetch("", files, holds, _LocatedHub(self._deps.hub, fields))
            self._progress.checking()
            return await self._record(row, config, parts, fetched)

    async def _row(self) -> StoredModel | None:
        """The model, while its configuration is the one that this was begun for."""
        found = next((one for one in await self._deps.store.models() if one.name == self._name), None)
        return found if found is not None and found.etag == self._spec.configured else None

    # What is wanted.

    async def _parts(self, row: StoredModel, config: ModelConfig) -> AsyncIterator[_Part]:
        kept = await run_sync(self._kept, row, config)
        if is_source(config.file):
            part = _Part(MODEL, MODEL, kept=kept.get(MODEL))
            yield part if part.kept else await self._model(row, config, part)
        for number, file in enumerate(config.download_files):
            part = _Part(file_key(file.filename), f"download_files[{number}]", (), file.filename)
            part = replace(part, kept=kept.get(part.key))
            if part.kept is None:
                with _located(self._where(row, part)):
                    if not await run_sync(self._is_persons, file.filename, file.sha256.lower()):
                        found = await self._sources.only_file(file.filename, file.uri, file.sha256.lower())
                        part = replace(part, files=(found,))
            yield part
        for number, one in enumerate(config.artifacts):
            place = f"{self._own_folder}/{artifact_folder(one)}"
            part = _Part(artifact_key(one), f"artifacts[{number}]", (), place)
            part = replace(part, kept=kept.get(part.key))
            if part.kept is None:
                snapshot = WantedSnapshot(
                    artifact_source(one), place, one.source.allow_patterns, one.source.ignore_patterns
                )
                with _located(self._where(row, part)):
                    part = replace(part, files=await self._snapshot(snapshot))
            yield part

    async def _model(self, row: StoredModel, config: ModelConfig, part: _Part) -> _Part:
        with _located(self._where(row, part)):
            resolved = await self._deps.hub.resolve(parse_source(config.file), self._deps.room)
            files = tuple(
                replace(file, path=checked_path(f"{self._own_folder}/{file.path}")) for file in resolved.files
            )
        notes = tuple(filter(None, (resolved.choice, *resolved.notes)))
        return replace(part, files=files, hints=resolved.hints, notes=notes)

    async def _snapshot(self, wanted: WantedSnapshot) -> tuple[RemoteFile, ...]:
        files = (await self._deps.hub.snapshot(wanted.source)).files
        taken = [file for file in files if wanted.takes(file.path)]
        if not taken:
            raise Invalid(f"{wanted.source} has no file that the patterns allow")
        return tuple(
            replace(file, path=checked_path(f"{wanted.folder}/{file.path}"), role=COMPANION) for file in taken
        )

    def _kept(self, row: StoredModel, config: ModelConfig) -> Mapping[str, FetchedSource]:
        """What an earlier fetch has brought for the same wish, and is still there. Blocks on the disk."""
        if row.manifest is None:
            return {}
        wanted, library = wanted_sources(config), self._deps.library
        files = {file.path: file for file in row.manifest.files}
        return {
            one.key: one
            for one in row.manifest.fetched or ()
            if wanted.get(one.key) == one.source
            and all(path in files for path in one.paths)
            and library.is_whole(files[path] for path in one.paths)
            and (one.paths or row.manifest.source or (library.models / one.place).exists())
        }

    def _is_persons(self, path: str, sha256: str) -> bool:
        """Whether a person has put the file there already, which is then used as it is. Conflict where it is
        not what is wanted. Blocks on the disk."""
        library = self._deps.library
        if not library.persons_own(path):
            return False
        target = library.models / path
        if not sha256:
            return target.exists()
        if library.checksum(path) == sha256:
            return True
        raise Conflict(
            f"{target} is there already, and does not have the checksum {sha256}",
            hint="move it away, or correct the checksum",
        )

    def _where(self, row: StoredModel, part: _Part) -> str:
        """The field, for complaints, with its line and the file that has it."""
        line = parse_document(row.text).line(field_path(part.named_by))
        of = ", ".join(filter(None, (row.file, f"line {line}" if line else "")))
        return f"{of}: {part.named_by}" if of else part.named_by

    # What has come.

    async def _record(
        self, row: StoredModel, config: ModelConfig, parts: Sequence[_Part], fetched: Sequence[ManifestFile]
    ) -> Ending:
        manifest = self._manifest(row, parts, fetched)
        path, model = await run_sync(self._deps.library.other_model, self._name, fetched)
        if path:
            raise Conflict(
                f"{self._deps.library.models / path} was brought for the model {model}, and is not what "
                "would come in its place",
                hint="give the file another name in one of the two configurations",
            )
        staged = await run_sync(self._deps.library.stage, self._step.op, fetched)
        try:
            manifest = await self._inspected(staged, config, parts, manifest)
            await self._publish(row, manifest, fetched, staged)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(self._deps.library.discard_staged, self._step.op)
        effective = as_fetched(config, manifest)
        if any(file.path == effective.file for file in manifest.files):
            manifest = await run_sync(with_facts, manifest, self._deps.library.models, effective.file)
        after = replace(row, manifest=manifest, kept_by=self._deps.frontend)
        if await self._deps.store.put_installed(after, row, self._step.op, self._step.attempt) is None:
            return TAKEN_OVER
        self._deps.table.rows_changed()
        await run_sync(self._deps.library.forget_arrived, self._step.op)
        log.info("model_files_fetched", model=self._name, bytes=sum(file.size for file in fetched))
        notes = [note for part in parts for note in part.notes]
        if not fetched:
            return _ALL_HERE
        return DoneWithNote("; ".join(notes)) if notes else None

    def _manifest(
        self, row: StoredModel, parts: Sequence[_Part], fetched: Sequence[ManifestFile]
    ) -> Manifest:
        """Of what was there for the model before, what no source accounts for stays."""
        before = row.manifest or Manifest(files=())
        kept = {path for part in parts if part.kept is not None for path in part.kept.paths}
        gone = {path for one in before.fetched or () for path in one.paths} - kept
        files = {file.path: file for file in before.files if file.path not in gone}
        files |= {file.path: file for file in fetched}
        wanted = wanted_sources(read_model(row.text))
        sources = [
            part.kept
            or FetchedSource(
                key=part.key,
                source=wanted[part.key],
                place=part.place,
                paths=tuple(file.path for file in part.files),
            )
            for part in parts
        ]
        whole = make_manifest(tuple(files.values())) if files else Manifest(files=())
        model_stays = any(part.key == MODEL and part.kept for part in parts)
        return before.model_copy(
            update={
                "files": whole.files,
                "fetched": tuple(sources),
                "laid": before.laid if model_stays else "",
            }
        )

    async def _inspected(
        self, staged: Path, config: ModelConfig, parts: Sequence[_Part], manifest: Manifest
    ) -> Manifest:
        """With what the model's own files say. Invalid for what is no model, or not all of one."""
        model = next((part for part in parts if part.key == MODEL and part.files), None)
        if model is None:
            if config.file.endswith(_GGUF) and (staged / config.file).exists():
                await run_sync(_check_gguf, staged, config.file)
            return manifest
        paths = [file.path for file in model.files]
        roles = {file.path: file.role for file in model.files if file.role}
        choice = await self._deps.backends(folder_backends(paths))
        arrival = Arrival(self._name, staged, paths, roles, model.hints, folder_backend=choice.backend)
        found = await run_sync(_described, arrival, config)
        sources = [
            one.model_copy(update={"place": found.file}) if one.key == MODEL else one
            for one in manifest.fetched or ()
        ]
        return manifest.model_copy(update={"fetched": tuple(sources), "laid": _laid(config, found)})

    async def _publish(
        self, row: StoredModel, manifest: Manifest, fetched: Sequence[ManifestFile], staged: Path
    ) -> None:
        library = self._deps.library
        before = {file.path for file in row.manifest.files} if row.manifest else set[str]()
        stays = {file.path for file in manifest.files} & before
        others = [one for one in await self._deps.store.models() if one.name != row.name]
        models = [*others, replace(row, manifest=manifest)]
        if going := before - stays - {file.path for file in fetched}:
            # A file that any model still names stays, as when a model is removed.
            stays |= set(await run_sync(users_of, library.models, models, going))
        if fetched or before - stays:
            brought = BroughtModel(self._name, self._step.op, tuple(fetched))
            await run_sync(library.publish, brought, staged, stays)


class _LocatedHub:
    """Complaints about a file name the field that wants it."""

    def __init__(self, hub: ModelHub, fields: Mapping[str, str]) -> None:
        self._hub = hub
        self._fields = fields
        self.resolve = hub.resolve
        self.snapshot = hub.snapshot

    async def fetch(self, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes) -> str:
        with _located(self._fields.get(file.path, "")):
            return await self._hub.fetch(file, blobs, on_bytes)


@contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except RemudaError as error:
        if where:
            error.message, error.public = f"{where}: {error.message}", f"{where}: {error.public}"
        raise


def _check_gguf(folder: Path, path: str) -> None:
    with (folder / path).open("rb") as file:
        try:
            read_header(file)
        except Invalid as error:
            raise type(error)(f"{path}: {error.message}", hint=error.hint) from None


def _described(arrival: Arrival, config: ModelConfig) -> ModelConfig:
    """Models of formats that say nothing of themselves are taken as they are where a backend is named."""
    try:
        return described(arrival)
    except Invalid:
        if not config.backend or any(path.lower().endswith(_GGUF) for path in arrival.paths):
            raise
    first = sorted(arrival.paths)[0]
    place = first if len(arrival.paths) == 1 else folder_of(arrival.name)
    return ModelConfig(name=arrival.name, parameters=Parameters(model=place))


def _laid(config: ModelConfig, found: ModelConfig) -> str:
    """What the model's files say of it, for keys that its configuration leaves open."""
    given = config.model_dump(mode="json", exclude_defaults=True)
    made = found.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    open_keys = {key: value for key, value in made.items() if key == "parameters" or key not in given}
    return json.dumps(open_keys, ensure_ascii=False)


def begin(deps: InstallerDeps, step: Step) -> Install:
    """What carries out this step."""
    configured = (step.source.model or ModelSpec()).configured
    return ConfiguredInstall(deps, step) if configured else Install(deps, step)

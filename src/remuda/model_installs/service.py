"""What people can do with models and their files: install one by its source or name, and remove one. No call
waits for bytes.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Conflict, Forbidden, Invalid, NotFound
from remuda.core.hints import pasted
from remuda.core.ids import FrontendId, MachineId
from remuda.fleet.health import Standing
from remuda.fleet.verdicts import is_localai
from remuda.gallery.model import Reading
from remuda.gallery.model_configs import ComposedModel
from remuda.gallery.model_entries import FoundModel, GalleryFile, ModelEntry, find, similar
from remuda.hubs.quantisations import choose_entry
from remuda.model_installs.companions import files_and_downloads, main_artifact
from remuda.model_installs.installer import check_replaceable
from remuda.model_installs.naming import checked_name, default_name, uploaded_name
from remuda.model_installs.ports import InstalledModels
from remuda.model_installs.removed_files import (
    brought_for,
    has_any,
    may_have_unreported,
    removed_paths,
    why_left,
)
from remuda.model_installs.rooms import node_rooms
from remuda.model_installs.uploads import ModelUploads
from remuda.models.files import checked_path
from remuda.models.source_refs import (
    HubModel,
    LocalPath,
    ModelSource,
    UploadedFiles,
    is_source,
    parse_source,
)
from remuda.ops.model import (
    FRONTENDS,
    FRONTENDS_NAME,
    Goal,
    Kind,
    ModelPart,
    ModelSpec,
    Operation,
    OpId,
    RollOut,
    Source,
    State,
    Step,
)
from remuda.ops.ports import UNCOUNTED, Figures, Filter, OpSignal, OpStore, Submitted, View
from remuda.scheduler.claimed_names import ClaimedNames
from remuda.scheduler.model import StoredModel
from remuda.scheduler.service import being_installed
from remuda.wire.sizes import parse_size

_AT_ONCE: Final = 64
_INSTALLS: Final = frozenset({Kind.INSTALL_MODEL})
_NAMED_MAX: Final = 3
_LIVE_MAX: Final = 1000
_FILES: Final = (".gguf", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class InstallRequest:
    what: str  # A source, or the name of a model in a gallery.
    name: str = ""  # What it is to be called; empty: as its gallery or its source has it.
    by: str = ""
    sha256: str = ""
    idempotency_key: str = ""
    variant: str = ""  # Of a gallery's model; empty: one that fits a node.
    context_size: int = 0  # In tokens; 0: as its files say.
    on_own_machine: bool = False  # By a user of the frontend's own machine, who could read its files anyway.


@dataclass(frozen=True, slots=True)
class HoldingFrontend:
    """This frontend, as operations name it that no other can carry out."""

    frontend: FrontendId
    host: str


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model takes. `paths`: its files that no other model needs; a person's among them stay
    on frontends, unless they are asked for."""

    model: StoredModel
    paths: tuple[str, ...]
    having: tuple[Standing, ...]  # Nodes that have some of them.
    left: tuple[Standing, ...]  # Nodes that keep theirs, since their worker could not tell them apart.


@dataclass(frozen=True, slots=True)
class WantedModel:
    """What is asked for: where it comes from, and what it is to be called."""

    source: ModelSource
    name: str
    spec: ModelSpec


class ModelInstalls:
    """`galleries` tells what can be installed, for one who looks for this name, and `compose` what an entry
    amounts to. Workers on `own_machines`, and with `shared` all of them, have this frontend's folder of
    models."""

    def __init__(
        self,
        operations: OpStore,
        store: InstalledModels,
        galleries: Callable[[str], Awaitable[Sequence[Reading[ModelEntry]]]],
        compose: Callable[[FoundModel, str], Awaitable[ComposedModel]],
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        *,
        clock: Clock,
        entropy: Entropy,
        signal: OpSignal,
        own_machines: Collection[MachineId] = (),
        shared: bool = False,
        models_path: Path,
        uploads: ModelUploads,
        holder: HoldingFrontend,
        local_sources: bool = False,
        figures: Figures = UNCOUNTED,
        claims: ClaimedNames,
    ) -> None:
        self._claims = claims
        self._models_path = models_path
        self._operations = operations
        self._store = store
        self._galleries = galleries
        self._compose = compose
        self._standings = standings
        self._clock = clock
        self._entropy = entropy
        self._signal = signal
        self._own_machines = own_machines
        self._shared = shared
        self._figures = figures
        self._uploads = uploads
        self._holder = holder
        self._local_sources = local_sources

    async def install(self, request: InstallRequest) -> Submitted:
        """The operation that installs it; one that is under way is joined. NotFound for a name that no
        gallery has; Conflict when there is another model of this name, or one is being installed."""
        if (under_way := await self._under_way(request)) is not None:
            return Submitted(under_way, joined=True)
        wanted = await self.wanted(request)
        await self._check(wanted)
        source = Source("", uri=str(wanted.source), name=wanted.name, model=wanted.spec)
        return await self._submit(Kind.INSTALL_MODEL, source, request.by, (), request.idempotency_key)

    async def present(self, request: InstallRequest) -> str:
        """The name under which there is what is asked for; empty: there is not. Where it is to have a name of
        its own, only that one counts."""
        models = [one for one in await self._store.models() if request.name in ("", one.name)]
        if any(one.name == request.what for one in models):
            return request.what
        if await self._under_way(request) is not None:
            return ""
        wanted = await self.wanted(request)
        source = str(wanted.source)
        same = (one for one in models if one.manifest is not None and one.manifest.source == source)
        return next((one.name for one in same), "")

    async def _under_way(self, request: InstallRequest) -> View | None:
        """What installs the model of this name, where only its own source knows it by that name."""
        what = request.what.strip()
        if is_source(what) or request.name not in ("", what):
            return None
        live = Filter(finished=False, kinds=_INSTALLS, model=what, limit=1)
        views = await self._operations.views(live)
        return views[0] if views and find(await self._galleries(what), what) is None else None

    async def check_upload(self, name: str, upload: str, sha256: str = "") -> None:
        """Before the first byte: Conflict where it could not be installed under this name."""

        async def brought() -> str:
            return sha256

        source = f"upload:{upload}"
        await self._check_model(checked_name(name), source)
        await self._claims.superseded(name, brought, source)

    async def discard_upload(self, upload: str, file_key: str = "") -> None:
        """Remove one file of an upload, or without a key all of it. Conflict while it is being installed."""
        source = f"upload:{upload}"
        for view in await self._operations.views(Filter(finished=False, kinds=_INSTALLS, limit=_LIVE_MAX)):
            operation = view.operation
            if operation.source.uri == source:
                raise Conflict(
                    f"the upload is being installed as {operation.source.name}, by operation {operation.id}",
                    hint=f"wait for it, or cancel it first: remuda ops cancel {operation.id}",
                )
        await self._uploads.discard(upload, file_key)

    async def removal(self, name: str, *, files: bool = False) -> Removal:
        """What removing a model would take: what the fleet brought for it, on frontends and nodes; with
        `files` also what a person put there. NotFound for a model that is not there."""
        models = await self._store.models()
        found = next((one for one in models if one.name == name), None)
        if found is None:
            if coming := await being_installed(self._operations, name):
                raise coming
            raise NotFound(f"there is no model {name!r}", hint="remuda models lists those there are")
        others = [one for one in models if one.name != name]
        nodes = await self._others_nodes()
        # What people have put somewhere goes only if it is the model's now, and not if it once was.
        brought = () if files else tuple(brought_for(name, nodes))
        paths = await run_sync(removed_paths, self._models_path, found, others, brought)
        peers = files or bool(found.manifest and found.manifest.files)  # They remove whatever is called so.
        loads = await self._loads_of(name)
        having = [
            one
            for one in nodes
            if paths
            and (peers if is_localai(one.node) else has_any(one, paths) or may_have_unreported(one, loads))
        ]
        left = [one for one in nodes if paths and is_localai(one.node) and not peers]
        return Removal(found, paths, tuple(having), tuple(left))

    async def _loads_of(self, model: str) -> Sequence[View]:
        """Also those that are no longer shown."""
        which = Filter(kinds=frozenset({Kind.LOAD}), model=model, dismissed=True, limit=_LIVE_MAX)
        return await self._operations.views(which)

    async def remove(self, name: str, by: str, *, files: bool = False) -> Submitted:
        """The operation that does it."""
        going = await self.removal(name, files=files)
        spec = ModelSpec(written_at=written_at(going.model), files=going.paths, any_files=files)
        source = Source("", name=name, model=spec)
        return await self._submit(Kind.REMOVE_MODEL, source, by, going.having, left=going.left)

    async def wanted(self, request: InstallRequest) -> WantedModel:
        """What an install would begin with. Nothing is begun."""
        what = request.what.strip()
        if not is_source(what):
            return await self._named(what, request)
        if request.variant:
            raise Invalid("a variant is chosen of a gallery's model, and this is a source", param="variant")
        source = parse_source(what)
        spec = ModelSpec(sha256=request.sha256, config=_overlay(request))
        match source:
            case UploadedFiles(upload):
                paths = [one.file.path for one in await self._uploads.complete(upload)]
                name = request.name or uploaded_name(paths)
            case LocalPath():
                self._check_local(source, request)
                name = request.name
            case _:
                return WantedModel(source, checked_name(request.name or default_name(source)), spec)
        # Whatever frontend takes it up: no other has these files.
        held = replace(spec, held_by=self._holder.frontend, held_on=self._holder.host)
        return WantedModel(source, checked_name(name or default_name(source)), held)

    def _check_local(self, source: LocalPath, request: InstallRequest) -> None:
        if not (self._local_sources or request.on_own_machine):
            raise Forbidden(
                f"{source} is a file of the frontend's machine, which this frontend does not install for "
                "others",
                hint="run this command on that machine, or start the frontend with --allow-local-sources; "
                "for a file of your machine: remuda models add FILE",
            )

    async def _named(self, what: str, request: InstallRequest) -> WantedModel:
        readings = await self._galleries(what)
        found = find(readings, what)
        if found is None:
            if coming := await being_installed(self._operations, what):
                raise coming
            await self._refuse_name(what, readings)
        assert found is not None, "an unknown name was refused"
        name = checked_name(request.name or found.entry.name)
        found, choice = await self._variant(found, request.variant, readings)
        entry = found.entry
        if not entry.source:
            return await self._listed(found, request, name, choice)
        source = _chosen(parse_source(entry.source), entry.quantisation)
        spec = ModelSpec(
            sha256=request.sha256 or entry.sha256,
            mirrors=entry.mirrors,
            config=_overlay(request, _config_of(found)),
            choice=choice,
        )
        return WantedModel(source, name, spec)

    async def _variant(
        self, found: FoundModel, wanted: str, readings: Sequence[Reading[ModelEntry]]
    ) -> tuple[FoundModel, str]:
        """The entry that is installed for this one, and why."""
        own = [reading for reading in readings if reading.gallery == found.gallery]
        known = [found, *filter(None, (find(own, name) for name in found.entry.variants))]
        entries = {one.entry.name: one for one in known}
        sizes = {name: parse_size(one.entry.size) or 0 for name, one in entries.items()}
        nodes = await node_rooms(self._standings) if len(entries) > 1 else ()
        name, choice = choose_entry(found.entry.name, sizes, wanted, nodes)
        return entries[name], choice

    async def _listed(
        self, found: FoundModel, request: InstallRequest, name: str, choice: str
    ) -> WantedModel:
        """An entry that lists the model's files, as the contract has it, or whose configuration does."""
        made = await self._compose(found, name)
        local = found.gallery.url.startswith("file:")
        parts = tuple(_part(file, found, local=local) for file in files_and_downloads(made))
        source = parts[0].source if parts else main_artifact(made.config)
        if not source:
            raise Invalid(
                f"{found.id} names no files: its backend fetches them by itself",
                hint="add it by its configuration: remuda models add FILE.yaml",
            )
        config = _overlay(request, made.config)
        spec = ModelSpec(sha256=request.sha256, parts=parts, config=config, choice=choice)
        return WantedModel(parse_source(source), name, spec)

    async def _refuse_name(self, what: str, readings: Sequence[Reading[ModelEntry]]) -> None:
        near = similar(readings, what)
        if near:
            hint = f"did you mean {' or '.join(near[:_NAMED_MAX])}?"
        elif what.startswith(("/", "./", "../", "~")) or what.lower().endswith(_FILES):
            hint = (
                "for a file of your machine: remuda models add FILE; for one of the frontend's: file:///PATH"
            )
        elif what.startswith("ollama:") and (named := what.removeprefix("ollama:").lstrip("/")):
            hint = f"from Ollama: {pasted(f'ollama://{named}')}"
        elif "/" in what:
            hint = f"from Hugging Face: {pasted(f'hf://{what}')}; from Ollama: {pasted(f'ollama://{what}')}"
        else:
            hint = f"from Ollama: {pasted(f'ollama://{what}')}; from Hugging Face: hf://OWNER/REPOSITORY"
        unread = [one.gallery.name for one in readings if one.trouble]
        also = f" (galleries that could not be read: {', '.join(unread)})" if unread else ""
        raise NotFound(f"no gallery has a model {what!r}{also}", hint=hint)

    async def _check(self, wanted: WantedModel) -> None:
        """Before anything is written. What changes until the operation begins is found then."""

        async def brought() -> str:
            match wanted.source:
                case UploadedFiles(upload):
                    found = await self._uploads.complete(upload)
                    return found[0].file.sha256 if len(found) == 1 else ""
            return ""

        await self._check_model(wanted.name, str(wanted.source))
        await self._claims.take_over(wanted.name, brought, str(wanted.source))

    async def _check_model(self, name: str, source: str) -> None:
        found = next((one for one in await self._store.models() if one.name == name), None)
        if found is not None:
            check_replaceable(found, source)

    # Removing.

    async def _others_nodes(self) -> list[Standing]:
        """Nodes with this frontend's own folder are left out: what goes from there goes once."""
        if self._shared:
            return []
        standings = await self._standings()
        return [
            one for one in standings if one.node.machine_id not in self._own_machines and one.node.approved
        ]

    async def _submit(
        self,
        kind: Kind,
        source: Source,
        by: str,
        nodes: Sequence[Standing],
        idempotency_key: str = "",
        left: Sequence[Standing] = (),
    ) -> Submitted:
        """`left`: nodes that nothing is asked of, with the reason."""
        op, now = OpId(self._entropy.uuid()), self._clock.now()
        operation = Operation(
            op,
            kind,
            source,
            RollOut(_AT_ONCE),
            by,
            now,
            idempotency_key=idempotency_key,
            selection=FRONTENDS_NAME,
        )
        goal = Goal((f"model {source.name}",))
        places = [(FRONTENDS, FRONTENDS_NAME), *((one.node.id, one.node.name) for one in nodes)]
        steps = [Step(op, node, name, kind, source, goal) for node, name in places]
        steps += [
            Step(
                op,
                one.node.id,
                one.node.name,
                kind,
                source,
                goal,
                state=State.SKIPPED,
                why=why_left(source.name),
            )
            for one in left
        ]
        submitted = await self._operations.submit(operation, steps)
        if not submitted.joined:
            self._figures.submitted(kind)
        self._signal.notify()
        return submitted


def _overlay(request: InstallRequest, config: str = "") -> str:
    """What is laid over the model's configuration: `config`, and what was asked for."""
    if not request.context_size:
        return config
    over = yaml.safe_load(config) if config.strip() else {}
    return yaml.safe_dump({**over, "context_size": request.context_size}, sort_keys=False, allow_unicode=True)


def _chosen(source: ModelSource, quantisation: str) -> ModelSource:
    if isinstance(source, HubModel) and quantisation and not source.path and not source.quantisation:
        return replace(source, quantisation=quantisation.upper())
    return source


def _part(file: GalleryFile, found: FoundModel, *, local: bool) -> ModelPart:
    """Invalid for a file of this machine that a gallery elsewhere names."""
    source = parse_source(file.uri)
    if isinstance(source, LocalPath) and not local:
        raise Invalid(f"{found.id} may not name a file of this machine: {source}")
    return ModelPart(checked_path(file.filename), str(source), file.sha256)


def _config_of(found: FoundModel) -> str:
    return found.entry.overrides or found.entry.config_file


def written_at(model: StoredModel) -> str:
    return "" if model.updated_at is None else model.updated_at.isoformat()

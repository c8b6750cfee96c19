"""What people can do with models and their files: install one by its source or name, and remove one. No call
waits for bytes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Conflict, Invalid, NotFound
from remuda.core.hints import pasted
from remuda.core.ids import MachineId
from remuda.fleet.health import Standing
from remuda.fleet.node_views import current_report
from remuda.fleet.verdicts import is_localai
from remuda.gallery.model import Reading
from remuda.gallery.model_configs import ComposedModel
from remuda.gallery.model_entries import FoundModel, GalleryFile, ModelEntry, find, similar
from remuda.model_installs.installer import check_replaceable
from remuda.model_installs.naming import checked_name, default_name
from remuda.model_installs.ports import InstalledModels
from remuda.models.config import ModelConfig
from remuda.models.files import checked_path, path_fault
from remuda.models.needed_files import needed_files
from remuda.models.paths import named_files
from remuda.models.reading import read_model
from remuda.models.source_refs import HubModel, LocalPath, ModelSource, is_source, parse_source
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
    Step,
)
from remuda.ops.ports import UNCOUNTED, Figures, Filter, OpStore, Submitted
from remuda.scheduler.model import StoredModel
from remuda.scheduler.ports import OpSignal
from remuda.wire.nodes import Report

_AT_ONCE: Final = 64
_INSTALLS: Final = frozenset({Kind.INSTALL_MODEL})
_NAMED_MAX: Final = 3
_FILES: Final = (".gguf", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class InstallRequest:
    what: str  # A source, or the name of a model in a gallery.
    name: str = ""  # What it is to be called; empty: as its gallery or its source has it.
    by: str = ""
    sha256: str = ""
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
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
        figures: Figures = UNCOUNTED,
    ) -> None:
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

    async def install(self, request: InstallRequest) -> Submitted:
        """The operation that installs it; one that is under way is joined. NotFound for a name that no
        gallery has; Conflict when there is another model of this name, or one is being installed."""
        wanted = await self._wanted(request)
        await self._check(wanted)
        source = Source("", uri=str(wanted.source), name=wanted.name, model=wanted.spec)
        return await self._submit(Kind.INSTALL_MODEL, source, request.by, (), request.idempotency_key)

    async def present(self, request: InstallRequest) -> str:
        """The name under which there is what is asked for; empty: there is not."""
        models = await self._store.models()
        if any(one.name == request.what for one in models):
            return request.what
        wanted = await self._wanted(request)
        source = str(wanted.source)
        same = (one for one in models if one.manifest is not None and one.manifest.source == source)
        return next((one.name for one in same), "")

    async def remove(self, name: str, by: str, *, files: bool = False) -> Submitted:
        """The operation that removes a model: what the fleet brought for it, on frontends and nodes; with
        `files` also what a person put there. NotFound for a model that is not there."""
        models = await self._store.models()
        found = next((one for one in models if one.name == name), None)
        if found is None:
            raise NotFound(f"there is no model {name!r}", hint="remuda models lists those there are")
        others = [one for one in models if one.name != name]
        paths = await run_sync(_removed_paths, self._models_path, found, others)
        spec = ModelSpec(written_at=written_at(found), files=paths, any_files=files)
        peers = files or found.manifest is not None  # They would remove whatever is called so.
        nodes = await self._nodes_with(paths, peers=peers) if paths else []
        return await self._submit(Kind.REMOVE_MODEL, Source("", name=name, model=spec), by, nodes)

    # Installing.

    async def _wanted(self, request: InstallRequest) -> _Wanted:
        what = request.what.strip()
        if not is_source(what):
            return await self._named(what, request)
        source = parse_source(what)
        name = checked_name(request.name or default_name(source))
        return _Wanted(source, name, ModelSpec(sha256=request.sha256))

    async def _named(self, what: str, request: InstallRequest) -> _Wanted:
        readings = await self._galleries(what)
        found = find(readings, what)
        if found is None:
            await self._refuse_name(what, readings)
        assert found is not None, "an unknown name was refused"
        entry = found.entry
        if not entry.source:
            return await self._listed(found, request)
        source = _chosen(parse_source(entry.source), entry.quantisation)
        spec = ModelSpec(
            sha256=request.sha256 or entry.sha256, mirrors=entry.mirrors, config=_config_of(found)
        )
        return _Wanted(source, checked_name(request.name or entry.name), spec)

    async def _listed(self, found: FoundModel, request: InstallRequest) -> _Wanted:
        """An entry that lists the model's files, as the contract has it."""
        name = checked_name(request.name or found.entry.name)
        made = await self._compose(found, name)
        local = found.gallery.url.startswith("file:")
        parts = tuple(_part(file, found, local=local) for file in made.files)
        if not parts:
            raise Invalid(
                f"{found.id} names no files: its backend fetches them by itself",
                hint="add it by its configuration: remuda models add FILE.yaml",
            )
        spec = ModelSpec(sha256=request.sha256, parts=parts, config=made.config)
        return _Wanted(parse_source(parts[0].source), name, spec)

    async def _refuse_name(self, what: str, readings: Sequence[Reading[ModelEntry]]) -> None:
        near = similar(readings, what)
        if near:
            hint = f"did you mean {' or '.join(near[:_NAMED_MAX])}?"
        elif what.startswith(("/", "./", "../", "~")) or what.lower().endswith(_FILES):
            hint = (
                "for a file of your machine: remuda models add FILE; for one of the frontend's: file:///PATH"
            )
        elif "/" in what:
            hint = f"from Hugging Face: {pasted(f'hf://{what}')}; from Ollama: {pasted(f'ollama://{what}')}"
        else:
            hint = f"from Ollama: {pasted(f'ollama://{what}')}; from Hugging Face: hf://OWNER/REPOSITORY"
        unread = [one.gallery.name for one in readings if one.trouble]
        also = f" (galleries that could not be read: {', '.join(unread)})" if unread else ""
        raise NotFound(f"no gallery has a model {what!r}{also}", hint=hint)

    async def _check(self, wanted: _Wanted) -> None:
        """Before anything is written. What changes until the operation begins is found then."""
        found = next((one for one in await self._store.models() if one.name == wanted.name), None)
        if found is not None:
            check_replaceable(found, str(wanted.source))
        under_way = Filter(finished=False, kinds=_INSTALLS, model=wanted.name, limit=10)
        for view in await self._operations.views(under_way):
            other = view.operation
            if other.source.uri != str(wanted.source):
                raise Conflict(
                    f"{wanted.name} is being installed from {other.source.uri}, by operation {other.id}",
                    hint="wait for it, cancel it, or choose another name with --name",
                )

    # Removing.

    async def _nodes_with(self, paths: Sequence[str], *, peers: bool) -> list[Standing]:
        """The nodes that have one of these files, as far as they told; those that tell nothing, too. Nodes
        with this frontend's own folder are left out: what goes from there goes once."""
        if self._shared:
            return []
        wanted = frozenset(paths)
        return [
            one
            for one in await self._standings()
            if one.node.machine_id not in self._own_machines
            and one.node.approved
            and (peers if is_localai(one.node) else _has(one, wanted))
        ]

    async def _submit(
        self, kind: Kind, source: Source, by: str, nodes: Sequence[Standing], idempotency_key: str = ""
    ) -> Submitted:
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
        submitted = await self._operations.submit(operation, steps)
        if not submitted.joined:
            self._figures.submitted(kind)
        self._signal.notify()
        return submitted


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


def _removed_paths(folder: Path, found: StoredModel, others: Iterable[StoredModel]) -> tuple[str, ...]:
    """The files of a model, below folders of models, that no other model has or names."""
    used = {path for one in others for path in _named_by(one)}
    config = _config(found)
    needed = () if config is None else needed_files(folder, config, found.manifest)
    paths = [file.path for file in needed] or _named_by(found)
    parents = {path: {str(parent) for parent in PurePosixPath(path).parents} for path in paths}
    return tuple(path for path in dict.fromkeys(paths) if path not in used and not parents[path] & used)


def _named_by(model: StoredModel) -> list[str]:
    if model.manifest is not None:
        return [file.path for file in model.manifest.files]
    config = _config(model)
    named = () if config is None else named_files(config)
    return [path.lstrip("/") for path in named if not path_fault(path.lstrip("/"))]


def _config(model: StoredModel) -> ModelConfig | None:
    try:
        return read_model(model.text)
    except Invalid:
        return None


def written_at(model: StoredModel) -> str:
    return "" if model.updated_at is None else model.updated_at.isoformat()


def _has(standing: Standing, paths: Collection[str]) -> bool:
    """As it told last, also in an earlier life."""
    report: Report | None = current_report(standing.node)
    if report is None and standing.node.report is not None:
        report = Report.model_validate_json(standing.node.report.body)
    if report is None:
        return False
    return report.model_files_more or any(one.path in paths for one in report.model_files)

"""The configured models: read from the store, kept in memory; and those configured by files in the data
folder: a file that appears adds a model, one that disappears removes it.
"""

import errno
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from remuda.core.errors import Conflict, Invalid, Rejected, RemudaError
from remuda.core.hints import pasted
from remuda.core.os_errors import os_reason
from remuda.models.config import ModelConfig, is_gguf_backend
from remuda.models.files import NeededFile
from remuda.models.memory import NO_MEMORY, effective_context, memory_need
from remuda.models.model_folder import folder_stamp, is_model_folder
from remuda.models.needed_files import needed_files
from remuda.models.paths import check_absolute_paths
from remuda.models.reading import check_new_name, located, read_model
from remuda.models.wanted_sources import as_fetched, checked_sources, is_complete
from remuda.scheduler.model import ADDED, Need, SeenFacts, StoredModel, file_origin
from remuda.scheduler.ports import ModelEditStore, ModelStore, RoutingTable
from remuda.scheduler.scheduling import effective
from remuda.scheduler.seen_facts import (
    NOT_HERE,
    Weights,
    into_manifest,
    read_weights,
    to_write_down,
    written_down,
)

log = structlog.get_logger(__name__)

_PARALLEL_UNKNOWN = 1
_File = tuple[str, int, int]  # Its path, and what changes when it does.


@dataclass(frozen=True, slots=True)
class Catalogued:
    """A model that can be asked for."""

    stored: StoredModel
    config: ModelConfig
    weights: Weights = field(default_factory=Weights)
    here: bool = False  # Its bytes are in this machine's folder of models.
    lacks_files: bool = False  # Its configuration names sources that were not fetched yet.
    unsaid: SeenFacts | None = None  # What other frontends do not know of it yet.

    def need(self, size_elsewhere: int = 0) -> Need:
        """What it asks of a node. `size_elsewhere`: of its file, as a node reports it."""
        config, weights = self.config, self.weights
        size = weights.size_bytes or size_elsewhere
        parallel = config.parallel or _PARALLEL_UNKNOWN
        context = effective_context(config, weights.header)
        layout = None if weights.facts is None else weights.facts.layout
        memory = memory_need(layout, size, config, context, parallel) if size else None
        return Need(
            model=config.id,
            backend=config.backend,
            revision=config.revision,
            weights_bytes=size,
            memory_bytes=0 if memory is None else memory.total_bytes,
            on_gpu=NO_MEMORY if memory is None else memory.on_gpu,
            file=config.file if names_file(config) else "",
            selector=config.selector,
            parallel=config.parallel or 0,
            on_cpu=config.gpu_layers == 0,
            splits=is_gguf_backend(config.backend) or config.tensor_parallel_size > 1,
            chooses_gpus=bool(config.main_gpu or config.tensor_split),
        )


def names_file(config: ModelConfig) -> bool:
    """Whether the model is a file below the folder of models: anything else the backend finds by itself."""
    return config.file.endswith((".gguf", ".bin", ".safetensors", ".onnx"))


class ModelCatalogue:
    """`models_path` is this machine's folder of models; what the files in it say of themselves is written
    down for other frontends in the name of `frontend`."""

    def __init__(self, store: ModelStore, models_path: Path, frontend: str = "") -> None:
        self._store = store
        self._models_path = models_path
        self._frontend = frontend
        self._known: Mapping[str, Catalogued] = MappingProxyType({})
        self._weights_of: Mapping[_File, Weights] = {}  # Those of the last look.
        self._looks = 0  # So far, and the latest of those that came to an end.
        self._latest = 0
        self._described: set[str] = set()  # Lately, or tried.
        self._refused: dict[str, str] = {}
        self._refused_files: Mapping[str, str] = {}

    @property
    def configured(self) -> Mapping[str, Catalogued]:
        """Every model there is, by name."""
        return self._known

    @property
    def models(self) -> Mapping[str, Catalogued]:
        """By what requests call them; disabled ones are left out."""
        return {name: one for name, one in self._known.items() if not one.config.disabled}

    @property
    def unreadable(self) -> Collection[str]:
        """Models that this release cannot read; a later one may."""
        return self._refused.keys()

    @property
    def unusable(self) -> Mapping[str, str]:
        """Why what describes a model cannot be used, by file of this machine's folder, or by model's name."""
        return {**self._refused, **self._refused_files}

    def files_refused(self, why: Mapping[str, str]) -> None:
        """Files of this machine's folder that cannot be used now, by name."""
        self._refused_files = {str(self._models_path / name): reason for name, reason in why.items()}

    @property
    def models_path(self) -> Path:
        return self._models_path

    def find(self, name: str) -> Catalogued | None:
        """One that requests may ask for."""
        found = self._known.get(name)
        return None if found is None or found.config.disabled else found

    def backend_and_size(self, name: str) -> tuple[str, int]:
        """Its backend, and what its weights take on disk, as far as that is known here."""
        found = self._known.get(name)
        return ("", 0) if found is None else (found.config.backend, found.need().weights_bytes)

    async def refresh(self) -> None:
        """Read the store again. Raises what the store does; what was known then stays known, and so does what
        a later and quicker reading has brought."""
        self._looks += 1
        look = self._looks
        stored = await self._store.models()
        known = await run_sync(self._read, stored)
        if look > self._latest:
            self._known, self._latest = known, look
            await self._write_down(known)
        self._described &= known.keys()
        for one in known.values():
            await self._describe(one)

    async def _describe(self, model: Catalogued) -> None:
        """Write down what its files say of themselves, for frontends that do not have them, where an earlier
        release has installed it: that wrote nothing of it. Once; what fails is tried after the next start."""
        manifest = into_manifest(model.config, model.stored, model.weights) if model.here else None
        if manifest is None or model.config.id in self._described:
            return
        self._described.add(model.config.id)
        try:
            written = await self._store.describe_model(model.stored, manifest)
        except RemudaError as error:
            log.warning("model_not_described", model=model.config.id, reason=error.message)
        else:
            log.info("model_described", model=model.config.id, written=written)

    async def _write_down(self, known: Mapping[str, Catalogued]) -> None:
        for one in known.values():
            if one.unsaid is None:
                continue
            try:
                await self._store.note_seen(one.stored, one.unsaid)
            except RemudaError as error:  # The next look tries again.
                log.warning("model_facts_not_written", model=one.config.id, reason=error.message)
                return

    async def weights(self, config: ModelConfig) -> Weights:
        """What is known of a model that need not be configured yet."""
        weights, _ = await run_sync(self._weights, config, {})
        known = self._known.get(config.id)
        if weights is not NOT_HERE or known is None:
            return weights
        return written_down(config, known.stored)

    async def files(self, model: Catalogued) -> tuple[NeededFile, ...]:
        """What a load of it needs on a node; empty where that is not known here, or is incomplete."""
        manifest = model.stored.manifest
        if (manifest is None or not manifest.files) and not model.here:
            return ()
        return await run_sync(needed_files, self._models_path, model.config, manifest)

    async def files_of_all(self) -> Mapping[str, tuple[NeededFile, ...]]:
        """What loads of each configured model need, as far as it is known here."""
        known = self._known.values()
        return await run_sync(lambda: {one.config.id: self._files(one) for one in known})

    def _files(self, model: Catalogued) -> tuple[NeededFile, ...]:
        manifest = model.stored.manifest
        if (manifest is None or not manifest.files) and not model.here:
            file = model.config.file.lstrip("/")
            return (NeededFile(file, 0, here=False),) if file else ()
        return needed_files(self._models_path, model.config, manifest)

    def _read(self, stored: Sequence[StoredModel]) -> Mapping[str, Catalogued]:
        known: dict[str, Catalogued] = {}
        weights_of: dict[_File, Weights] = {}
        for one in stored:
            found = self._catalogued(one, weights_of)
            if found is not None:
                known[found.config.id] = found
        names = {one.name for one in stored}
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        self._weights_of = weights_of  # A file that grows is another one at each look.
        return MappingProxyType(known)

    def _catalogued(self, stored: StoredModel, weights_of: dict[_File, Weights]) -> Catalogued | None:
        found = self._config(stored)
        if found is None:
            return None
        config, lacks_files = found
        weights, here = self._weights(config, weights_of)
        unsaid = to_write_down(config, stored, weights, self._frontend) if self._frontend else None
        if unsaid is None and not weights.cut_off:
            known = written_down(config, stored)
            weights = weights if known is NOT_HERE else known
        return Catalogued(stored, config, weights, here, lacks_files, unsaid)

    def _config(self, stored: StoredModel) -> tuple[ModelConfig, bool] | None:
        """The same one while nothing about it has changed: requests that wait compare it. And whether it
        names sources that were not fetched yet."""
        before = self._known.get(stored.name)
        if before and _described_by(before.stored) == _described_by(stored):
            return before.config, before.lacks_files
        declared = self._parsed(stored)
        if declared is None:
            return None
        config = effective(as_fetched(declared, stored.manifest), stored.terms)
        return config, not is_complete(declared, stored.manifest)

    def _parsed(self, stored: StoredModel) -> ModelConfig | None:
        """A row that this release cannot read takes no other model with it; it is said once."""
        try:
            config = read_model(stored.text, where=stored.name)
        except Rejected as error:
            if self._refused.get(stored.name) != error.message:
                log.error("model_not_usable", model=stored.name, reason=str(error))
                self._refused[stored.name] = error.message
            return None
        self._refused.pop(stored.name, None)
        return config

    def _weights(self, config: ModelConfig, weights_of: dict[_File, Weights]) -> tuple[Weights, bool]:
        # Always within the folder, also if it is written like a path from the root.
        path = self._models_path / config.file.lstrip("/")
        try:
            facts = path.stat() if config.file else None
        except OSError:
            facts = None
        if facts is None:
            return NOT_HERE, False
        file = (str(path), facts.st_mtime_ns, facts.st_size)
        if not path.is_file():
            if not is_model_folder(path):
                return Weights(), True
            file = (str(path), folder_stamp(path), 0)
        weights_of[file] = self._weights_of.get(file) or read_weights(path, facts.st_size)
        return weights_of[file], not weights_of[file].cut_off


def _described_by(stored: StoredModel) -> tuple[object, ...]:
    return stored.text, stored.terms, stored.manifest


_LOOK_EVERY_S: Final = 5.0
_FILES_MAX: Final = 1000
_FILE_BYTES_MAX: Final = 1 << 20
_Stamp = tuple[int, int, int]
IMPORTED: Final = ".imported"  # Behind the name of a file whose model was taken over.
_SUFFIXES: Final = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was when it was last read."""

    stamp: _Stamp
    model: str = ""  # Empty: it cannot be used.
    why_not: str = ""
    behind: str = ""  # The model in the store for which the file is not used.


class _Behind(Conflict):
    """The model is in the store already, which has the last word."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"{model} was added by a command or the API, and that configuration is in use",
            hint=f"remove this file, or the model: remuda models remove {pasted(model)}",
        )
        self.model = model


class ModelFolder:
    """`frontend` tells apart the folders of several frontends; each answers only for its own files.
    `host` is the name of this machine. `refused` gets, after each look, the files that cannot be used, and
    why."""

    def __init__(
        self,
        folder: Path,
        store: ModelEditStore,
        frontend: str,
        table: RoutingTable,
        refused: Callable[[Mapping[str, str]], None] = lambda _: None,
        *,
        host: str = "",
    ) -> None:
        self._folder = folder
        self._store = store
        self._frontend = frontend
        self._host = host
        self._table = table
        self._refused = refused
        self._seen: dict[str, _Seen] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.look()
            except RemudaError as error:  # The store is away.
                log.warning("model_folder_not_read", reason=error.message)
            except OSError as error:
                log.warning("model_folder_not_read", folder=str(self._folder), reason=str(error))
            await anyio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Take in what is new, and take out what is gone."""
        files = await run_sync(self._files)
        added = {one.name for one in await self._store.models() if one.origin == ADDED}
        for name, (stamp, text) in files.items():
            seen = self._seen.get(name)
            if seen is None or seen.stamp != stamp or (seen.behind and seen.behind not in added):
                self._seen[name] = await self._take_in(name, stamp, text)
        self._seen = {name: seen for name, seen in self._seen.items() if name in files}
        self._refused({name: seen.why_not for name, seen in self._seen.items() if seen.why_not})
        for one in await self._store.models():
            if self.has(one) and not self._describes(one.file, one.name):
                await self._take_out(one.file, one.name)

    def has(self, model: StoredModel) -> bool:
        """Whether a file of this folder describes it."""
        return bool(model.file) and model.frontend == self._frontend

    async def set_aside(self, file: str) -> str:
        """Rename a file whose model needs it no more; the path that it has then. Raises OSError."""
        return str(await run_sync(partial(_set_aside, self._folder / file)))

    def _describes(self, name: str, model: str) -> bool:
        """A file that cannot be used stands for what it was: it may be about to be written."""
        seen = self._seen.get(name)
        return seen is not None and seen.model in ("", model)

    async def _take_out(self, name: str, model: str) -> None:
        await self._store.remove_model(model)
        log.info("model_removed", model=model, file=name)
        # Another file may describe it, too: that one is read again.
        self._seen = {other: seen for other, seen in self._seen.items() if seen.model != model}
        self._table.rows_changed()

    async def _take_in(self, name: str, stamp: _Stamp, text: str | Invalid) -> _Seen:
        try:
            if isinstance(text, Invalid):
                raise text
            config = read_model(text, where=name)
            with located(text, where=name):
                await self._check(config)
                await self._put(config, text, name)
        except Rejected as error:
            log.error("model_file_refused", file=name, reason=str(error))
            why_not = str(error).removeprefix(name).lstrip(":, ")
            return _Seen(stamp, why_not=why_not, behind=error.model if isinstance(error, _Behind) else "")
        log.info("model_read", model=config.id, file=name, unknown_keys=list(config.unknown))
        self._table.rows_changed()
        return _Seen(stamp, config.id)

    async def _check(self, config: ModelConfig) -> None:
        known = {one.name for one in await self._store.models()}
        if config.id not in known:
            check_new_name(config.id)
        check_absolute_paths(config, self._folder)
        checked_sources(config)

    async def _put(self, config: ModelConfig, text: str, name: str) -> None:
        origin = file_origin(self._frontend, self._host, name)
        if await self._store.put_from_file(StoredModel(config.id, text, config.revision, origin)) is None:
            raise _Behind(config.id)

    def _files(self) -> Mapping[str, tuple[_Stamp, str | Invalid]]:
        found: dict[str, tuple[_Stamp, str | Invalid]] = {}
        if not self._folder.is_dir():
            return found
        for path in sorted(self._folder.iterdir())[: _FILES_MAX * 10]:
            if path.suffix not in _SUFFIXES or not path.is_file() or len(found) >= _FILES_MAX:
                continue
            facts = path.stat()
            stamp = (facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)  # Permissions change the second.
            found[path.name] = (stamp, _text(path, facts.st_size))
        return found


def _set_aside(path: Path) -> Path:
    """Never over a file that was set aside before."""
    for number in range(1, _FILES_MAX):
        aside = path.with_name(f"{path.name}{IMPORTED}" + (f".{number}" if number > 1 else ""))
        if not aside.exists():
            return path.rename(aside)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _text(path: Path, size_bytes: int) -> str | Invalid:
    """Or why it cannot be had: one file keeps no other from being read."""
    if size_bytes > _FILE_BYTES_MAX:
        return Invalid(f"{path.name}: larger than {_FILE_BYTES_MAX >> 20} MiB, too large for a model")
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return Invalid(f"{path.name}: cannot be read: {os_reason(error)}")

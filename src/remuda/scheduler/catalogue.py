"""The configured models: read from the store, kept in memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import Rejected
from remuda.models.config import ModelConfig
from remuda.models.gguf import CutOff, GgufHeader
from remuda.models.gguf_file import open_gguf
from remuda.models.memory import effective_context, memory_need
from remuda.models.reading import read_model
from remuda.scheduler.model import Need, StoredModel
from remuda.scheduler.ports import ModelStore

log = structlog.get_logger(__name__)

_PARALLEL_UNKNOWN = 1
_File = tuple[str, int, int]  # Its path, and what changes when it does.


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's file on this machine, as far as it says something of itself."""

    size_bytes: int = 0
    header: GgufHeader | None = None
    cut_off: str = ""  # Why it cannot be used: it was not copied to its end.


@dataclass(frozen=True, slots=True)
class Catalogued:
    """A model that can be asked for."""

    stored: StoredModel
    config: ModelConfig
    weights: Weights = field(default_factory=Weights)
    here: bool = False  # Its bytes are in this machine's folder of models.

    def need(self, size_elsewhere: int = 0) -> Need:
        """What it asks of a node. `size_elsewhere`: of its file, as a node told, where there is none here."""
        config, weights = self.config, self.weights
        size = weights.size_bytes or size_elsewhere
        parallel = config.parallel or _PARALLEL_UNKNOWN
        context = effective_context(config, weights.header)
        memory = memory_need(weights.header, size, config, context, parallel) if size else None
        return Need(
            model=config.id,
            backend=config.backend,
            revision=config.revision,
            weights_bytes=size,
            memory_bytes=0 if memory is None else memory.total_bytes,
            file=config.file if names_file(config) else "",
            selector=config.selector,
            parallel=config.parallel or 0,
            on_cpu=config.gpu_layers == 0,
        )


def names_file(config: ModelConfig) -> bool:
    """Whether the model is a file below the folder of models: anything else the backend finds by itself."""
    return config.file.endswith((".gguf", ".bin", ".safetensors", ".onnx"))


class ModelCatalogue:
    """`models_path` is this machine's folder of models."""

    def __init__(self, store: ModelStore, models_path: Path) -> None:
        self._store = store
        self._models_path = models_path
        self._known: Mapping[str, Catalogued] = MappingProxyType({})
        self._weights_of: Mapping[_File, Weights] = {}  # Those of the last look.
        self._looks = 0  # So far, and the latest of those that came to an end.
        self._latest = 0
        self._refused: dict[str, str] = {}

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
        """Models that only a later release understands, or nobody: not for this frontend to judge."""
        return self._refused.keys()

    @property
    def models_path(self) -> Path:
        return self._models_path

    def find(self, name: str) -> Catalogued | None:
        """One that requests may ask for."""
        found = self._known.get(name)
        return None if found is None or found.config.disabled else found

    async def refresh(self) -> None:
        """Read the store again. Raises what the store does; what was known then stays known, and so does what
        somebody has read who began later and was quicker."""
        self._looks += 1
        look = self._looks
        stored = await self._store.models()
        known = await run_sync(self._read, stored)
        if look > self._latest:
            self._known, self._latest = known, look

    async def weights(self, config: ModelConfig) -> Weights:
        """What this machine has of a model that need not be configured yet."""
        weights, _ = await run_sync(self._weights, config, {})
        return weights

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
        before = self._known.get(stored.name)
        config = before.config if before and before.stored.text == stored.text else self._parsed(stored)
        if config is None:
            return None
        weights, here = self._weights(config, weights_of)
        return Catalogued(stored, config, weights, here)

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
            return Weights(), False
        if not path.is_file():
            return Weights(), True
        file = (str(path), facts.st_mtime_ns, facts.st_size)
        weights_of[file] = self._weights_of.get(file) or _weights(path, facts.st_size)
        return weights_of[file], not weights_of[file].cut_off


def _weights(path: Path, size_bytes: int) -> Weights:
    """A file that says nothing of itself still has a size."""
    try:
        found = open_gguf(path)
    except CutOff as error:
        return Weights(cut_off=str(error))
    except Rejected:
        return Weights(size_bytes)
    return Weights(found.size_bytes, found.header)

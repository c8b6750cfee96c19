"""Whether nodes could take a model before it is installed: its source is asked for the sizes of its files,
and placement decides, with its own reasons."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
import yaml

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.hubs.model import AskRoom, RemoteFile
from remuda.model_installs.naming import folder_of
from remuda.model_installs.ports import ChooseBackend, ModelHub
from remuda.model_installs.service import InstallRequest, WantedModel
from remuda.model_installs.source_files import SourceFiles
from remuda.models.config import GGUF_BACKEND, ModelConfig
from remuda.models.files import NeededFile
from remuda.models.model_folder import folder_backends
from remuda.models.reading import read_model
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.model import ADDED, ModelFit, StoredModel
from remuda.scheduler.seen_facts import Weights

SIZES_S: Final = 8.0  # For the source to tell them.
_KNOWN_S: Final = 300.0
_KNOWN_MAX: Final = 200
_GGUF: Final = ".gguf"


class Placement(Protocol):
    async def fits(self, model: Catalogued, files: Sequence[NeededFile] | None = None) -> ModelFit: ...


@dataclass(frozen=True, slots=True)
class Prospect:
    """What nodes could do for a model. `size_unknown`: why its size is not known; it may then fit nowhere."""

    fit: ModelFit
    size_unknown: str = ""


@dataclass(frozen=True, slots=True)
class ProspectDeps:
    wanted: Callable[[InstallRequest], Awaitable[WantedModel]]
    hub: ModelHub
    room: AskRoom
    backends: ChooseBackend
    placement: Placement
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Sizes:
    at_s: float
    files: Sequence[RemoteFile]


@dataclass(slots=True)
class Prospects:
    deps: ProspectDeps
    _known: dict[WantedModel, _Sizes] = field(default_factory=dict)

    async def fits(self, name: str) -> Prospect:
        """NotFound for a name that no gallery has. What a source does not tell in time is not known."""
        wanted = await self.deps.wanted(InstallRequest(name))
        files, unknown = await self._files(wanted)
        config = await self._config(wanted, [one.path for one in files if not one.role])
        own = [one for one in files if not one.role and one.path != config.mmproj]
        unknown = unknown or _unknown_size(own)
        size = 0 if unknown else sum(one.size or 0 for one in own)
        stored = StoredModel(wanted.name, "", config.revision, ADDED)
        needed = [] if unknown else [_needed(wanted.name, one) for one in files]
        model = Catalogued(stored, config, Weights(size), here=True)
        return Prospect(await self.deps.placement.fits(model, needed), unknown)

    async def _files(self, wanted: WantedModel) -> tuple[Sequence[RemoteFile], str]:
        now_s = self.deps.clock.monotonic()
        known = self._known.get(wanted)
        if known is not None and now_s - known.at_s < _KNOWN_S:
            return known.files, ""
        source = str(wanted.source)
        sources = SourceFiles(self.deps.hub, self.deps.room, source, wanted.spec)
        try:
            with anyio.fail_after(SIZES_S):
                files = (*(await sources.resolved(source)).files, *await sources.companions())
        except TimeoutError:
            return (), f"{source} did not answer within {SIZES_S:.0f} s"
        except RemudaError as error:
            return (), error.public_text
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[wanted] = _Sizes(now_s, files)
        return files, ""

    async def _config(self, wanted: WantedModel, paths: Sequence[str]) -> ModelConfig:
        """As far as its gallery gives it; the rest is read from its files once they are there."""
        keys = yaml.safe_load(wanted.spec.config) if wanted.spec.config.strip() else {}
        listed = keys if isinstance(keys, dict) else {}
        config = read_model(yaml.safe_dump({**listed, "name": wanted.name}))
        file = next((path for path in paths if path.endswith(_GGUF)), config.file)
        backend = config.backend
        if not backend and file.endswith(_GGUF):
            backend = GGUF_BACKEND
        if not backend and (candidates := folder_backends(paths)):
            backend = (await self.deps.backends(candidates)).backend
        place = f"{folder_of(wanted.name)}/{file}" if file in paths else file
        parameters = config.parameters.model_copy(update={"model": place})
        return config.model_copy(update={"backend": backend, "parameters": parameters})


def _unknown_size(own: Sequence[RemoteFile]) -> str:
    silent = next((one for one in own if one.size is None), None)
    return "" if silent is None else f"its source does not give the size of {silent.path}"


def _needed(name: str, file: RemoteFile) -> NeededFile:
    """Once it is installed, this frontend has it."""
    return NeededFile(f"{folder_of(name)}/{file.path}", file.size or 0, file.sha256)

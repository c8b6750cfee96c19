"""What has arrived, before it can be seen: is it a model, is all of it there, and how is it served?
Reading blocks: not for an event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import yaml

from remuda.core.errors import Invalid, Misconfigured
from remuda.hubs.model import ModelHints
from remuda.model_installs.companions import COMPANION
from remuda.model_installs.naming import folder_of
from remuda.models.config import ModelConfig, Parameters, Template
from remuda.models.gguf import GgufHeader, parts_of, read_header
from remuda.models.gguf_file import (
    Projector,
    choose_projector,
    describe_gguf,
    open_gguf,
    unfit_projector,
)
from remuda.models.model_folder import FOLDER_CONFIGS, TEXT_BACKENDS, folder_backends, folder_purpose
from remuda.models.reading import read_model, write_model
from remuda.models.templates import check_ollamas
from remuda.models.wanted_sources import artifact_folder

_GGUF: Final = ".gguf"
_CONFIGURATIONS: Final = (".yaml", ".yml")
_PROJECTOR: Final = "mmproj"
_ADAPTER: Final = "adapter"
_DRAFT: Final = "draft"
_NO_HINTS: Final = ModelHints()
# Ollama's names of parameters, and ours.
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "num_predict": "max_tokens",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
}


@dataclass(frozen=True, slots=True)
class _Found:
    path: str  # Below the folder of models.
    role: str  # Empty: the model itself.
    header: GgufHeader


@dataclass(frozen=True, slots=True)
class Arrival:
    """What has come of one model. `roles` says of paths what their source calls them: mmproj, adapter or
    draft. `overlay` is YAML that is laid over the configuration; `folder_backend` serves safetensors here."""

    name: str
    folder: Path
    paths: Sequence[str]  # Below the folder.
    roles: Mapping[str, str] = field(default_factory=dict)
    hints: ModelHints = _NO_HINTS
    overlay: str = ""
    folder_backend: str = TEXT_BACKENDS[0]


def described(arrival: Arrival) -> ModelConfig:
    """How to serve the model of these files. Invalid, naming the file, for what is no model or not all of
    one."""
    over = _overlay(arrival)
    try:
        config = _described(arrival, over)
    except Invalid as error:  # Without our own folder, which users do not know.
        cleaned = error.message.replace(f"{arrival.folder}/", "")
        raise type(error)(cleaned, hint=error.hint) from None
    return _with_artifacts(_overlaid(config, over), arrival) if over else config


def _with_artifacts(config: ModelConfig, arrival: Arrival) -> ModelConfig:
    """Backends find artifacts by options with their names."""
    own = folder_of(arrival.name)
    places = [(one.name, f"{own}/{artifact_folder(one)}") for one in config.artifacts if one.name]
    brought = [
        f"{name}:{place}"
        for name, place in places
        if any(path.startswith(f"{place}/") for path in arrival.paths)
    ]
    more = tuple(option for option in brought if option not in config.options)
    return config.model_copy(update={"options": (*config.options, *more)}) if more else config


def _overlay(arrival: Arrival) -> dict[str, object]:
    """What is laid over, with files named by where they are."""
    if not arrival.overlay.strip():
        return {}
    over = yaml.safe_load(arrival.overlay)
    if not isinstance(over, dict):
        raise Invalid("what is laid over the model's configuration must be a map of keys")
    files = _by_short_name(arrival)
    named = _placed({key: value for key, value in over.items() if key != "name"}, files)
    assert isinstance(named, dict), "a map stays one"
    parameters = named.get("parameters")
    if isinstance(parameters, dict) and isinstance(folder := parameters.get("model"), str):
        place = f"{folder_of(arrival.name)}/{folder}"
        if any(path.startswith(f"{place}/") for path in arrival.paths):
            parameters["model"] = place
    return named


def _by_short_name(arrival: Arrival) -> Mapping[str, str]:
    """By what they are called below the model's own folder, as a gallery names them."""
    prefix = f"{folder_of(arrival.name)}/"
    return {path.removeprefix(prefix): path for path in arrival.paths}


def _described(arrival: Arrival, over: Mapping[str, object]) -> ModelConfig:
    found = [_look(arrival, path) for path in sorted(arrival.paths) if _is_first(path)]
    models = [one.path for one in found if not one.role]
    wanted = _named_file(over)
    if wanted not in models and (not models or wanted):
        known = any(path == wanted or path.startswith(f"{wanted}/") for path in arrival.paths)
        if over.get("backend") and wanted and known and not folder_backends(arrival.paths):
            # Its gallery says what serves it: models of other formats have no header that we could read.
            return ModelConfig(name=arrival.name)
        if not models:
            return _of_folder(arrival)
    if len(models) > 1 and wanted not in models:
        names = ", ".join(PurePosixPath(path).name for path in models[:5])
        raise Invalid(f"there are several models: {names}", hint="name one of the files")
    path = wanted if wanted in models else models[0]
    gguf = open_gguf(arrival.folder / path)
    config = describe_gguf(gguf.first.name, gguf.header, path)
    more = _companions(config, gguf.header, found)
    config = config.model_copy(update={"name": arrival.name, **more})
    return _hinted(config, arrival.hints, has_template=gguf.header.has_chat_template)


def _named_file(over: Mapping[str, object]) -> str:
    """What the overlay calls the model itself; empty: nothing."""
    parameters = over.get("parameters")
    named = parameters.get("model") if isinstance(parameters, dict) else None
    return named if isinstance(named, str) else ""


def projector_left_out(arrival: Arrival, config: ModelConfig) -> str:
    """Why the projector that came with a model is not used; empty: it is, or none came."""
    if config.mmproj or config.file not in arrival.paths or not _is_first(config.file):
        return ""
    found = [_look(arrival, path) for path in sorted(arrival.paths) if _is_first(path)]
    header = next(one.header for one in found if one.path == config.file)
    return unfit_projector(PurePosixPath(config.file).name, header, _projectors(found))


def _projectors(found: Sequence[_Found]) -> list[Projector]:
    return [Projector(one.path, one.header) for one in found if one.role == _PROJECTOR]


def _companions(config: ModelConfig, header: GgufHeader, found: Sequence[_Found]) -> dict[str, object]:
    """The keys for what belongs to the model."""
    changes: dict[str, object] = {}
    name = PurePosixPath(config.file).name
    if projector := choose_projector(name, header, _projectors(found)):
        changes["mmproj"] = projector.path
        hears = projector.header.hears
        sees = {"vision"} if projector.header.sees or not hears else set[str]()
        audible = {"audio"} if hears else set[str]()
        changes["known_usecases"] = (
            *config.known_usecases,
            *sorted((sees | audible) - {*config.known_usecases}),
        )
    if adapters := tuple(one.path for one in found if one.role == _ADAPTER):
        changes["lora_adapters"] = adapters
    if draft := next((one.path for one in found if one.role == _DRAFT), ""):
        changes["draft_model"] = draft
    return changes


def _is_first(path: str) -> bool:
    """Whether it is a GGUF file, and the first where a model has several parts."""
    name = PurePosixPath(path).name
    return name.lower().endswith(_GGUF) and parts_of(name)[0] == name


def _look(arrival: Arrival, path: str) -> _Found:
    try:
        with (arrival.folder / path).open("rb") as file:
            header = read_header(file)
    except Invalid as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from None
    role = _PROJECTOR if header.is_projector else _ADAPTER if header.kind == _ADAPTER else ""
    return _Found(path, role or arrival.roles.get(path, ""), header)


def _of_folder(arrival: Arrival) -> ModelConfig:
    """A model that is a folder: its weights are in safetensors, and a server reads all of it."""
    own = [path for path in arrival.paths if arrival.roles.get(path) != COMPANION]
    tops = {path.rpartition("/")[0] for path in own if PurePosixPath(path).name in FOLDER_CONFIGS}
    if not tops or not any(path.endswith(".safetensors") for path in arrival.paths):
        shown = ", ".join(PurePosixPath(path).name for path in sorted(arrival.paths)[:5])
        if all(path.lower().endswith(_CONFIGURATIONS) for path in own):
            raise Invalid(
                f"{shown}: a configuration, and not the model itself",
                hint="download it, and add it with: remuda models add FILE.yaml",
            )
        raise Invalid(
            f"{shown}: there is no model in it",
            hint="a model is a GGUF file, a folder with config.json and safetensors, or what its gallery "
            "names a backend for",
        )
    top = min(tops)
    config = ModelConfig(name=arrival.name, backend=arrival.folder_backend, parameters=Parameters(model=top))
    return config.model_copy(update=folder_purpose(arrival.folder / top))


def _hinted(config: ModelConfig, hints: ModelHints, *, has_template: bool) -> ModelConfig:
    """The model's own template wins over a hub's, which is for models that have none."""
    sampling = {
        ours: value
        for theirs, ours in _SAMPLING.items()
        if (value := hints.parameters.get(theirs)) is not None
    }
    changes: dict[str, object] = {}
    if sampling:
        changes["parameters"] = type(config.parameters).model_validate(
            {**config.parameters.model_dump(exclude_defaults=True), **sampling}
        )
    context = hints.parameters.get("num_ctx")
    if isinstance(context, int) and not isinstance(context, bool) and context > 0:
        changes["context_size"] = context
    stops = hints.parameters.get("stop")
    if isinstance(stops, list | str):
        changes["stopwords"] = tuple(map(str, stops if isinstance(stops, list) else [stops]))
    if hints.system:
        changes["system_prompt"] = hints.system
    chats = not has_template and not config.embeddings and not config.reranking
    if hints.template and chats and not template_fault(hints):
        changes["template"] = Template(chat=hints.template)
        changes["known_usecases"] = ("chat", "completion")
    return config.model_copy(update=changes)


def template_fault(hints: ModelHints) -> str:
    """Why a hub's template cannot be used; empty: it can, or there is none."""
    try:
        if hints.template:
            check_ollamas(hints.template)
    except Misconfigured as error:
        return f"the template that its source has for it cannot be used: {error.message}"
    return ""


def _overlaid(config: ModelConfig, over: dict[str, object]) -> ModelConfig:
    """Maps are merged key by key, anything else is replaced."""
    base = yaml.safe_load(write_model(config))
    merged = _merged(base, over)
    return read_model(yaml.safe_dump(merged, sort_keys=False, allow_unicode=True))


def _placed(value: object, files: Mapping[str, str]) -> object:
    match value:
        case dict():
            return {key: _placed(inner, files) for key, inner in value.items()}
        case list():
            return [_placed(inner, files) for inner in value]
        case str():
            return files.get(value, value)
    return value


def _merged(base: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merged(known, value) if both else value  # type: ignore[arg-type]
    return merged

"""What has arrived, before anybody can see it: is it a model, is all of it there, and how is it served?
Reading blocks: not for an event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import yaml

from remuda.core.errors import Invalid
from remuda.hubs.model import ModelHints
from remuda.model_installs.naming import folder_of
from remuda.models.config import ModelConfig, Template
from remuda.models.gguf import parts_of, read_header
from remuda.models.gguf_file import describe_gguf, open_gguf
from remuda.models.reading import read_model, write_model

_GGUF: Final = ".gguf"
_PROJECTORS: Final = frozenset({"mmproj", "clip"})
_FOLDER_CONFIG: Final = "config.json"
_FOLDER_BACKEND: Final = "vllm"
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
    projector: bool


def described(
    name: str, folder: Path, paths: Sequence[str], hints: ModelHints = _NO_HINTS, overlay: str = ""
) -> ModelConfig:
    """How to serve the model of these files, which are below `folder`. Invalid, naming the file, for what is
    no model or not all of one. `overlay` is YAML that is laid over it."""
    try:
        config = _described(name, folder, paths, hints)
    except Invalid as error:  # In the words of those who named the model: nobody knows this folder.
        cleaned = error.message.replace(f"{folder}/", "")
        raise type(error)(cleaned, hint=error.hint) from None
    return _overlaid(config, overlay, _by_short_name(name, paths)) if overlay.strip() else config


def _by_short_name(name: str, paths: Sequence[str]) -> Mapping[str, str]:
    """By what they are called below the model's own folder, as a gallery names them."""
    prefix = f"{folder_of(name)}/"
    return {path.removeprefix(prefix): path for path in paths}


def _described(name: str, folder: Path, paths: Sequence[str], hints: ModelHints) -> ModelConfig:
    found = [_look(folder, path) for path in sorted(paths) if _is_first(path)]
    models = [one for one in found if not one.projector]
    if not models:
        return _of_folder(name, paths)
    if len(models) > 1:
        names = ", ".join(PurePosixPath(one.path).name for one in models[:5])
        raise Invalid(f"there are several models: {names}", hint="name one of the files")
    gguf = open_gguf(folder / models[0].path)
    config = describe_gguf(gguf.first.name, gguf.header, models[0].path)
    changes: dict[str, object] = {"name": name}
    if projector := next((one.path for one in found if one.projector), ""):
        changes["mmproj"] = projector
        changes["known_usecases"] = (*config.known_usecases, "vision")
    config = config.model_copy(update=changes)
    return _hinted(config, hints, has_template=gguf.header.has_chat_template)


def _is_first(path: str) -> bool:
    """Whether it is a GGUF file, and the first where a model has several parts."""
    name = PurePosixPath(path).name
    return name.lower().endswith(_GGUF) and parts_of(name)[0] == name


def _look(folder: Path, path: str) -> _Found:
    try:
        with (folder / path).open("rb") as file:
            header = read_header(file)
    except Invalid as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from None
    return _Found(path, header.kind in _PROJECTORS or header.architecture in _PROJECTORS)


def _of_folder(name: str, paths: Sequence[str]) -> ModelConfig:
    """A model that is a folder: its weights are in safetensors, and a server reads all of it."""
    tops = {path.rpartition("/")[0] for path in paths if PurePosixPath(path).name == _FOLDER_CONFIG}
    if not tops or not any(path.endswith(".safetensors") for path in paths):
        shown = ", ".join(PurePosixPath(path).name for path in sorted(paths)[:5])
        raise Invalid(
            f"{shown}: there is no model in it",
            hint="a model is a GGUF file, or a folder with config.json and safetensors",
        )
    text = write_model(ModelConfig(name=name, backend=_FOLDER_BACKEND))
    return read_model(text).model_copy(
        update={"parameters": ModelConfig().parameters.model_copy(update={"model": min(tops)})}
    )


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
    if hints.template and not has_template and not config.embeddings and not config.reranking:
        changes["template"] = Template(chat=hints.template)
        changes["known_usecases"] = ("chat", "completion")
    return config.model_copy(update=changes)


def _overlaid(config: ModelConfig, overlay: str, files: Mapping[str, str]) -> ModelConfig:
    """Maps are merged key by key, anything else is replaced. Files are named by where they are."""
    base = yaml.safe_load(write_model(config))
    over = yaml.safe_load(overlay)
    if not isinstance(over, dict):
        raise Invalid("what is laid over the model's configuration must be a map of keys")
    named = _placed({key: value for key, value in over.items() if key != "name"}, files)
    assert isinstance(named, dict), "a map stays one"
    merged = _merged(base, named)
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

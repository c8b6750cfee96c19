"""Which files a model's configuration names, and that they stay inside the models folder. Pure."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from remuda.core.errors import Invalid
from remuda.models.config import ModelConfig

_SHOWN_CHARS_MAX: Final = 60
# In the names of options whose values are files: of llama.cpp, vLLM, and what speaks their options.
_FILE_WORDS: Final = frozenset(
    {"lora", "loras", "adapter", "adapters", "modules", "mmproj", "draft", "md"}
) | {
    *("model", "tokenizer", "vocab", "template", "config", "cache", "vector", "clip", "vae", "vocoder"),
    *("path", "file", "folder", "dir", "root"),
}
_TEMPLATE: Final = "template"  # In keys whose texts may hold braces and slashes of their own.
_JSON: Final = TypeAdapter[JsonValue](JsonValue)
_WORD: Final = re.compile(r"[a-z0-9]+")
_URL: Final = re.compile(r"\bhttps?://[^\s,]+")
_BETWEEN_PATHS: Final = re.compile(r"""[\s=:,;"'\[\]()|@]+""")  # Wherever a backend may end one path.
_PLAIN_KEY: Final = re.compile(r"[\w.-]+")


def check_paths(config: ModelConfig) -> None:
    """Invalid for a file that would lie outside the folder of models, wherever that is."""
    for key, path in _paths(config):
        if path.startswith("~") or ".." in path.replace("\\", "/").split("/"):
            raise Invalid(
                f"{key}: {path[:_SHOWN_CHARS_MAX]!r} is outside the models folder", param=_field(key)
            )
        if not path.isprintable():
            raise Invalid(f"{key}: {path[:_SHOWN_CHARS_MAX]!r} has invisible characters", param=_field(key))


def check_absolute_paths(config: ModelConfig, models_path: PurePath, *others: PurePath) -> None:
    """Invalid for an absolute path outside these folders of models: it would name any file of a worker."""
    for key, path in _paths(config):
        if path.startswith("/") and not any(map(PurePath(path).is_relative_to, (models_path, *others))):
            raise Invalid(
                f"{key}: {path[:_SHOWN_CHARS_MAX]!r} is outside the models folder",
                hint=f"put the file, or a link to it, into {models_path} and name it relative to that folder",
                param=_field(key),
            )


def named_files(config: ModelConfig) -> Iterator[str]:
    """What may be a file or a folder that the model is loaded with; what is none does not exist. Not what the
    backend writes."""
    for key, path in _paths(config):
        if path and key != "prompt_cache_path":
            yield path
    for option in config.options:  # Whatever its name: the contract's backends have names of their own.
        value = option.partition(":")[2].strip()
        if value and "\0" not in value:
            yield value


def _field(key: str) -> str:
    """Of a key as it is shown: options are named by what stands in them."""
    return key.partition(":")[0]


def _paths(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Every file that the model names, with the key that names it."""
    named = {
        "parameters.model": [config.parameters.model],
        "parameters.tokenizer": [config.parameters.tokenizer],
        "mmproj": [config.mmproj],
        "draft_model": [config.draft_model],
        "lora_adapter": [config.lora_adapter],
        "lora_adapters": config.lora_adapters,
        "lora_base": [config.lora_base],
        "prompt_cache_path": [config.prompt_cache_path],
    }
    for key, paths in named.items():
        yield from ((key, path) for path in paths)
    for override in config.overrides:
        yield from _free_paths(f"overrides: {override}", override)
    for option in config.options:
        key, _, value = (part.strip() for part in option.partition(":"))
        plain = _PLAIN_KEY.fullmatch(key) and not key.startswith("-") and value
        yield from _free_paths(f"options: {key if plain else option.strip()}", value if plain else option)
    for key, inner in config.engine_args.items():
        yield from _free_paths(f"engine_args.{key}", inner)
        yield from _pieces(f"engine_args.{key}", key)


def _free_paths(key: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    """The files in what a backend is given in its own words: by the names that such keys have (`lora`,
    `mmproj`, `draft_model`, `tokenizer`, `slot_save_path`, `download_dir` and their like), and whatever looks
    like a path outside a folder, because a backend may have names for its files that are not known here."""
    match value:
        case dict():
            for name, inner in value.items():
                yield from _free_paths(f"{key}.{name}", inner)
                yield from _pieces(key, name)
        case list():
            for inner in value:
                yield from _free_paths(key, inner)
        case str() if (parsed := _json(value)) is not None:
            yield from _free_paths(key, parsed)
        case str() if not (_TEMPLATE in key.lower() and "{" in value):
            if _FILE_WORDS & set(_WORD.findall(key.lower())):
                parts = (part.strip() for part in _URL.sub("", value).split(","))
                yield from ((key[:_SHOWN_CHARS_MAX], part) for part in parts if part)
            yield from _pieces(key, value)


def _json(text: str) -> JsonValue:
    """A map or a list that is written as a text of JSON; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return _JSON.validate_json(text)
    except ValidationError:
        return None


def _pieces(key: str, text: str) -> Iterator[tuple[str, str]]:
    """What in a text would lead out of the current folder: absolute, in a home, or upwards."""
    for piece in _BETWEEN_PATHS.split(_URL.sub("", text)):
        path = piece.replace("\\", "/")
        if path.strip("/") and (path.startswith(("/", "~")) or ".." in path.split("/")):
            yield key[:_SHOWN_CHARS_MAX], path

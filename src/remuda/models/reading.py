"""Model files: from YAML to a ModelConfig and back. Pure.

Keys that have no effect here are no error: files are shared with peers that know other keys. One that
looks misspelled is named together with the key that was probably meant.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Final, TypeGuard

import yaml
from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from remuda.core.errors import Invalid
from remuda.core.field_errors import place, wanted
from remuda.core.hints import likeness
from remuda.core.yaml_tree import Value
from remuda.models.config import GGUF_BACKEND, ModelConfig, Parameters, Section, parse_document

_LIKENESS_MIN: Final = 0.65  # Higher than for names that were typed: most unknown keys are a peer's.


def misspelled(unknown: tuple[str, ...]) -> list[str]:
    """A warning for each unknown key that is close to a known one, or known elsewhere in the file."""
    return [
        f"{key} is not a known key and has no effect; did you mean `{meant}`?"
        for key in unknown
        if (meant := _meant(key))
    ]


def _meant(key: str) -> str:
    prefix, _, last = key.rpartition(".")
    section = _section(prefix)
    if section is None:
        return ""
    if section is ModelConfig and last in Parameters.model_fields:
        return f"parameters.{last}"
    if section is Parameters and last in _keys(ModelConfig):
        return last
    near = [name for name in _keys(section) if _alike(last, name)]
    best = max(near, key=lambda name: likeness(last, name), default="")
    return f"{prefix}.{best}" if best and prefix else best


def _alike(written: str, known: str) -> bool:
    """A pair of letters in the wrong order changes most pairs of a short word."""
    swapped = written[:1] == known[:1] and sorted(written) == sorted(known)
    return swapped or likeness(written, known) >= _LIKENESS_MIN


def _keys(section: type[Section]) -> list[str]:
    return [name for name, field in section.model_fields.items() if not field.exclude]


def _section(prefix: str) -> type[Section] | None:
    found: type[Section] | None = ModelConfig
    for name in prefix.split(".") if prefix else ():
        field = found.model_fields.get(name) if found is not None else None
        kind = field.annotation if field is not None else None
        found = kind if isinstance(kind, type) and issubclass(kind, Section) else None
    return found


NAME_CHARS_MAX: Final = 256
_COMPLAINTS_MAX: Final = 3
_SHOWN_CHARS_MAX: Final = 60
_UNKNOWN_MAX: Final = 100
_SECTIONS: Final = frozenset({"dict", "model"})
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
_SHELL_CHARACTERS: Final = frozenset("`$\\\"';|&<>*?!{}[]()")


def read_model(text: str, *, where: str = "") -> ModelConfig:
    """The model that a file describes; `where` is the file's name, for complaints.

    Invalid says which key cannot be used, what stands there and what is accepted.
    """
    try:
        return _read(text)
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}" if where else error.message) from None


def write_model(config: ModelConfig) -> str:
    """The YAML that `read_model` makes this of: only what differs from the defaults."""
    kept = config.model_dump(mode="json", exclude_defaults=True)
    return yaml.dump(kept, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def check_name(name: str) -> None:
    """Invalid for a name that no request, process or folder could go by."""
    if not name.strip():
        raise Invalid("name: it is missing, and so is parameters.model")
    if len(name) > NAME_CHARS_MAX:
        raise Invalid(f"name: it has {len(name)} characters, and at most {NAME_CHARS_MAX} are accepted")
    if name != name.strip() or not name.isprintable():
        raise Invalid(f"name: {name!r} has blanks around it or characters that cannot be seen")
    if "#" in name:
        raise Invalid(f"name: {name!r} must not hold #, which stands before the number of a replica")


def check_new_name(name: str) -> None:
    """Invalid for a name that must not be given any more: one that is no path below a folder, or that a
    shell would take for something else when it is pasted. Models that have such a name keep it."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise Invalid(
            f"name: {name[:_SHOWN_CHARS_MAX]!r} cannot be the name of a file: empty parts, . and .. are not "
            "accepted between slashes"
        )
    if name.startswith(("-", "~")):
        raise Invalid(f"name: {name[:_SHOWN_CHARS_MAX]!r} must not begin with {name[0]}")
    if found := sorted(set(name) & _SHELL_CHARACTERS):
        raise Invalid(
            f"name: {name[:_SHOWN_CHARS_MAX]!r} must not contain {' '.join(found)}, which shells interpret",
            hint="use letters, digits and . _ - : / @ +",
        )


def check_file(config: ModelConfig) -> None:
    """Invalid for a model of llama.cpp that names no file: no node could ever load it."""
    needed = config.backend == GGUF_BACKEND or config.backend.endswith(f"-{GGUF_BACKEND}")
    if needed and not config.file and not config.alias:
        hint = "name the file, relative to the models folder: parameters: {model: FILE.gguf}"
        raise Invalid(
            f"parameters.model: it is missing, and the backend {config.backend} needs a model file",
            hint=next(iter(misspelled(config.unknown)), hint),
        )


def check_paths(config: ModelConfig) -> None:
    """Invalid for a file that would lie outside the folder of models, wherever that is."""
    for key, path in _paths(config):
        if path.startswith("~") or ".." in path.replace("\\", "/").split("/"):
            raise Invalid(f"{key}: {path[:_SHOWN_CHARS_MAX]!r} is outside the models folder")
        if not path.isprintable():
            raise Invalid(f"{key}: {path[:_SHOWN_CHARS_MAX]!r} has characters that cannot be seen")


def check_absolute_paths(config: ModelConfig, models_path: PurePath, *others: PurePath) -> None:
    """Invalid for an absolute path outside these folders of models: it would name any file of a worker."""
    for key, path in _paths(config):
        if path.startswith("/") and not any(map(PurePath(path).is_relative_to, (models_path, *others))):
            raise Invalid(
                f"{key}: {path[:_SHOWN_CHARS_MAX]!r} is outside the models folder",
                hint=f"put the file, or a link to it, into {models_path} and name it relative to that folder",
            )


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
    """The files among what a backend is told in its own words: by the names that such keys have (`lora`,
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


def _read(text: str) -> ModelConfig:
    found = parse_document(text)
    if not isinstance(found, dict):
        raise Invalid("it must be a map of keys, such as name, backend and parameters")
    unknown: list[str] = []
    known = _known(ModelConfig, found, "", unknown)
    try:
        config = ModelConfig.model_validate({**known, "unknown": tuple(unknown[:_UNKNOWN_MAX])})
    except ValidationError as error:
        raise Invalid("; ".join(list(_complaints(error))[:_COMPLAINTS_MAX])) from None
    check_name(config.id)
    check_paths(config)
    return config if config.name else config.model_copy(update={"name": config.id})


def _known(
    section: type[Section], found: Mapping[str, Value], prefix: str, unknown: list[str]
) -> dict[str, Value]:
    """What the section has a place for. A key without a value counts as not written."""
    known: dict[str, Value] = {}
    for key, value in found.items():
        field = section.model_fields.get(key)
        if field is None or field.exclude:
            unknown.append(f"{prefix}{key[:_SHOWN_CHARS_MAX]}")
        elif value is None:
            continue
        elif isinstance(value, dict) and _is_section(field.annotation):
            known[key] = _known(field.annotation, value, f"{prefix}{key}.", unknown)
        else:
            known[key] = value
    return known


def _is_section(annotation: object) -> TypeGuard[type[Section]]:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _complaints(error: ValidationError) -> Iterator[str]:
    for item in error.errors(include_url=False):
        yield f"{place(item['loc'])}: invalid value {_shown(item['input'])}; {_reason(item)}"


def _reason(item: ErrorDetails) -> str:
    if item["type"] == "value_error":
        return item["msg"].removeprefix("Value error, ")
    kind = item["type"].partition("_")[0]
    return (
        "it must be a map of keys" if kind in _SECTIONS else f"it {wanted(item['type'], item.get('ctx', {}))}"
    )


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    return repr(text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}...")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines, as templates are, stay readable."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    lines = text.split("\n")
    odd = not all(line.isprintable() for line in lines)  # Other line breaks, which only quotes preserve.
    style = '"' if odd else "|" if len(lines) > 1 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)

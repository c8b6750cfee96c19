"""Reads and writes the YAML of models' configurations. Pure.

Keys that have no effect here are no error: files are shared with peers that know other keys. One that
looks misspelled is named together with the key that was probably meant. Errors name the line and the field.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeGuard

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from remuda.core.errors import Invalid
from remuda.core.field_errors import place, wanted
from remuda.core.hints import likeness
from remuda.core.yaml_tree import Located, Value, YamlPath
from remuda.models.config import (
    NAME_CHARS_MAX,
    ModelConfig,
    Parameters,
    Section,
    is_gguf_backend,
    parse_document,
)
from remuda.models.paths import check_paths

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


_COMPLAINTS_MAX: Final = 3
_SHOWN_CHARS_MAX: Final = 60
_UNKNOWN_MAX: Final = 100
_SECTIONS: Final = frozenset({"dict", "model"})
_PATH_PART: Final = re.compile(r"[^.\[\]]+")
_SHELL_CHARACTERS: Final = frozenset("`$\\\"';|&<>*?!{}[]()")


def read_model(text: str, *, where: str = "") -> ModelConfig:
    """The model that a file describes; `where` is the file's name, for complaints.

    Invalid says in which line which key cannot be used, what stands there and what is accepted.
    """
    with located(text, where):
        return _read(text)


@contextmanager
def located(text: str, where: str = "") -> Iterator[None]:
    """What turns out to be invalid here is said with the file's name, and with the line of its field."""
    try:
        yield
    except Invalid as error:
        line = parse_document(text).line(field_path(error.param)) if error.param else 0
        message = f"line {line}: {error.message}" if line else error.message
        between = ", " if message.startswith("line ") else ": "
        raise Invalid(
            f"{where}{between}{message}" if where else message, hint=error.hint, param=error.param
        ) from None


def field_path(field: str) -> YamlPath:
    """Of a field in the document, from the form that `place` writes."""
    return tuple(int(part) if part.isdigit() else part for part in _PATH_PART.findall(field))


def write_model(config: ModelConfig) -> str:
    """The YAML that `read_model` makes this of: only what differs from the defaults."""
    kept = config.model_dump(mode="json", exclude_defaults=True)
    return yaml.dump(kept, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def check_name(name: str) -> None:
    """Invalid for a name that no request, process or folder could go by."""
    if not name.strip():
        raise Invalid("name: missing, and so is parameters.model")
    if len(name) > NAME_CHARS_MAX:
        raise Invalid(f"name: {len(name)} characters; at most {NAME_CHARS_MAX} are accepted", param="name")
    if name != name.strip() or not name.isprintable():
        raise Invalid(f"name: {name!r} has spaces around it or invisible characters", param="name")
    if "#" in name:
        raise Invalid(
            f"name: {name!r} must not contain #, which stands before the number of a replica", param="name"
        )


def check_new_name(name: str) -> None:
    """Invalid for a name that must not be given any more: one that is no path below a folder, or that a
    shell would take for something else when it is pasted. Models that have such a name keep it."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise Invalid(
            f"name: {name[:_SHOWN_CHARS_MAX]!r} cannot be the name of a file: empty parts, . and .. are not "
            "accepted between slashes",
            param="name",
        )
    if name.startswith(("-", "~")):
        raise Invalid(f"name: {name[:_SHOWN_CHARS_MAX]!r} must not begin with {name[0]}", param="name")
    if found := sorted(set(name) & _SHELL_CHARACTERS):
        raise Invalid(
            f"name: {name[:_SHOWN_CHARS_MAX]!r} must not contain {' '.join(found)}, which shells interpret",
            hint="use letters, digits and . _ - : / @ +",
            param="name",
        )


def check_file(config: ModelConfig) -> None:
    """Invalid for a model of llama.cpp that names no file: no node could ever load it."""
    if is_gguf_backend(config.backend) and not config.file and not config.alias:
        hint = "name the file, relative to the models folder: parameters: {model: FILE.gguf}"
        raise Invalid(
            f"parameters.model: missing, and the backend {config.backend} needs a model file",
            hint=next(iter(misspelled(config.unknown)), hint),
            param="parameters.model",
        )


def _read(text: str) -> ModelConfig:
    document = parse_document(text)
    found = document.value
    if not isinstance(found, dict):
        raise Invalid(
            "this is neither a model file nor the YAML of a model, which is a map of keys, such as name, "
            "backend and parameters"
        )
    unknown: list[str] = []
    known = _known(ModelConfig, found, "", unknown)
    try:
        config = ModelConfig.model_validate({**known, "unknown": tuple(unknown[:_UNKNOWN_MAX])})
    except ValidationError as error:
        raise Invalid("; ".join(_complaints(error, document)[:_COMPLAINTS_MAX])) from None
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


def _complaints(error: ValidationError, document: Located) -> list[str]:
    """In the order of their lines."""
    found = [(document.line(item["loc"]), item) for item in error.errors(include_url=False)]
    found.sort(key=lambda one: one[0])
    return [f"line {line}: {place(item['loc'])}: {_reason(item)}" for line, item in found]


def _reason(item: ErrorDetails) -> str:
    if item["type"] == "value_error":
        return item["msg"].removeprefix("Value error, ")
    kind = item["type"].partition("_")[0]
    accepted = "must be a map of keys" if kind in _SECTIONS else wanted(item["type"], item.get("ctx", {}))
    return accepted if kind == "missing" else f"{accepted}, not {_shown(item['input'])}"


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

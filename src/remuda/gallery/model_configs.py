"""From an entry of a model gallery to a model's configuration and files: the base configuration, under the
entry's overrides. Pure.

Maps are merged key by key, anything else is replaced. Prompt templates that come with a base configuration
are put in the places that name them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.yaml_tree import Malformed, Map, Merger, YamlLimits, YamlNode, YamlText, parse
from remuda.gallery.entry_fields import EntryFields, document_of
from remuda.gallery.model_entries import GalleryFile, ModelEntry, files_of

LIMITS: Final = YamlLimits(bytes=1 << 20, parts=5000, depth=16)
_TEMPLATE: Final = "template"


@dataclass(frozen=True, slots=True)
class BaseConfig:
    """What several entries of a gallery have in common."""

    config: str = ""  # YAML.
    files: tuple[GalleryFile, ...] = ()
    templates: tuple[tuple[str, str], ...] = ()  # By name.
    description: str = ""
    license: str = ""


NO_BASE: Final = BaseConfig()


@dataclass(frozen=True, slots=True)
class ComposedModel:
    """A model as its gallery has it."""

    config: str  # YAML, with its name.
    files: tuple[GalleryFile, ...]
    description: str = ""
    license: str = ""


def read_base(content: bytes) -> BaseConfig:
    """A base configuration file. Invalid, naming the line, for what is none."""
    root = parse(content, LIMITS)
    if not isinstance(root, Map):
        raise Invalid("it must be a map with config_file, files and the like")
    try:
        fields = EntryFields(root, Merger(LIMITS.depth))
        templates = tuple((one.text("name"), one.text("content")) for one in fields.maps("prompt_templates"))
        return BaseConfig(
            fields.text("config_file"),
            files_of(fields),
            templates,
            fields.text("description"),
            fields.text("license"),
        )
    except Malformed as error:
        raise Invalid(f"line {error.line}: {error.reason}") from None


def compose(entry: ModelEntry, base: BaseConfig = NO_BASE, name: str = "") -> ComposedModel:
    """The entry's model, called `name` or as the entry is. Files of the entry count before those of the base
    that have the same path. Invalid where the parts do not make a configuration."""
    merged = _merged(
        _map(base.config or entry.config_file, "config_file"), _map(entry.overrides, "overrides")
    )
    merged = _with(merged, "name", YamlText(name or entry.name, 0))
    if entry.backend and _get(merged, "backend") is None:
        merged = _with(merged, "backend", YamlText(entry.backend, 0))
    template = _get(merged, _TEMPLATE)
    if isinstance(template, Map):
        merged = _with(merged, _TEMPLATE, _filled(template, dict(base.templates)))
    files = {file.filename: file for file in (*base.files, *entry.files)}
    try:
        config = document_of(merged, Merger(LIMITS.depth), "the configuration")
    except Malformed as error:
        raise Invalid(f"{entry.name}: {error.reason}") from None
    return ComposedModel(
        config,
        tuple(files.values()),
        entry.description or base.description,
        entry.license or base.license,
    )


def _map(text: str, what: str) -> Map:
    """Without merge keys: each map is as it means."""
    root = parse(text, LIMITS)
    if root is None:
        return Map(0)
    if not isinstance(root, Map):
        raise Invalid(f"{what}: it must be a map of keys")
    try:
        return _flat(root, Merger(LIMITS.depth))
    except Malformed as error:
        raise Invalid(f"{what}: line {error.line}: {error.reason}") from None


def _flat(node: Map, merger: Merger, depth: int = 0) -> Map:
    if depth > LIMITS.depth:
        raise Malformed(node.line, f"it is nested more than {LIMITS.depth} deep")
    pairs = merger.flatten(node).items()
    made = [
        (YamlText(key, node.line), _flat(value, merger, depth + 1) if isinstance(value, Map) else value)
        for key, value in pairs
    ]
    return Map(node.line, pairs=list[tuple[YamlNode, YamlNode]](made))


def _merged(base: Map, over: Map) -> Map:
    """Both are flat."""
    made = base
    for key, value in over.pairs:
        assert isinstance(key, YamlText), "a flat map has words for keys"
        there = _get(made, key.value)
        both = isinstance(there, Map) and isinstance(value, Map)
        made = _with(made, key.value, _merged(there, value) if both else value)  # type: ignore[arg-type]
    return made


def _get(node: Map, name: str) -> YamlNode | None:
    return next((value for key, value in node.pairs if isinstance(key, YamlText) and key.value == name), None)


def _with(node: Map, name: str, value: YamlNode) -> Map:
    pairs = list(node.pairs)
    for place, (key, _) in enumerate(pairs):
        if isinstance(key, YamlText) and key.value == name:
            pairs[place] = (key, value)
            return Map(node.line, pairs=pairs)
    pairs.append((YamlText(name, node.line), value))
    return Map(node.line, pairs=pairs)


def _filled(template: Map, contents: Mapping[str, str]) -> Map:
    """A template that names one of these is that one."""
    pairs: list[tuple[YamlNode, YamlNode]] = [
        (
            key,
            YamlText(contents[value.value], value.line)
            if isinstance(value, YamlText) and value.value in contents
            else value,
        )
        for key, value in template.pairs
    ]
    return Map(template.line, pairs=pairs)

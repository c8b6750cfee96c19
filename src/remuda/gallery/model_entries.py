"""Model galleries: models that can be installed by name, and how they are found. Pure.

The format of the contract, with fields of ours that others skip: `source` with `quantisation` and `mirrors`,
and `aliases`. Such an entry needs no file list: a hub knows a repository's files, their sizes and hashes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Final

from remuda.core.yaml_tree import Malformed, Map, Merger
from remuda.gallery.entry_fields import EntryFields
from remuda.gallery.index import read_entries
from remuda.gallery.model import HIDDEN_TAG, Gallery, GalleryIndex, Reading, folded

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+()\[\]/-]{0,199}")
_QUANTISATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_DEFAULT_TAG: Final = ":latest"  # As Ollama's users write a name without a tag.
_SIMILAR_MAX: Final = 3
_SIMILARITY_MIN: Final = 0.7


@dataclass(frozen=True, slots=True)
class GalleryFile:
    """A file that belongs to a model."""

    filename: str  # Relative to the models folder.
    uri: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of an index. Its configuration is that at `url`, or else `config_file`, under `overrides`."""

    name: str
    line: int  # Where it stands in the index, from 1.
    description: str = ""
    license: str = ""
    icon: str = ""
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    size: str = ""
    backend: str = ""
    url: str = ""
    config_file: str = ""  # YAML.
    overrides: str = ""  # YAML, merged into the configuration map by map.
    files: tuple[GalleryFile, ...] = ()
    variants: tuple[str, ...] = ()  # Names of entries that may be installed in its place.
    # Ours.
    aliases: tuple[str, ...] = ()
    source: str = ""  # Where all of the model is: `hf://owner/repository` and its like.
    quantisation: str = ""  # The one meant by the bare name, where the source has several.
    mirrors: tuple[str, ...] = ()  # Further sources of the very same file.
    sha256: str = ""  # Of the source's only file.

    @property
    def hidden(self) -> bool:
        return HIDDEN_TAG in self.tags

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class FoundModel:
    gallery: Gallery
    entry: ModelEntry

    @property
    def id(self) -> str:
        """The name that means this entry alone."""
        return f"{self.gallery.name}@{self.entry.name}"


def find(readings: Sequence[Reading[ModelEntry]], name: str) -> FoundModel | None:
    """The entry that a person calls by this name or alias. The first gallery that has it wins, in it a name
    before an alias; `gallery@name` is looked for in that gallery alone."""
    wanted = folded(name).removesuffix(_DEFAULT_TAG)
    for reading in readings:
        prefix = f"{folded(reading.gallery.name)}@"
        called = wanted.removeprefix(prefix)
        if found := _named(reading.index, called):
            return FoundModel(reading.gallery, found)
    return None


def _named(index: GalleryIndex[ModelEntry], wanted: str) -> ModelEntry | None:
    for entry in index.entries:
        if folded(entry.name) == wanted:
            return entry
    for entry in index.entries:
        if wanted in map(folded, entry.aliases):
            return entry
    return None


def everything(readings: Sequence[Reading[ModelEntry]]) -> Iterator[FoundModel]:
    """Every entry that is listed."""
    for reading in readings:
        yield from (FoundModel(reading.gallery, one) for one in reading.index.entries if not one.hidden)


def search(readings: Sequence[Reading[ModelEntry]], text: str) -> tuple[FoundModel, ...]:
    """Entries that have every word of `text` in their names, tags or description, those with all of them in
    their names first; all entries for no words."""
    words = text.lower().split()
    ranked: list[tuple[bool, FoundModel]] = []
    for found in everything(readings):
        names = " ".join(found.entry.names).lower()
        rest = " ".join((*found.entry.tags, found.entry.description)).lower()
        if all(word in names or word in rest for word in words):
            ranked.append((not all(word in names for word in words), found))
    return tuple(found for _, found in sorted(ranked, key=lambda one: one[0]))


def similar(readings: Sequence[Reading[ModelEntry]], name: str) -> tuple[str, ...]:
    """Names that a person may have meant."""
    known = {folded(one): one for found in everything(readings) for one in found.entry.names}
    near = get_close_matches(folded(name), known, n=_SIMILAR_MAX, cutoff=_SIMILARITY_MIN)
    return tuple(known[match] for match in near)


def read_model_index(content: bytes) -> GalleryIndex[ModelEntry]:
    """An index of models. Invalid, naming the line, when the document as a whole cannot be read."""
    return read_entries(content, _entry)


def _entry(node: Map, merger: Merger) -> ModelEntry:
    fields = EntryFields(node, merger)
    entry = ModelEntry(
        name=_name(fields.text("name"), fields.at("name")),
        line=node.line,
        description=fields.text("description"),
        license=fields.text("license"),
        icon=fields.text("icon"),
        urls=fields.texts("urls"),
        tags=fields.texts("tags"),
        size=fields.text("size"),
        backend=fields.text("backend"),
        url=fields.uri("url"),
        config_file=fields.document("config_file"),
        overrides=fields.document("overrides"),
        files=files_of(fields),
        variants=tuple(one.text("model") for one in fields.maps("variants")),
        aliases=tuple(_name(alias, fields.at("aliases")) for alias in fields.texts("aliases")),
        source=fields.uri("source"),
        quantisation=_quantisation(fields),
        mirrors=fields.uris("mirrors"),
        sha256=fields.sha256(),
    )
    if not (entry.source or entry.url or entry.config_file or entry.overrides or entry.files):
        raise Malformed(node.line, "it has neither a source nor a configuration, so nothing can be installed")
    return entry


def files_of(fields: EntryFields) -> tuple[GalleryFile, ...]:
    """`files`, which lie below the models folder and nowhere else."""
    found = tuple(
        GalleryFile(_path(one.text("filename"), one.at("filename")), one.uri("uri"), one.sha256())
        for one in fields.maps("files")
    )
    for file, one in zip(found, fields.maps("files"), strict=True):
        if not file.uri:
            raise Malformed(one.at("uri"), f"files: {file.filename} has no uri")
    return found


def _path(text: str, line: int) -> str:
    plain = text.isprintable() and "\\" not in text and not text.startswith(("/", "~"))
    if not text or not plain or ".." in PurePosixPath(text).parts:
        raise Malformed(line, f"files: filename {text[:80]!r} is not a path below the models folder")
    return text


def _name(text: str, line: int) -> str:
    if not _NAME.fullmatch(text) or any(part in ("", ".", "..") for part in text.split("/")):
        raise Malformed(
            line,
            f"the name {text[:80]!r} cannot be used" if text else "name is missing, or an alias is empty",
        )
    return text


def _quantisation(fields: EntryFields) -> str:
    text = fields.text("quantisation")
    if text and not _QUANTISATION.fullmatch(text):
        raise Malformed(fields.at("quantisation"), f"quantisation {text[:40]!r} cannot be used")
    return text

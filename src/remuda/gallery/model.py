"""Galleries, their entries, how these are found by name and what they are for, and the machines that
builds are chosen for. Pure.

A gallery list is also a wire form: it travels as JSON text inside `backend.install`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Final, Generic, Never

from pydantic import Field, RootModel
from typing_extensions import TypeVar

from remuda.core.errors import Invalid
from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Many, Message, decode, encode

BUILTIN: Final = "builtin:"
"""Scheme of what ships with Remuda: its gallery, and backends that need no download."""

MIRRORS_MAX: Final = 16
VRAM_TOO_SMALL: Final = 4 << 30
HIDDEN_TAG: Final = "hidden"  # Entries for tests: found by name, not listed.


class Verification(Message):
    """Who must have signed a gallery's images."""

    issuer: Annotated[str, OMIT_EMPTY] = ""
    issuer_regex: Annotated[str, OMIT_EMPTY] = ""
    identity: Annotated[str, OMIT_EMPTY] = ""
    identity_regex: Annotated[str, OMIT_EMPTY] = ""
    not_before: Annotated[str, OMIT_EMPTY] = ""  # Kept as written: passed on, not yet used.


class Gallery(Message):
    """Where an index of backends or models is found. `mirrors` are asked in order when `url` fails."""

    name: Annotated[str, Field(min_length=1)]
    url: Annotated[str, Field(min_length=1)]
    mirrors: Annotated[Many[str], OMIT_EMPTY, Field(max_length=MIRRORS_MAX)] = ()
    verification: Annotated[Verification | None, OMIT_NONE] = None

    @property
    def builtin(self) -> bool:
        """It ships with Remuda; a peer that is not ours cannot read it."""
        return self.url.startswith(BUILTIN)


class _GalleryList(RootModel[Many[Gallery]]):
    """The JSON form of several galleries, in the order in which they are searched."""


def galleries_from_json(text: str) -> tuple[Gallery, ...]:
    """The galleries that `text` lists. Invalid, naming place and field, when it is no such list."""
    payload = text.encode()
    if payload.strip() == b"null":  # An empty list, as Go may write it.
        return ()
    try:
        return decode(_GalleryList, payload).root
    except Invalid as error:
        raise Invalid(
            f"the list of galleries cannot be used: {error.message}",
            hint='write it like [{"name": "mine", "url": "https://example.org/index.yaml"}]',
        ) from None


def galleries_to_json(galleries: tuple[Gallery, ...]) -> str:
    return encode(_GalleryList(galleries)).decode()


@dataclass(frozen=True, slots=True)
class GalleryEntry:
    """One backend of an index. A *meta* backend names builds by capability; a *concrete* one is a build."""

    name: str
    line: int  # Where it stands in the index, from 1.
    alias: str = ""
    uri: str = ""
    mirrors: tuple[str, ...] = ()
    capabilities: tuple[tuple[str, str], ...] = ()  # Capability to concrete name, in the index's order.
    version: str = ""
    sha256: str = ""
    description: str = ""
    license: str = ""
    icon: str = ""
    url: str = ""
    size: str = ""
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    manifest: str = ""  # YAML that tells how to run an image which does not say so itself.

    @property
    def meta(self) -> bool:
        """Merge keys hand `capabilities` on to concrete entries, so that only a missing uri tells."""
        return not self.uri

    @property
    def builtin(self) -> bool:
        return self.uri.startswith(BUILTIN)

    @property
    def development(self) -> bool:
        return self.name.endswith("-development")

    @property
    def hidden(self) -> bool:
        return HIDDEN_TAG in self.tags


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why an entry of an index is left out."""

    entry: str  # Its name, or its place when it has none.
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.entry} (line {self.line}): {self.reason}"


E_co = TypeVar("E_co", covariant=True, default=GalleryEntry)  # What is listed: backends, or models.


@dataclass(frozen=True, slots=True)
class GalleryIndex(Generic[E_co]):
    entries: tuple[E_co, ...]  # Names are unique, letter case aside.
    complaints: tuple[Complaint, ...] = ()


NO_ENTRIES: Final[GalleryIndex[Never]] = GalleryIndex(())


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """What the choice of a build depends on."""

    os: str  # linux, darwin.
    architecture: str  # As in OCI platforms: amd64, arm64.
    capability: str = ""  # As reported; empty: the machine does not say.
    gpu_vendor: str = ""
    total_vram: int = 0

    @property
    def effective_capability(self) -> str:
        """What it reports, else what its GPU implies."""
        if self.capability:
            return self.capability
        if not self.gpu_vendor or self.total_vram <= VRAM_TOO_SMALL:
            return "default"
        return self.gpu_vendor

    @property
    def platform(self) -> str:
        return f"{self.os}/{self.architecture}"


@dataclass(frozen=True, slots=True)
class Reading(Generic[E_co]):
    """What one gallery offers, and how far that can be trusted to be current."""

    gallery: Gallery
    index: GalleryIndex[E_co] = NO_ENTRIES
    trouble: str = ""  # Why it could not be read just now; empty: it could.
    confirmed_at: datetime | None = None  # When the index was last known current; None: there is none.

    @property
    def readable(self) -> bool:
        return self.confirmed_at is not None

    @property
    def trouble_in_short(self) -> str:
        """Without addresses: each of them has its own trouble, and together they hide what else is said."""
        return "it cannot be read now; remuda doctor says why" if "://" in self.trouble else self.trouble

    def standing(self, now: datetime) -> str:
        """One sentence on how current this is, for people."""
        if self.confirmed_at is None:
            return f"gallery {self.gallery.name} cannot be used: {self.trouble}"
        age = f"gallery {self.gallery.name} was read {ago(now - self.confirmed_at)}"
        return f"{age}; since then it could not be: {self.trouble}" if self.trouble else age


def ago(span: timedelta) -> str:
    """A span as people say it, in its largest unit."""
    seconds = int(span.total_seconds())
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


@dataclass(frozen=True, slots=True)
class Found:
    gallery: Gallery
    entry: GalleryEntry


def everything(readings: Sequence[Reading]) -> Iterator[Found]:
    """Every entry that is listed, whatever hardware it is for: other machines may have it."""
    for reading in readings:
        yield from (Found(reading.gallery, entry) for entry in reading.index.entries if not entry.hidden)


def search(readings: Sequence[Reading], text: str) -> tuple[Found, ...]:
    """Entries that have every word of `text` in their name, alias, tags or description; all for no words."""
    words = text.lower().split()

    def matches(entry: GalleryEntry) -> bool:
        text = " ".join((entry.name, entry.alias, *entry.tags, entry.description)).lower()
        return all(word in text for word in words)

    return tuple(found for found in everything(readings) if matches(found.entry))


def find(readings: Sequence[Reading], name: str) -> Found | None:
    """The first gallery that has `name` wins; `gallery@name` is looked for in that gallery alone."""
    return _first(readings, lambda entry: entry.name, name)


def sharing_alias(readings: Sequence[Reading], alias: str) -> tuple[Found, ...]:
    """The concrete entries with this alias, from the first gallery that has any."""
    found = _first(readings, lambda entry: "" if entry.meta else entry.alias, alias)
    if found is None:
        return ()
    entries = next(reading.index.entries for reading in readings if reading.gallery == found.gallery)
    shared = found.entry.alias.lower()
    return tuple(
        Found(found.gallery, entry) for entry in entries if not entry.meta and entry.alias.lower() == shared
    )


def preferring(readings: Sequence[Reading], name: str) -> tuple[Reading, ...]:
    """The galleries in the order in which what `gallery@name` refers to is looked up: that one first."""
    return tuple(sorted(readings, key=lambda reading: not _belongs(reading.gallery, name)))


def similar(readings: Sequence[Reading], name: str) -> tuple[str, ...]:
    """Names a person may have meant."""
    known = {found.entry.name.lower(): found.entry.name for found in everything(readings)}
    return tuple(known[match] for match in get_close_matches(folded(name), known, n=3, cutoff=0.7))


def _first(readings: Sequence[Reading], called: Callable[[GalleryEntry], str], name: str) -> Found | None:
    wanted = folded(name)
    for reading in readings:
        gallery = f"{folded(reading.gallery.name)}@"
        for entry in reading.index.entries:
            if (word := called(entry).lower()) and wanted in (word, gallery + word):
                return Found(reading.gallery, entry)
    return None


def _belongs(gallery: Gallery, name: str) -> bool:
    return folded(name).startswith(f"{folded(gallery.name)}@")


def folded(name: str) -> str:
    """Letter case does not count, and a slash is written as two underscores, as peers do."""
    return name.strip().lower().replace("/", "__")


_BY_TAG: Final[Mapping[str, tuple[str, ...]]] = {  # Galleries do not agree on words.
    "llm": ("chat", "completion"),
    "text-to-text": ("chat", "completion"),
    "text-generation": ("chat", "completion"),
    "chat": ("chat",),
    "multimodal": ("vision",),
    "vision": ("vision",),
    "image-to-text": ("vision",),
    "embeddings": ("embeddings",),
    "embedding": ("embeddings",),
    "rerank": ("rerank",),
    "reranker": ("rerank",),
    "text-to-image": ("image",),
    "image-generation": ("image",),
    "text-to-video": ("video",),
    "video-generation": ("video",),
    "audio-transcription": ("transcript",),
    "speech-to-text": ("transcript",),
    "text-to-speech": ("tts",),
    "tts": ("tts",),
    "text-to-audio": ("sound_generation",),
    "sound-generation": ("sound_generation",),
    "music-generation": ("sound_generation",),
    "vad": ("vad",),
    "voice-activity-detection": ("vad",),
    "object-detection": ("detection",),
    "token-classification": ("token_classify",),
}


def usecases(readings: Sequence[Reading]) -> dict[str, list[str]]:
    """By each backend's name; empty where its tags tell nothing. The first gallery that has a name counts."""
    names: dict[str, list[str]] = {}
    for found in everything(readings):
        names.setdefault(found.entry.name, _told(found.entry.tags))
    return names


def _told(tags: Iterable[str]) -> list[str]:
    return sorted({usecase for tag in tags for usecase in _BY_TAG.get(tag.lower(), ())})

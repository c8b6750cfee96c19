"""Finding entries by name, over several galleries in their configured order. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from remuda.gallery.model import Gallery, GalleryEntry, Reading


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
        told = " ".join((entry.name, entry.alias, *entry.tags, entry.description)).lower()
        return all(word in told for word in words)

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
    return tuple(known[match] for match in get_close_matches(_folded(name), known, n=3, cutoff=0.7))


def _first(readings: Sequence[Reading], called: Callable[[GalleryEntry], str], name: str) -> Found | None:
    wanted = _folded(name)
    for reading in readings:
        gallery = f"{_folded(reading.gallery.name)}@"
        for entry in reading.index.entries:
            if (word := called(entry).lower()) and wanted in (word, gallery + word):
                return Found(reading.gallery, entry)
    return None


def _belongs(gallery: Gallery, name: str) -> bool:
    return _folded(name).startswith(f"{_folded(gallery.name)}@")


def _folded(name: str) -> str:
    """Letter case does not count, and a slash is written as two underscores, as peers do."""
    return name.strip().lower().replace("/", "__")

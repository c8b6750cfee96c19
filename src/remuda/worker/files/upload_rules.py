"""What becomes of an upload: the table of the contract's section 7.4. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from remuda.core.errors import Invalid
from remuda.worker.files import limits
from remuda.worker.files.keys import is_sha256

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContentRange:
    start: int
    end: int  # The last byte.
    total: int

    @property
    def length(self) -> int:
        return self.end - self.start + 1

    @property
    def last(self) -> bool:
        return self.end + 1 == self.total


def parse_range(text: str) -> ContentRange:
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None:
        raise Invalid("invalid Content-Range")
    parsed = ContentRange(*(int(number) for number in found.groups()))
    if not parsed.start <= parsed.end < parsed.total <= limits.FILE_BYTES_MAX:
        raise Invalid("invalid Content-Range")
    return parsed


def parse_hash(text: str) -> str:
    """Empty where none was given."""
    digest = text.strip().lower()
    if digest and not is_sha256(digest):
        raise Invalid("invalid X-Content-SHA256: must be 64 hexadecimal digits")
    return digest


@dataclass(frozen=True, slots=True)
class PartialFacts:
    size: int
    target: str  # The hash of the whole file; empty: not known.


@dataclass(frozen=True, slots=True)
class Existing:
    """What there is under a key."""

    partial: PartialFacts | None = None
    size: int | None = None  # Of the whole file; None: there is none.
    sha256: str = ""  # Of the whole file, as far as it is known without reading it.


@dataclass(frozen=True, slots=True)
class Accept:
    """Write from the start of the range on. `target`: what the whole file must hash to; empty: anything."""

    target: str
    restart: bool  # What arrived before is of no use.


@dataclass(frozen=True, slots=True)
class WrongStart:
    """416: the range does not begin where the file ends."""

    size: int


@dataclass(frozen=True, slots=True)
class OtherContent:
    """409: what arrived before belongs to another file, and is given up."""


@dataclass(frozen=True, slots=True)
class AllThere:
    """All bytes arrived before, and the worker ended before it had checked them: nothing need be sent."""

    target: str


UploadVerdict = Accept | AllThere | WrongStart | OtherContent


def judge(wanted: ContentRange, sha256: str, there: Existing) -> UploadVerdict:
    partial = there.partial
    if wanted.start == 0:
        return _from_the_beginning(wanted.total, sha256, there)
    if partial is None:
        return WrongStart(there.size or 0)  # Bytes are never added to a file that is whole.
    if sha256 and partial.target and sha256 != partial.target:
        return OtherContent()
    if wanted.start != partial.size:
        return WrongStart(partial.size)
    return Accept(sha256 or partial.target, restart=False)


def _from_the_beginning(total: int, sha256: str, there: Existing) -> UploadVerdict:
    partial = there.partial
    if partial is not None:
        if not sha256 or sha256 != partial.target or not 0 < partial.size <= total:
            return Accept(sha256, restart=True)
        # A client that has seen the size of a complete one begins at 0: it would never get beyond a 416.
        return AllThere(sha256) if partial.size == total else WrongStart(partial.size)
    if there.size and sha256 and sha256 == there.sha256:
        return WrongStart(there.size)
    return Accept(sha256, restart=True)

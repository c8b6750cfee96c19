"""Keys, by which the wire names files: which are accepted, and where each leads. Pure.

Nothing here trusts what the file system would make of a key: whatever could be read as a way out of its
folder, by this system or another, is refused. `tree` makes sure of the rest.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from remuda.core.errors import Invalid
from remuda.worker.files import limits

HASH_SUFFIX: Final = ".sha256"
TARGET_SUFFIX: Final = ".sha256.target"
EPHEMERAL: Final = "ephemeral"
STAGING_TMP: Final = "staging-tmp"  # In the cache: outputs that go to object storage.
OUTPUT_PREFIX: Final = "localai-output-"  # In the staging folder: outputs that are fetched.
OUTPUT_SUFFIX: Final = ".tmp"

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DRIVE: Final = re.compile(r"[A-Za-z]:", re.ASCII)
_PARTIAL: Final = re.compile(
    r"\.upload-(?P<name>[0-9a-f]{16})-(?P<target>[0-9a-f]{64}|unverified|whole-[\w-]+)\.partial", re.ASCII
)
_SLASH_LOOKALIKES: Final = frozenset("\u2044\u2215\u2216\u29f5\u29f8\u29f9\u1735\u2571\u2572")
_UNVERIFIED: Final = "unverified"


class Area(StrEnum):
    """The folders that keys lead to."""

    MODELS = "models"
    DATA = "data"
    STAGING = "staging"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file or folder; no parts: the area itself."""

    area: Area
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def ephemeral(self) -> bool:
        return self.area in (Area.STAGING, Area.CACHE) and self.parts[:1] == (EPHEMERAL,)

    @property
    def of_request(self) -> bool:
        """An input or an output of a request, which needs it no longer than a day."""
        if self.area not in (Area.STAGING, Area.CACHE) or not self.parts:
            return False
        if self.ephemeral:
            return len(self.parts) > 1
        if self.area is Area.CACHE:
            return self.parts[0] == STAGING_TMP and len(self.parts) > 1
        name = self.parts[0]
        return len(self.parts) == 1 and name.startswith(OUTPUT_PREFIX) and name.endswith(OUTPUT_SUFFIX)


def place_of(key: str, *, otherwise: Area = Area.STAGING, folder: bool = False) -> FilePlace:
    """Where a key leads. Invalid for any that does not name a file, or with `folder` a folder, below its
    area; `otherwise` is the area of keys that begin with neither `models/` nor `data/`."""
    if folder:
        key = key.removesuffix("/")
    parts = checked_parts(key, empty=folder)
    # `models` alone is a folder only as a prefix; as the name of a file it is one in the staging area.
    for area in (Area.MODELS, Area.DATA):
        if parts[:1] == (area.value,) and (folder or len(parts) > 1):
            return FilePlace(area, parts[1:])
    return FilePlace(otherwise, parts)


def checked_parts(path: str, *, empty: bool = False) -> tuple[str, ...]:
    """The parts of a relative path with `/` between them. Invalid for what is none, or may lead elsewhere."""
    if empty and not path:
        return ()
    decoded = path
    for _ in range(limits.DECODINGS_MAX):  # What is still escaped may be decoded later.
        _check_text(decoded)
        if (further := unquote(decoded, errors="replace")) == decoded:
            return tuple(path.split("/"))
        decoded = further
    raise Invalid("invalid path: escaped too often")


def check_object_key(key: str) -> None:
    """Invalid for what is no name of an object. It never becomes a path; LocalAI's may contain `//`."""
    parts = [part for part in key.split("/") if part]
    if not parts or key.startswith("/") or key.endswith("/"):
        raise Invalid("invalid key")
    checked_parts("/".join(parts))


def _check_text(path: str) -> None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise Invalid("invalid path: not valid UTF-8") from None
    if size > limits.KEY_BYTES_MAX:
        raise Invalid(f"invalid path: longer than {limits.KEY_BYTES_MAX} bytes")
    parts = path.split("/")
    if len(parts) > limits.FOLDERS_DEEP_MAX:
        raise Invalid(f"invalid path: more than {limits.FOLDERS_DEEP_MAX} folders deep")
    for part in parts:
        if reason := _objection(part):
            raise Invalid(f"invalid path: {reason}")


def _objection(part: str) -> str:
    """Why this cannot be the name of a file or folder; empty: it can."""
    if not part:
        return "empty, absolute, or with an empty part"
    if len(part.encode()) > limits.NAME_BYTES_MAX:
        return f"a part is longer than {limits.NAME_BYTES_MAX} bytes"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in part):
        return "control characters"
    folded = _folded(part)
    if "/" in folded or "\\" in folded or not _SLASH_LOOKALIKES.isdisjoint(part):
        return "backslashes, or characters that look like slashes"
    if not folded.strip(". "):
        return "a part consists of dots"
    if _DRIVE.match(folded):  # Also before a name: there it is the place on that drive.
        return "a drive letter"
    if is_partial(part) or part.endswith(TARGET_SUFFIX):
        return "the name is reserved"
    return ""


def _folded(part: str) -> str:
    """As systems see it that ignore invisible characters, or treat compatible ones as the same."""
    visible = "".join(char for char in part if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", visible)


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def partial_name(name: str, target: str) -> str:
    """The hidden name under which a file arrives; an empty target: its hash is not known."""
    return f"{_partial_prefix(name)}{target or _UNVERIFIED}.partial"


def whole_name(name: str, unique: str) -> str:
    """The same for an upload that is not resumed."""
    return f"{_partial_prefix(name)}whole-{unique}.partial"


def target_of(entry: str, name: str) -> str | None:
    """The expected hash of a partial upload of this file, empty if not known; None: it is something else."""
    found = _PARTIAL.fullmatch(entry)
    if found is None or not entry.startswith(_partial_prefix(name)) or found["target"].startswith("whole-"):
        return None
    return "" if found["target"] == _UNVERIFIED else found["target"]


def is_partial_of(entry: str, name: str) -> bool:
    return is_partial(entry) and entry.startswith(_partial_prefix(name))


def is_partial(entry: str) -> bool:
    return _PARTIAL.fullmatch(entry) is not None


def _partial_prefix(name: str) -> str:
    return f".upload-{hashlib.sha256(name.encode()).hexdigest()[:16]}-"


def own_metadata(names: frozenset[str]) -> frozenset[str]:
    """Of the entries of one folder, those that are not content: partial uploads of ours, checksum files, and
    files that a LocalAI worker has not got all of."""
    partial = {name for name in names if is_partial(name)}
    targets = {name for name in names if name.endswith(TARGET_SUFFIX)}
    unfinished = {name.removesuffix(TARGET_SUFFIX) for name in targets}
    checksums = {
        name for name in names if name.endswith(HASH_SUFFIX) and name.removesuffix(HASH_SUFFIX) in names
    }
    return frozenset(partial | targets | (unfinished & names) | checksums)

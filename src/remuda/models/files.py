"""Which files a model has: the manifest that is pinned when it is installed. Pure."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from remuda.core.errors import Invalid
from remuda.core.field_errors import field_error
from remuda.models.gguf import ModelFacts

FILES_MAX: Final = 10_000
PATH_CHARS_MAX: Final = 1_024
PART_BYTES_MAX: Final = 255  # Of one name, on the file systems in use.
SIZE_MAX: Final = 1 << 50

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RESERVED: Final = frozenset('\\:*?"<>|')  # What Windows and shares from it refuse or read otherwise.


def checked_path(path: str, whole: str = "") -> str:
    """The path itself, once it is known to stay below the folder that it is used in, on any system.

    Invalid, naming `whole` where that is what was written.
    """
    fault = path_fault(path)
    if fault:
        named = f"{path[:200]!r} in {whole!r}" if whole and whole != path else f"{path[:200]!r}"
        raise Invalid(f"{named} cannot be used as a file's path: {fault}")
    return path


def path_fault(path: str) -> str:
    """Why a path cannot name a file of a model; empty: it can."""
    parts = path.split("/")
    if not path or len(path) > PATH_CHARS_MAX:
        return f"it must have 1 to {PATH_CHARS_MAX} characters"
    if not path.isprintable():
        return "it has characters that cannot be shown"
    if any(part in ("", ".", "..") for part in parts):
        return "it is absolute, or has empty parts, . or .."
    if bad := sorted(set(path) & _RESERVED):
        return f"it has the character {bad[0]}"
    if any(part[-1] in ". " or part[0] == " " for part in parts):
        return "a part of it begins or ends with a space, or ends with a full stop"
    if any(len(part.encode()) > PART_BYTES_MAX for part in parts):
        return f"a part of it is longer than {PART_BYTES_MAX} bytes"
    return ""


def _valid_path(path: str) -> str:
    if fault := path_fault(path):
        raise ValueError(fault)
    return path


def _valid_sha256(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise ValueError("it is not 64 characters out of 0-9 and a-f")
    return value


FilePath = Annotated[str, AfterValidator(_valid_path)]
Sha256 = Annotated[str, AfterValidator(_valid_sha256)]


class ManifestFile(BaseModel):
    """One file: POSIX path below the models folder, length and content."""

    model_config = ConfigDict(frozen=True)

    path: FilePath
    size: Annotated[int, Field(ge=0, le=SIZE_MAX)]
    sha256: Sha256
    origin: str = ""  # Where anyone can read it, without a credential; empty: not known.

    @property
    def digest(self) -> str:
        """As blob stores name it."""
        return f"sha256:{self.sha256}"


class FetchedSource(BaseModel):
    """One source that a configuration names, once its files are there. `key` says for which of its fields;
    see `wanted_sources`. `place`: the file or folder that stands for it. What a person had put there already
    is not among `paths`."""

    model_config = ConfigDict(frozen=True)

    key: str
    source: str
    place: str = ""
    paths: tuple[FilePath, ...] = ()


class Manifest(BaseModel):
    """Every file of a model, in the order of their paths, and where they came from.

    `revision` is what the source stood for when it was installed: a commit, a digest, a version. `choice`
    says in words which of several variants was taken, and why.
    """

    model_config = ConfigDict(frozen=True)

    files: Annotated[tuple[ManifestFile, ...], Field(max_length=FILES_MAX)]
    source: str = ""
    revision: str = ""
    choice: str = ""
    notes: tuple[str, ...] = ()
    """What else was to be known about the source when it was installed: that a repository was renamed."""
    facts: ModelFacts | None = None
    """What `described` said of itself, for frontends that do not have it."""
    described: str = ""  # The file or folder that the model's configuration named then.
    fetched: tuple[FetchedSource, ...] | None = None
    """Of what its configuration names. None: the release that installed it did not write that down."""
    laid: str = ""  # JSON: what the model's own files say, for keys that its configuration leaves open.

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(file.digest for file in self.files)


def make_manifest(
    files: tuple[ManifestFile, ...],
    source: str = "",
    revision: str = "",
    choice: str = "",
    notes: tuple[str, ...] = (),
) -> Manifest:
    """Invalid when there is no file, or two files cannot stand beside each other on every disk."""
    if not files:
        raise Invalid("a model has at least one file")
    if clash := _clash(sorted(file.path for file in files)):
        raise Invalid(
            f"the files {clash[0]!r} and {clash[1]!r} cannot stand beside each other",
            hint="one path may not lead through another, nor differ from it in upper and lower case only",
        )
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Manifest(files=ordered, source=source, revision=revision, choice=choice, notes=notes)


def manifest_from_json(text: str) -> Manifest:
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise Invalid(f"not a manifest: {field_error(fault, subject='it')}") from error


def _clash(paths: list[str]) -> tuple[str, str] | None:
    seen: dict[str, str] = {}
    for path in paths:
        folded = path.casefold()
        if folded in seen:
            return seen[folded], path
        seen[folded] = path
    for path in paths:
        parents = path.casefold().split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if other := seen.get("/".join(parents[:depth])):
                return other, path
    return None


@dataclass(frozen=True, slots=True)
class NeededFile:
    """A file that a load needs on a node. `path` is below the folder of models."""

    path: str
    size: int
    sha256: str = ""  # Empty: it has to be computed.
    here: bool = True  # This machine has it, whole as far as its size tells.
    origin: str = ""  # Where anyone can read it.
    elsewhere: str = ""  # Who has it, in words, where this machine does not; nodes are found in reports.

    @property
    def is_unread(self) -> bool:
        """Only nodes have it, and none of them has read it: what another node has under this name is
        its own file."""
        return not self.here and not self.sha256

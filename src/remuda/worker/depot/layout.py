"""Where the depot keeps what, what a backend may be called, and the small files of an installed backend:
`metadata.json`, which LocalAI reads and writes too, `.remuda.json`, which tells what the folder was made
of, and what the backend was last started with. Reading and writing these blocks on the disk.

An image may have put anything under any name, so what is read is bounded, and a plain file or nothing. The
last start outlives versions and workers: a newer version is proven by the same start.
"""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel

from remuda.core.errors import Invalid, RemudaError
from remuda.core.os_errors import without_number
from remuda.host.folder import DataFolder
from remuda.wire.codec import OMIT_EMPTY, Many, Message, decode, encode
from remuda.wire.nodes import StartCheck

RUN_FILE: Final = "run.sh"
MANIFEST_FILE: Final = "remuda.yaml"  # Tells how to run a backend that has no run file, or speaks HTTP.
METADATA_FILE: Final = "metadata.json"
RECORD_FILE: Final = ".remuda.json"
PROVEN_FILE: Final = ".remuda-proven"
START_FAILED_FILE: Final = ".remuda-start-failed.json"  # Why its last start failed; gone once it has started.

NAME_BYTES_MAX: Final = 200  # Leaves room for what is put behind it.
# What LocalAI calls folders while it replaces one: half-made, or about to go.
PASSING_SUFFIXES: Final = (".install-tmp", ".install-backup", ".upgrade-tmp", ".backup")


@dataclass(frozen=True, slots=True)
class DepotLayout:
    """`backends` holds one folder per installed backend, and in a hidden one what is on its way there or out:
    renaming is atomic only within one file system. `blobs` may be on another."""

    backends: Path
    system: Path
    blobs: Path

    @classmethod
    def of(cls, data: DataFolder, backends: Path | None, system: Path) -> "DepotLayout":
        return cls(backends or data.worker / "backends", system, data.worker / "depot")

    @property
    def folders(self) -> tuple[Path, Path]:
        """Where installed backends are found."""
        return self.backends, self.system

    def installed(self, name: str) -> Path:
        return self.backends / name

    def staging(self, name: str) -> Path:
        """Being made; of no use until it is whole."""
        return self._hidden("staging") / name

    def ready(self, name: str) -> Path:
        """Whole and decided upon: it takes the installed folder's place, whatever happens in between."""
        return self._hidden("ready") / name

    def previous(self, name: str) -> Path:
        """The version before, kept until the installed one has run."""
        return self._hidden("previous") / name

    def trash(self, name: str) -> Path:
        """What is to go, numbered: it waits there while a process still runs from it."""
        return self._hidden("trash") / name

    def last_start(self, name: str) -> Path:
        """What it was last started with; a file."""
        return self._hidden("started") / name

    def lock(self, name: str) -> Path:
        return self._hidden("locks") / name

    def names_in(self, kind: str) -> list[str]:
        """Names that have a folder of this kind: staging, ready, previous or trash."""
        try:
            return sorted(path.name for path in self._hidden(kind).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _hidden(self, kind: str) -> Path:
        return self.backends / ".remuda" / kind


def checked_name(text: str) -> str:
    """The name as a folder's. A slash becomes two underscores, as with peers. Invalid for what cannot be."""
    name = text.strip().replace("/", "__")
    if not name or name.startswith((".", "-")) or len(name.encode()) > NAME_BYTES_MAX:
        fault = f"{text[:60]!r} is not a valid backend name"
    elif not name.isprintable() or "\\" in name:
        fault = f"{text[:60]!r} contains characters that are not allowed in backend names"
    elif name.endswith(PASSING_SUFFIXES):
        fault = f"{text[:60]!r} ends like a folder that is being replaced"
    else:
        return name
    raise Invalid(fault, hint=f"use up to {NAME_BYTES_MAX} letters, digits and . _ - @, a letter first")


def read_small(path: Path, bytes_max: int, *, within: Path | None = None) -> bytes:
    """All of a file. FileNotFoundError when there is none, other OSErrors as they come.

    Invalid for what is no plain file (a pipe would hold us, a device never ends), for one larger than
    `bytes_max`, and for a link that leads out of the folder `within`.
    """
    real = path.resolve(strict=True)
    if within is not None and not real.is_relative_to(within.resolve()):
        raise Invalid(f"{path} leads out of its folder", hint="put the file itself there, not a link")
    with os.fdopen(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
        if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            raise Invalid(f"{path} is not a file")
        content = handle.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise Invalid(f"{path} is larger than {bytes_max} bytes")
    return content


FILE_BYTES_MAX: Final = 1 << 20
_ERROR_CHARS_MAX: Final = 2000
M = TypeVar("M", bound=BaseModel)


class Metadata(Message):
    """One installed backend, or a meta backend that stands for one. Fields in the order LocalAI writes."""

    alias: Annotated[str, OMIT_EMPTY] = ""
    meta_backend_for: Annotated[str, OMIT_EMPTY] = ""
    name: Annotated[str, OMIT_EMPTY] = ""
    gallery_url: Annotated[str, OMIT_EMPTY] = ""
    installed_at: Annotated[str, OMIT_EMPTY] = ""  # RFC 3339; kept as written.
    version: Annotated[str, OMIT_EMPTY] = ""
    uri: Annotated[str, OMIT_EMPTY] = ""
    digest: Annotated[str, OMIT_EMPTY] = ""  # What the registry has under the name; images only.


class Record(Message):
    """What a folder was made of."""

    source: str = ""  # The URI that supplied the bytes, which may be a mirror.
    content: Annotated[str, OMIT_EMPTY] = ""  # Digest of the platform's manifest, or of the archive.
    layers: Annotated[Many[str], OMIT_EMPTY] = ()
    manifest: Annotated[str, OMIT_EMPTY] = ""  # Digest of the one that came with the spec, not the image.


def read_metadata(folder: Path) -> Metadata | None:
    """None where there is no such file. Invalid, naming it, when it cannot be read."""
    return _read(Metadata, folder / METADATA_FILE)


def write_metadata(folder: Path, metadata: Metadata) -> None:
    """Whole or not at all, world-readable."""
    write_text(folder / METADATA_FILE, json.dumps(json.loads(encode(metadata)), indent=2))


def read_record(folder: Path) -> Record:
    """An empty one where there is none that can be read: others made the folder, or changed it."""
    try:
        return _read(Record, folder / RECORD_FILE) or Record()
    except RemudaError:
        return Record()


def write_record(folder: Path, record: Record) -> None:
    write_text(folder / RECORD_FILE, encode(record).decode())


def _read(kind: type[M], path: Path) -> M | None:
    try:
        return decode(kind, read_small(path, FILE_BYTES_MAX), bytes_max=FILE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, RuntimeError) as error:  # A link to itself is one or the other.
        raise Invalid(f"{path} cannot be read: {without_number(str(error))}") from None
    except RemudaError as error:
        raise Invalid(f"{path} cannot be used: {error.message}") from None


def file_is(path: Path, text: str) -> bool:
    """Whether it is a file of its own that holds this text, to the letter."""
    try:
        content = text.encode()
        return not path.is_symlink() and read_small(path, len(content)) == content
    except (OSError, Invalid):
        return False


def write_text(path: Path, text: str) -> None:
    """An image may have put anything under this name: it is replaced, and never written through."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)


class FailedStart(Message):
    """Why the installed version did not start."""

    error: str


def start_check(folder: Path) -> tuple[StartCheck, str]:
    """How the last start of this version went, and why it failed. It goes with the version's folder, so
    another version has its own."""
    try:
        failed = _read(FailedStart, folder / START_FAILED_FILE)
    except RemudaError:
        return StartCheck.UNCHECKED, ""
    if failed is not None:
        return StartCheck.FAILED, failed.error or "its worker has kept no reason"
    return (StartCheck.STARTED if (folder / PROVEN_FILE).exists() else StartCheck.UNCHECKED), ""


def write_failed_start(folder: Path, error: str) -> None:
    """Nothing is written where it says so already. Every report carries it, so it is cut."""
    error = error[:_ERROR_CHARS_MAX]
    if start_check(folder) != (StartCheck.FAILED, error):
        write_text(folder / START_FAILED_FILE, encode(FailedStart(error=error)).decode())


class LastStart(Message):
    """A model, as a frontend asked for it."""

    model_id: str
    model_path: Annotated[str, OMIT_EMPTY] = ""
    options: Annotated[Many[str], OMIT_EMPTY] = ()

    @property
    def possible(self) -> bool:
        """A model whose file is gone starts nothing. What is no path here is for the server to find."""
        return not os.path.isabs(self.model_path) or os.path.exists(self.model_path)


def read_last_start(path: Path) -> LastStart | None:
    try:
        with path.open("rb") as handle:
            return decode(LastStart, handle.read(FILE_BYTES_MAX + 1), bytes_max=FILE_BYTES_MAX)
    except (OSError, RemudaError):
        return None


def write_last_start(path: Path, start: LastStart) -> None:
    """Nothing is written where it says so already."""
    if read_last_start(path) == start:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, encode(start).decode())

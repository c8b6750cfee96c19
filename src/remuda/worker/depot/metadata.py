"""The small files in an installed folder, above all `metadata.json`, which LocalAI reads and writes too, and
`.remuda.json`, which tells what the folder was made of. Blocks on the disk."""

import json
import os
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel

from remuda.core.errors import Invalid, RemudaError
from remuda.core.os_errors import without_number
from remuda.host.files import read_small
from remuda.wire.codec import OMIT_EMPTY, Many, Message, decode, encode
from remuda.worker.depot.layout import METADATA_FILE, RECORD_FILE

FILE_BYTES_MAX: Final = 1 << 20
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
    """Whole or not at all, readable by everybody."""
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

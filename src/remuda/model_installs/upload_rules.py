"""Resumable uploads by the tus protocol (1.0.0), as data: what its headers say, and what may be begun or
continued. Pure."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from remuda.core.errors import Conflict, Invalid, TooLarge, Unavailable
from remuda.models.files import FILES_MAX, SIZE_MAX, checked_path
from remuda.models.source_refs import checked_upload

MODELS_MAX: Final = 32  # Unfinished or not yet installed at the same time.
FILES_OF_MODEL_MAX: Final = 1_000
assert FILES_OF_MODEL_MAX <= FILES_MAX
WRITERS_MAX: Final = 16
IDLE_MAX: Final = timedelta(hours=24)  # After its last byte an upload is kept for so long.
SILENCE_S: Final = 60.0  # A request that brings no byte for so long is ended; what came is kept.
TAKEOVER_S: Final = 30.0  # For a request before to write what it has received.
METADATA_CHARS_MAX: Final = 8_192

_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)
_KEY: Final = re.compile(r"[!-+\--~]+")  # ASCII without spaces and commas.
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_FILE_KEY_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """One file of a model, as it was announced. `upload` is the id that all files of the model share."""

    upload: str
    path: str  # Below the model's own folder.
    size: int
    sha256: str = ""  # What all of it must hash to; empty: not known.
    by: str = ""

    @property
    def key(self) -> str:
        """A name for it that is short and fits every file system."""
        return hashlib.sha256(self.path.encode()).hexdigest()[:_FILE_KEY_CHARS]

    @property
    def id(self) -> str:
        return f"{self.upload}.{self.key}"


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """An upload with the bytes that are on the disk."""

    file: AnnouncedFile
    offset: int
    expires_at: datetime

    @property
    def complete(self) -> bool:
        return self.offset == self.file.size


def announced_file(length: str, metadata: Mapping[str, str], new_id: str, by: str) -> AnnouncedFile:
    """From the headers of a creation. `new_id` is for a caller that has chosen none."""
    if "filename" not in metadata:
        raise Invalid("Upload-Metadata has no filename", hint="send filename followed by its value in Base64")
    sha256 = metadata.get("sha256", "").lower()
    if sha256 and not _SHA256.fullmatch(sha256):
        raise Invalid("sha256 in Upload-Metadata is not 64 characters out of 0-9 and a-f")
    size = number(length, "Upload-Length")
    if not 0 < size <= SIZE_MAX:
        raise TooLarge(f"Upload-Length is {size}; a file has 1 to {SIZE_MAX} bytes")
    upload = checked_upload(metadata.get("upload") or new_id)
    return AnnouncedFile(upload, checked_path(metadata["filename"]), size, sha256, by)


def number(text: str, header: str) -> int:
    if not _NUMBER.fullmatch(text.strip()):
        raise Invalid(f"{header} must be a number of bytes", hint=f"send {header}: 0 or more")
    return int(text)


def read_metadata(text: str) -> dict[str, str]:
    """`key value, key value`, the values in Base64."""
    found: dict[str, str] = {}
    if len(text) > METADATA_CHARS_MAX:
        raise Invalid(f"Upload-Metadata is longer than {METADATA_CHARS_MAX} characters")
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition(" ")
        if not _KEY.fullmatch(key) or key in found:
            raise Invalid(f"Upload-Metadata has the key {key[:40]!r} twice, or it is not a key")
        try:
            found[key] = base64.b64decode(value.strip(), validate=True).decode()
        except ValueError:  # Not ASCII, not Base64 or not UTF-8.
            raise Invalid(f"the value of {key[:40]} in Upload-Metadata is not UTF-8 in Base64") from None
    return found


def written_metadata(values: Mapping[str, str]) -> str:
    """What `read_metadata` reads."""
    pairs = ((key, base64.b64encode(value.encode()).decode()) for key, value in values.items())
    return ",".join(f"{key} {value}".strip() for key, value in pairs)


def read_checksum(text: str) -> bytes | None:
    """The SHA-256 that a request's body must have; None: none is given."""
    if not text.strip():
        return None
    algorithm, _, value = text.strip().partition(" ")
    if algorithm != "sha256":
        raise Invalid(f"Upload-Checksum has the algorithm {algorithm[:20]!r}; only sha256 is known")
    try:
        digest = base64.b64decode(value.strip(), validate=True)
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise Invalid("Upload-Checksum is not a SHA-256 in Base64")
    return digest


def check_creation(wanted: AnnouncedFile, there: Iterable[UploadProgress]) -> UploadProgress | None:
    """The upload that goes on, if this file was announced before. Conflict for another file in its place;
    Unavailable where there are too many. `there` is all that has been uploaded and not been installed."""
    same: list[UploadProgress] = []
    uploads = {wanted.upload}
    for one in there:
        uploads.add(one.file.upload)
        if one.file.upload == wanted.upload:
            same.append(one)
    before = next((one for one in same if one.file.path == wanted.path), None)
    if before is not None:
        _check_same(wanted, before.file)
        return before
    if len(same) >= FILES_OF_MODEL_MAX:
        raise Invalid(f"an upload has at most {FILES_OF_MODEL_MAX} files")
    if len(uploads) > MODELS_MAX and not same:
        raise Unavailable(
            f"{MODELS_MAX} models are being uploaded, which is as many as may be at a time",
            hint="wait until one is installed, or remove one: GET /api/model-uploads lists them",
        )
    return None


def _check_same(wanted: AnnouncedFile, before: AnnouncedFile) -> None:
    if wanted.size != before.size or (wanted.sha256 and before.sha256 not in ("", wanted.sha256)):
        raise Conflict(
            f"{wanted.path} is already being uploaded as {wanted.upload}, with {before.size} bytes and other "
            "content",
            hint=f"remove that upload with DELETE /api/model-uploads/{before.id}, or choose another id",
        )


def missing_bytes(wanted: AnnouncedFile, there: Iterable[UploadProgress]) -> int:
    """What has yet to arrive once this file was announced, of all uploads."""
    return wanted.size + sum(one.file.size - one.offset for one in there)


def check_part(at: UploadProgress, offset: int, announced: int | None) -> None:
    """Conflict, with both numbers, for a part that does not begin where the file ends; Invalid for one that
    would go beyond the whole."""
    if offset != at.offset:
        raise Conflict(
            f"{at.file.path} has {at.offset} bytes, and this part begins at {offset}",
            hint="ask with HEAD where to go on",
        )
    if announced is not None and offset + announced > at.file.size:
        raise Invalid(
            f"{announced} bytes from {offset} on go beyond the {at.file.size} bytes of Upload-Length"
        )


def check_complete(upload: str, files: Iterable[UploadProgress]) -> None:
    """Conflict, with the numbers, while something is missing."""
    missing = [one for one in files if not one.complete]
    if missing:
        first, more = missing[0], len(missing) - 1
        also = f", and {more} more of its files are not complete" if more else ""
        raise Conflict(
            f"upload {upload} is not complete: {first.file.path} has {first.offset} of {first.file.size} "
            f"bytes{also}",
            hint="upload the rest first",
        )

"""What an image may cost the machine that unpacks it, which names it may use, how it is refused. [pure]

Every failure that is about one entry names it; the name is added in one place.
"""

from dataclasses import dataclass

from remuda.core.errors import Unavailable
from remuda.oci.errors import ContentRefused

SHOWN_CHARS_MAX = 200


class Refusal(Exception):
    """Why something may not be unpacked, raised by code that does not know which entry it is about."""


class ArchiveRefused(ContentRefused):
    """An entry of the archive, or the archive itself, may not be unpacked. Trying again does not help."""

    code = "archive_refused"


class UnpackFailed(Unavailable):
    """The file system refused a write, for another reason than being full."""


class UnpackCancelled(Exception):
    """The caller's own flag said to stop. What was unpacked so far is of no use."""


def shown(name: bytes) -> str:
    """A name from an archive, safe to print: no control characters, no broken encoding, not endless."""
    text = name.decode(errors="backslashreplace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Bounds for one image, all its layers together unless said otherwise.

    The defaults leave room for the largest images seen in the wild (CUDA libraries beside a Python
    environment: some 20 GB and 100,000 files) and stop what no such image needs.
    """

    entries_max: int = 1_000_000
    bytes_max: int = 256 << 30  # Unpacked; holes in sparse files count.
    file_bytes_max: int = 128 << 30
    depth_max: int = 128  # Each level costs an open file while unpacking.
    name_bytes_max: int = 255  # Of one path component; no common file system takes more.
    path_bytes_max: int = 2048  # Leaves room for the folder's own path below the usual 4096.
    metadata_bytes_max: int = 1 << 20  # One pax header, long name or sparse map.
    sparse_segments_max: int = 10_000
    ratio_max: int = 200  # Unpacked to packed, of one layer...
    ratio_free_bytes: int = (
        1 << 30
    )  # ...once it has unpacked to so much: zeros pack well, and small ones do no harm.
    zstd_window_bytes_max: int = 128 << 20  # What the zstd program takes unasked; memory is used as needed.


EntryPath = tuple[bytes, ...]  # Components below the folder; empty is the folder itself.

WHITEOUT = b".wh."
WHITEOUT_META = b".wh..wh."  # Bookkeeping of aufs; only the next one has a meaning in images.
OPAQUE = b".wh..wh..opq"


def components(name: bytes, limits: UnpackLimits) -> EntryPath:
    """An entry's name as path components below the folder, or a Refusal."""
    if b"\0" in name:
        raise Refusal("its name holds a NUL character")
    path = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if path and name.startswith(b"/"):
        raise Refusal("its path is absolute")
    if b".." in path:
        raise Refusal("its path holds '..'")
    if len(path) > limits.depth_max:
        raise Refusal(f"it lies {len(path)} folders deep; at most {limits.depth_max} are allowed")
    if len(name) > limits.path_bytes_max:
        raise Refusal(f"its path is {len(name)} bytes long; at most {limits.path_bytes_max} are allowed")
    if max(map(len, path), default=0) > limits.name_bytes_max:
        raise Refusal(f"its path has a part longer than {limits.name_bytes_max} bytes")
    return path


def check_symlink(path: EntryPath, text: bytes, limits: UnpackLimits) -> None:
    """Refuse link texts that no file system keeps, and relative ones that climb out of the folder.

    This reads the text alone, so it is a courtesy and no defence: links through other links may lead out,
    and absolute ones do. The defence is that unpacking never follows a link.
    """
    if not text:
        raise Refusal("it is a symbolic link to nothing")
    if b"\0" in text:
        raise Refusal("it is a symbolic link whose target holds a NUL character")
    if len(text) > limits.path_bytes_max:
        raise Refusal(
            f"it is a symbolic link of {len(text)} bytes; at most {limits.path_bytes_max} are allowed"
        )
    if text.startswith(b"/"):
        return
    depth = len(path) - 1
    for part in text.split(b"/"):
        depth += -1 if part == b".." else part not in (b"", b".")
        if depth < 0:
            raise Refusal("it is a symbolic link that leads out of the folder")


def hidden_by(path: EntryPath) -> tuple[EntryPath, bool] | None:
    """What a whiteout hides: the path, and whether only its content goes. None for ordinary entries."""
    if any(part.startswith(WHITEOUT) for part in path[:-1]):
        raise Refusal("it lies inside a whiteout")
    name = path[-1]
    if name == OPAQUE:
        return path[:-1], True
    if not name.startswith(WHITEOUT):
        return None
    hidden = name.removeprefix(WHITEOUT)
    if hidden in (b"", b".", b".."):
        raise Refusal("it is a whiteout that names no file")
    return (*path[:-1], hidden), False


def is_bookkeeping(path: EntryPath) -> bool:
    """Left behind by aufs, never meant to be unpacked."""
    return any(part.startswith(WHITEOUT_META) and part != OPAQUE for part in path)

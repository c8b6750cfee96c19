"""Which names an archive may use. [pure]: nothing here looks at a file system."""

from remuda.oci.unpack_errors import Refusal
from remuda.oci.unpack_limits import UnpackLimits

Path = tuple[bytes, ...]  # Components below the folder; empty is the folder itself.

WHITEOUT = b".wh."
WHITEOUT_META = b".wh..wh."  # Bookkeeping of aufs; only the next one has a meaning in images.
OPAQUE = b".wh..wh..opq"


def components(name: bytes, limits: UnpackLimits) -> Path:
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


def check_symlink(path: Path, text: bytes, limits: UnpackLimits) -> None:
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


def hidden_by(path: Path) -> tuple[Path, bool] | None:
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


def is_bookkeeping(path: Path) -> bool:
    """Left behind by aufs, never meant to be unpacked."""
    return any(part.startswith(WHITEOUT_META) and part != OPAQUE for part in path)

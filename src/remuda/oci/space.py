"""Room on the disk: asked about before the first byte, and explained when it runs out after all."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remuda.core.errors import Misconfigured
from remuda.oci import limits
from remuda.oci.errors import disk_full

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def with_margin(payload_bytes: int | None) -> int:
    """What should be free before so much is written; None when nobody knows how much it will be."""
    if payload_bytes is None:
        return limits.UNKNOWN_PAYLOAD_BYTES
    return payload_bytes + max(int(payload_bytes * limits.MARGIN_SHARE), limits.MARGIN_BYTES_MIN)


def require_headroom(folder: Path, payload_bytes: int | None, what: str) -> None:
    """DiskFull, with the numbers, unless the payload and a margin fit where `folder` is or will be.

    A payload of nothing needs no room: what is there already can be used on a full disk.
    """
    needed = with_margin(payload_bytes)
    free = free_bytes(folder)
    if payload_bytes != 0 and free < needed:
        raise disk_full(what, folder, needed, free)


def free_bytes(folder: Path) -> int:
    """Free to this user, on the disk that holds the folder or will once it is made."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


@contextmanager
def disk_trouble_explained(what: str, folder: Path, needed_bytes: int) -> Iterator[None]:
    """DiskFull or Misconfigured instead of a bare OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise disk_full(what, folder, needed_bytes, free_bytes(folder)) from error
        raise Misconfigured(
            f"{what} cannot be kept in {folder}: {error.strerror or error}",
            hint="correct the folder's permissions or choose another",
        ) from error

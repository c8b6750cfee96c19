"""The disk below a download: room is asked for before the first byte and explained when it runs out after
all, and writing begins early, so that the sync at the end is short."""

import ctypes
import errno
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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


EVERY_BYTES: Final = 8 << 20
_BEGIN: Final = 2  # SYNC_FILE_RANGE_WRITE: start writing, wait for nothing.


def _no_wish(descriptor: int, offset: int, size: int) -> None:
    """Where the system knows no such thing."""


def _chosen() -> Callable[[int, int, int], None]:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
    if call is None:
        return _no_wish
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def begin(descriptor: int, offset: int, size: int) -> None:
        call(descriptor, offset, size, _BEGIN)  # Whether it was heard does not matter.

    return begin


begin_writeback: Final = _chosen()


class Writeback:
    """Of one file that is written from `start` on."""

    def __init__(self, descriptor: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._begun = start

    def reached(self, size: int) -> None:
        """The file was written up to here."""
        if size - self._begun >= EVERY_BYTES:
            begin_writeback(self._descriptor, self._begun, size - self._begun)
            self._begun = size

"""Lets the disk begin early with what has to be on it in the end. A wish: only a sync makes sure."""

import ctypes
import sys
from collections.abc import Callable
from typing import Final

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

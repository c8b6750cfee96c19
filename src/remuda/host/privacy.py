"""Keeps the memory and the environment of this process from other programs of the same user."""

import ctypes
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def keep_private() -> bool:
    """Close this process's files in /proc, its environment and memory among them, to all but root, and let
    nobody trace it. Whether that could be done: Linux can.

    Backends run as the user that workers run as; what a process was started with, and what it holds, is not
    theirs to read. Programs that it starts are not affected. The price is that there are no core dumps.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)

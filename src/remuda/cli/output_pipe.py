"""Notices that the program which reads our output has ended, as `head` does after its lines."""

import errno
import os
import select
from io import UnsupportedOperation
from typing import IO, Final

_GONE: Final = select.POLLERR | select.POLLHUP if hasattr(select, "poll") else 0  # Windows has no poll.


def raise_if_reader_gone(output: IO[str]) -> None:
    """BrokenPipeError, as the next write would raise it: a command that waits for events may not write for
    hours."""
    if reader_gone(output):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def reader_gone(output: IO[str]) -> bool:
    """Files and terminals have no reader that could go away."""
    if not _GONE:
        return False
    try:
        descriptor = output.fileno()
    except (UnsupportedOperation, ValueError):  # Captured by a test, or closed.
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # Errors and hang-ups are reported without being asked for.
    return any(events & _GONE for _, events in poll.poll(0))

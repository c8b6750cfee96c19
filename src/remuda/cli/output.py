"""What commands write: text that may come from a peer is made safe for a terminal, and it is noticed when
the program which reads our output has ended, as `head` does after its lines.
"""

import errno
import os
import re
import select
from collections.abc import Sequence
from io import UnsupportedOperation
from typing import IO, Final
from unicodedata import category

_INDENT: Final = re.compile(r"\n +")


def one_line(text: str) -> str:
    """Without line breaks, escapes and other control characters: each becomes a space, a line break together
    with the spaces that the next line begins with."""
    return "".join(char if char.isprintable() else " " for char in _INDENT.sub("\n", text))


def in_lines(message: str, details: Sequence[str]) -> str:
    """The message, with each of the details on a line of its own in place of those that it ends with."""
    summary, found, _ = message.partition(f": {details[0]}") if details else (message, "", "")
    if not found:
        return one_line(message)
    return "\n".join((f"{one_line(summary)}:", *(f"  {one_line(line)}" for line in details)))


def as_text(text: str) -> str:
    """Lines, tabs and every script's letters stay. Escapes and other control characters become spaces, and
    halves of characters the sign for what cannot be shown."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char in "\n\t":
        return char
    match category(char):
        case "Cc":
            return " "
        case "Cs":
            return "\ufffd"
        case _:
            return char


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

"""Text that may come from a peer, made safe for a terminal. Pure."""

import re
from collections.abc import Sequence
from typing import Final
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

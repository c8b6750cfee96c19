"""Separates reasoning between tags at the beginning of a text from the answer. Pure."""

from enum import Enum, auto
from typing import Final

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class _Place(Enum):
    BEFORE = auto()
    OPENED = auto()  # Behind the tag, where empty lines mean nothing.
    WITHIN = auto()
    CLOSED = auto()  # The same, behind the other tag.
    AFTER = auto()


class Thoughts:
    """For text that comes in pieces, of which any may end within a tag. Tags further on are mere text."""

    def __init__(self) -> None:
        self._rest = ""
        self._place = _Place.BEFORE

    def feed(self, piece: str, *, last: bool = False) -> tuple[str, str]:
        """What is content in all that was fed and not told yet, and what is thought."""
        if self._place is _Place.AFTER:
            return piece, ""
        self._rest += piece
        if self._place is _Place.BEFORE:
            self._begin(last)
        thought = self._thought(last)
        return self._content(), thought

    def _begin(self, last: bool) -> None:
        begun = self._rest.lstrip()
        if begun.startswith(_OPEN):
            self._rest, self._place = begun.removeprefix(_OPEN), _Place.OPENED
        elif last or not _OPEN.startswith(begun):
            self._place = _Place.AFTER

    def _thought(self, last: bool) -> str:
        if self._place is _Place.OPENED:
            self._skip_lines(_Place.WITHIN)
        if self._place is not _Place.WITHIN:
            return ""
        end = self._rest.find(_CLOSE)
        if end < 0:
            return self._taken(len(self._rest) - (0 if last else _length_of_beginning(self._rest)))
        thought = self._taken(end)
        self._rest, self._place = self._rest.removeprefix(_CLOSE), _Place.CLOSED
        return thought

    def _content(self) -> str:
        if self._place is _Place.CLOSED:
            self._skip_lines(_Place.AFTER)
        return self._taken(len(self._rest)) if self._place is _Place.AFTER else ""

    def _skip_lines(self, then: _Place) -> None:
        self._rest = self._rest.lstrip("\n")
        if self._rest:
            self._place = then

    def _taken(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


def _length_of_beginning(text: str) -> int:
    """How much of the closing tag has come, at the end of the text."""
    return next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)

"""Estimates what parsing a JSON text costs from its contents. Pure.

A parser holds everybody up until it is done. How long that takes depends less on a text's length than on how
many values it has: a megabyte of text is read in a millisecond, a megabyte of empty objects in two hundred.
"""

from typing import Final

from remuda.core.slices import Budget, Sliced

CHEAP_BYTES_MAX: Final = 32 << 10  # Whatever is in a shorter text, it is parsed in some 20 ms.
STEPS_MAX: Final = 500_000  # About 50 ms of parsing.
_SLICE_BYTES: Final = 64 << 10
_MEMBER_STEPS: Final = 6
_CONTAINER_STEPS: Final = 20


def check_json_cost(text: bytes) -> Sliced[None]:
    """Invalid if parsing would take too long. Whether it is JSON at all is the parser's business."""
    budget = Budget("the request", STEPS_MAX)
    at, in_string = 0, False
    while at < len(text):
        if at:
            yield
        piece = _piece(text, at)
        at += len(piece)
        in_string, steps = _cost(piece, in_string)
        budget.charge(steps)


def _piece(text: bytes, at: int) -> bytes:
    """The next one, such that no escape is cut in two."""
    piece = text[at : at + _SLICE_BYTES]
    escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2
    return piece[:-1] if escaped and len(piece) == _SLICE_BYTES else piece


def _cost(piece: bytes, in_string: bool) -> tuple[bool, int]:
    """Whether a string goes on behind the piece, and what the values in it cost."""
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = piece.split(b'"')
    outside = b"".join(parts[1 if in_string else 0 :: 2])
    quotes = len(parts) - 1
    containers = outside.count(b"{") + outside.count(b"[")
    steps = quotes // 2 + outside.count(b",")
    steps += _MEMBER_STEPS * outside.count(b":") + _CONTAINER_STEPS * containers
    return in_string ^ bool(quotes % 2), steps

"""The outline of a large JSON text: long strings in it, which are pictures and sounds, are set aside, so
that what a parser has to read at once is short.

A parser holds the interpreter until it is done, so in a thread of its own it would stop the event loop for
just as long. Here everybody else has a turn after each slice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import msgspec
from anyio.lowlevel import checkpoint

_QUOTE: Final = b'"'
_STEP_BYTES: Final = 16 << 10  # What has no quote in it for two of these is found to be long.
_SLICE_BYTES: Final = 128 << 10  # Checked in a tenth of a millisecond.
_COPIED_BYTES: Final = 1 << 20  # At once, in about a millisecond.
_AFTER_A_STRING: Final = b" \t\r\n,:]}"
_MARK: Final = b"(set aside "
_STAND_IN: Final = re.compile(rb"\(set aside (\d+)\)")
_string: Final = msgspec.json.Decoder(msgspec.Raw)


@dataclass(frozen=True, slots=True)
class Outline:
    """`text` is the body with a stand-in for each stretch of it that was set aside. One is valid JSON if the
    other is, and they differ in the contents of strings only."""

    body: bytes
    text: bytes
    aside: tuple[tuple[int, int], ...]  # From where to where in the body.

    @staticmethod
    def stand_ins(text: bytes) -> int:
        """How many of them are in this part of an outline."""
        return text.count(_MARK)

    def original(self, part: bytes) -> memoryview:
        """What the body has where its outline has `part`, which has stand-ins in it."""
        found = list(_STAND_IN.finditer(part))
        first, last = found[0], found[-1]
        start = self.aside[int(first[1])][0] - first.start()
        end = self.aside[int(last[1])][1] + len(part) - last.end()
        return memoryview(self.body)[start:end]

    async def filled(self, text: bytes) -> bytes:
        """`text` with everything in its place again, though it may have been moved about."""
        body, whole, at = memoryview(self.body), BytesIO(), 0
        for found in _STAND_IN.finditer(text):
            start, end = self.aside[int(found[1])]
            whole.write(text[at : found.start()])
            for piece in range(start, end, _COPIED_BYTES):
                whole.write(body[piece : min(piece + _COPIED_BYTES, end)])
                await checkpoint()
            at = found.end()
        whole.write(text[at:])
        return whole.getvalue()  # Not a copy.


async def outlined(body: bytes) -> Outline:
    """Nothing is set aside of a body that has something like a stand-in itself."""
    kept, aside, at = list[bytes](), list[tuple[int, int]](), 0
    for start, end in _long_stretches(body):
        if await _belongs_into_a_string(body, start, end):
            kept += (body[at:start], b"%s%d)" % (_MARK, len(aside)))
            aside.append((start, end))
            at = end
    text = b"".join((*kept, body[at:]))
    if not aside or Outline.stand_ins(text) != len(aside):
        return Outline(body, body, ())
    return Outline(body, text, tuple(aside))


def _long_stretches(body: bytes) -> Iterator[tuple[int, int]]:
    """Between two quotes, wherever these belong."""
    at = 0
    while at + _STEP_BYTES <= len(body):
        if body.find(_QUOTE, at, at + _STEP_BYTES) >= 0:
            at += _STEP_BYTES
            continue
        start, end = body.rfind(_QUOTE, 0, at) + 1, body.find(_QUOTE, at)
        if start == 0 or end < 0:
            return
        yield start, end
        at = end


async def _belongs_into_a_string(body: bytes, start: int, end: int) -> bool:
    """It cannot stand behind a string's end, nor in pieces anywhere but within a string."""
    if body[start] in _AFTER_A_STRING:
        return False
    while start < end:
        await checkpoint()
        piece = body[start : min(start + _SLICE_BYTES, end)]
        if start + len(piece) < end and piece.endswith(b"\\"):
            piece = piece[:-1]  # What it escapes is in the next one.
        if not piece.isascii() or not _is_content(piece):
            return False
        start += len(piece)
    return True


def _is_content(piece: bytes) -> bool:
    try:
        _string.decode(b'"%s"' % piece)
    except msgspec.DecodeError:
        return False
    return True

"""Large JSON bodies without holding up others: what parsing one costs, estimated from its contents; its
outline, with long strings (pictures and sounds) set aside, so that what a parser has to read at once is
short; and sliced work on the event loop, where every other task has a turn after each slice.

A parser holds the interpreter until it is done, so in a thread of its own it would stop the event loop for
just as long. How long that takes depends less on a text's length than on how many values it has: a megabyte
of text is read in a millisecond, a megabyte of empty objects in two hundred.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, Unavailable
from remuda.core.slices import Budget, Sliced

CHEAP_BYTES_MAX: Final = 32 << 10  # Whatever is in a shorter text, it is parsed in some 20 ms.
STEPS_MAX: Final = 500_000  # About 50 ms of parsing.
_SCANNED_BYTES: Final = 64 << 10
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
    piece = text[at : at + _SCANNED_BYTES]
    escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2
    return piece[:-1] if escaped and len(piece) == _SCANNED_BYTES else piece


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
        """`part`, which has stand-ins in it, with what they stand for: as it is in the body, where the body
        has it so, else a copy."""
        found = list(_STAND_IN.finditer(part))
        first, last, body = found[0], found[-1], memoryview(self.body)
        start = self.aside[int(first[1])][0] - first.start()
        end = self.aside[int(last[1])][1] + len(part) - last.end()
        head, tail = part[: first.start()], part[last.end() :]
        if start >= 0 and body[start : start + len(head)] == head and body[end - len(tail) : end] == tail:
            return body[start:end]
        pieces, at = list[bytes | memoryview](), 0
        for stand_in in found:
            pieces += (part[at : stand_in.start()], body[slice(*self.aside[int(stand_in[1])])])
            at = stand_in.end()
        return memoryview(b"".join((*pieces, part[at:])))

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


T = TypeVar("T")

WORK_MS_MAX: Final = 2000  # Of one request, in all its slices together.
WAITING_MAX: Final = 64  # Requests with long work to be done, the one at work included.


class Slicer:
    """Work that ends within its first slice, as nearly all does, costs nothing more. Longer work is done for
    one request at a time: a hundred side by side would hold up all others for a hundred slices at once."""

    def __init__(
        self, clock: Clock, *, work_ms_max: float = WORK_MS_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        self._clock = clock
        self._work_s_max = work_ms_max / 1000
        self._waiting_max = waiting_max
        self._waiting = 0
        self._turn = anyio.Lock(fast_acquire=True)

    async def run(self, work: Sliced[T]) -> T:
        """Its result, or what it raises. Invalid if it takes too long, Unavailable if too many wait."""
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        if self._waiting >= self._waiting_max:
            work.close()
            raise Unavailable("too many complex requests are waiting", hint="try again in a while")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._finish(work)
        finally:
            self._waiting -= 1
            work.close()

    async def _finish(self, work: Sliced[T]) -> T:
        worked_s = 0.0
        while worked_s <= self._work_s_max:
            await checkpoint()
            began_s = self._clock.thread_cpu()
            try:
                next(work)
            except StopIteration as done:
                result: T = done.value
                return result
            worked_s += self._clock.thread_cpu() - began_s
        raise Invalid(
            f"the request is too complex: preparing it takes more than {self._work_s_max * 1000:g} ms of CPU",
            hint="make its schema, tools or messages smaller",
        )

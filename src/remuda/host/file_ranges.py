"""Answers an HTTP request with a file, or a part of it, as our servers do: without holding it in memory, and
not for ever to a caller that takes nothing.
"""

import os
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import anyio
from anyio.to_thread import run_sync

READ_BYTES: Final = 1 << 20
STALL_S: Final = 60.0  # A caller that does not take a byte for so long is cut off.
GROWS_WITHIN_S: Final = 30.0  # A file that is still arriving, and does not grow for so long, is given up.
_LOOK_S: Final = 0.05

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_OCTETS: Final = b"application/octet-stream"

SendAsgi = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]


class ByteRange(NamedTuple):
    """From `start` to before `end`."""

    start: int
    end: int


def wanted_range(header: str, size: int) -> ByteRange | None:
    """Which bytes a Range header asks for; None: there are none such. All of them where it is empty, or
    written in a way that need not be understood."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or not (found[1] or found[2]):
        return ByteRange(0, size)
    if not found[1]:
        last = int(found[2])
        return ByteRange(max(size - last, 0), size) if last and size else None
    start, end = int(found[1]), int(found[2]) + 1 if found[2] else size
    if start >= size or end <= start:
        return None
    return ByteRange(start, min(end, size))


async def send_file(
    send: SendAsgi,
    descriptor: int,
    range_header: str,
    more: Sequence[Header] = (),
    *,
    head: bool = False,
    whole_bytes: int | None = None,
) -> bool:
    """200, 206 or 416, and the bytes. False when the answer was left unfinished: the caller took nothing for
    too long, or the file became shorter. `whole_bytes`: of a file that is still arriving, which is sent as
    far as it is there."""
    size = os.fstat(descriptor).st_size if whole_bytes is None else whole_bytes
    wanted = wanted_range(range_header, size)
    headers: list[Header] = [(b"content-type", _OCTETS), (b"accept-ranges", b"bytes"), *more]
    if wanted is None:
        headers += [(b"content-range", b"bytes */%d" % size), (b"content-length", b"0")]
        await _begin(send, 416, headers)
        await send({"type": "http.response.body", "body": b""})
        return True
    headers.append((b"content-length", b"%d" % (wanted.end - wanted.start)))
    partial = bool(range_header) and wanted != (0, size)
    if partial:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (wanted.start, wanted.end - 1, size)))
    await _begin(send, 206 if partial else 200, headers)
    if head or wanted.start == wanted.end:
        await send({"type": "http.response.body", "body": b""})
        return True
    return await _sent(send, descriptor, wanted, grows=whole_bytes is not None)


async def _begin(send: SendAsgi, status: int, headers: list[Header]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _sent(send: SendAsgi, descriptor: int, wanted: ByteRange, *, grows: bool) -> bool:
    position = wanted.start
    while position < wanted.end:
        data = await run_sync(os.pread, descriptor, min(READ_BYTES, wanted.end - position), position)
        if not data:
            if not (grows and await _grown(descriptor, position)):
                return False
            continue
        position += len(data)
        more = position < wanted.end
        with anyio.move_on_after(STALL_S) as patience:
            await send({"type": "http.response.body", "body": data, "more_body": more})
        if patience.cancelled_caught:
            return False
    return True


async def _grown(descriptor: int, position: int) -> bool:
    """Whether there is more of it by now. One that begins anew is another file."""
    before = os.fstat(descriptor).st_size
    with anyio.move_on_after(GROWS_WITHIN_S):
        while (size := os.fstat(descriptor).st_size) <= position:
            if size < before:
                return False
            await anyio.sleep(_LOOK_S)
        return True
    return False

"""A body of bytes that may begin in the middle, and what its headers promise about it."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from remuda.oci.errors import RegistryFailed
from remuda.oci.transport import Response

_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(?:(\d{1,18})|\*)")


@dataclass(frozen=True, slots=True)
class Stream:
    """`offset` is where it begins; `total` the size of the whole, where the server said so. `mirror` is who
    sends it, unless that is the place whose word counts."""

    offset: int
    total: int | None
    chunks: Callable[[], AsyncIterator[bytes]]
    mirror: str = ""


def range_header(offset: int) -> Mapping[str, str]:
    return {"Range": f"bytes={offset}-"} if offset else {}


def stream_of(answer: Response, what: str, mirror: str = "") -> Stream:
    """The body of a 200, 206 or 416. The last has none: the whole is no longer than what was skipped."""
    if answer.status == 200:
        length = answer.headers.get("Content-Length", "")
        return Stream(0, int(length) if length.isdecimal() else None, answer.chunks, mirror)
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if answer.status == 416:
        return Stream(0, int(found[2]) if found and found[2] else None, _nothing, mirror)
    if found is None or found[1] is None:
        raise RegistryFailed(f"{answer.url.host} sent a part of {what} without saying which")
    return Stream(int(found[1]), int(found[2]) if found[2] else None, answer.chunks, mirror)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield  # Makes this a generator.

"""What registries answer: a body of bytes, which may begin in the middle, and what its headers promise; or a
refusal, in words."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from pydantic import BaseModel, ValidationError

from remuda.core.errors import Forbidden, NotFound, Rejected, RemudaError, Unauthorized
from remuda.oci import limits
from remuda.oci.errors import ContentRefused, RegistryBusy, RegistryFailed
from remuda.oci.retrying import parse_retry_after
from remuda.oci.transport import Response

_SAID_CHARS_MAX = 300


class _Error(BaseModel):
    code: str = ""
    message: str = ""


class _Errors(BaseModel):
    errors: tuple[_Error, ...] = ()


async def raise_for_status(answer: Response, what: str, now: datetime) -> NoReturn:
    """Raise what an answer of an unwanted status means; `what` was asked for."""
    said = await _said(answer)
    raise _meaning(answer.status, what, said and f": {said}", answer.headers.get("Retry-After"), now)


def _meaning(status: int, what: str, said: str, retry_after: str | None, now: datetime) -> RemudaError:
    match status:
        case 401:
            return Unauthorized(f"{what} may not be read with the credentials used{said}")
        case 403:
            return Forbidden(f"{what} may not be read{said}")
        case 404:
            return NotFound(
                f"{what} does not exist{said}", hint="check the name, and log in if it is private"
            )
        case 429 | 503:
            why = "too many requests" if status == 429 else "not available now"
            return RegistryBusy(f"{what}: {why}{said}", parse_retry_after(retry_after, now))
        case _ if status in (408, 425) or status >= 500:
            return RegistryFailed(f"{what}: the answer was status {status}{said}")
        case _:
            return Rejected(f"{what}: the answer was status {status}{said}")


async def _said(answer: Response) -> str:
    """The first thing a registry says in the form they all use; empty when it says nothing so."""
    try:
        body = await answer.body(limits.ERROR_BYTES_MAX, "an error message")
        errors = _Errors.model_validate_json(body).errors
    except (ValidationError, ContentRefused, RegistryFailed):
        return ""
    text = (errors[0].message or errors[0].code) if errors else ""
    return "".join(char if char.isprintable() else " " for char in text[:_SAID_CHARS_MAX])


_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(?:(\d{1,18})|\*)")


@dataclass(frozen=True, slots=True)
class BodyStream:
    """`offset` is where it begins; `total` the size of the whole, where the server said so. `mirror` is who
    sends it, unless that is the place whose word counts."""

    offset: int
    total: int | None
    chunks: Callable[[], AsyncIterator[bytes]]
    mirror: str = ""


def range_header(offset: int) -> Mapping[str, str]:
    return {"Range": f"bytes={offset}-"} if offset else {}


def stream_of(answer: Response, what: str, mirror: str = "") -> BodyStream:
    """The body of a 200, 206 or 416. The last has none: the whole is no longer than what was skipped."""
    if answer.status == 200:
        length = answer.headers.get("Content-Length", "")
        return BodyStream(0, int(length) if length.isdecimal() else None, answer.chunks, mirror)
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if answer.status == 416:
        return BodyStream(0, int(found[2]) if found and found[2] else None, _nothing, mirror)
    if found is None or found[1] is None:
        raise RegistryFailed(f"{answer.url.host} sent a part of {what} without saying which")
    return BodyStream(int(found[1]), int(found[2]) if found[2] else None, answer.chunks, mirror)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield  # Makes this a generator.

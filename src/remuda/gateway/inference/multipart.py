"""Forms with files, as multipart/form-data writes them. Pure.

A file is found in the body, not copied out of it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from remuda.core.slices import Sliced
from remuda.gateway.inference.body_errors import InvalidField

PARTS_MAX: Final = 200
HEAD_BYTES_MAX: Final = 8 << 10  # Of one part.
_SEARCHED_BYTES: Final = 256 << 10  # Takes well below a millisecond.
_BOUNDARY_CHARS_MAX: Final = 200  # RFC 2046 allows 70.
_MEDIA_TYPE: Final = "multipart/form-data"
_BOUNDARY: Final = re.compile(r';\s*boundary\s*=\s*(?:"([^"]+)"|([^\s";]+))', re.IGNORECASE)
_PARAMETER: Final = re.compile(
    r';\s*(name|filename\*?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.IGNORECASE
)
_LINE: Final = b"\r\n"
_HINT: Final = "send it as multipart/form-data, such as curl -F file=@speech.wav does"


@dataclass(frozen=True, slots=True)
class FormPart:
    """`file_name` is None for a field that is no file."""

    name: str
    file_name: str | None
    content: memoryview


def form_parts(content_type: str, body: bytes) -> Sliced[Sequence[FormPart]]:
    """InvalidField for what is no form, or only the beginning of one."""
    mark = _delimiter(content_type)
    opening = mark.removeprefix(_LINE)
    at = 0 if body.startswith(opening) else (yield from _found(body, mark, 0)) + len(_LINE)
    at += len(opening)
    parts = list[FormPart]()
    while not body.startswith(b"--", at):
        if len(parts) >= PARTS_MAX:
            raise InvalidField(f"the form has more than {PARTS_MAX} parts")
        start = body.find(b"\n", at, at + HEAD_BYTES_MAX) + 1
        name, file_name, begin = _head(body, start)
        end = yield from _found(body, mark, begin - len(_LINE))
        parts.append(FormPart(name, file_name, memoryview(body)[begin:end]))
        at = end + len(mark)
    return parts


def _delimiter(content_type: str) -> bytes:
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith(_MEDIA_TYPE):
        shown = content_type[:100] or "of no type"
        raise InvalidField(f"the body is {shown}, not a form", hint=_HINT)
    boundary = (found[1] or found[2]) if found is not None else ""
    if not 0 < len(boundary) <= _BOUNDARY_CHARS_MAX:
        raise InvalidField("the Content-Type header has no boundary for the form's parts", hint=_HINT)
    return b"\r\n--" + boundary.encode("latin-1", "replace")


def _found(body: bytes, mark: bytes, start: int) -> Sliced[int]:
    """Where the next delimiter is. What only begins like one belongs to the content."""
    at = max(start, 0)
    while at < len(body):
        found = body.find(mark, at, at + _SEARCHED_BYTES + len(mark))
        if found < 0:
            at += _SEARCHED_BYTES
            yield
        elif _ends_well(body, found + len(mark)):
            return found
        else:
            at = found + 1
    raise InvalidField("the form is cut off: the boundary at its end is missing")


def _ends_well(body: bytes, at: int) -> bool:
    rest = body[at : at + 64]
    return rest.startswith(b"--") or rest.lstrip(b" \t").startswith(_LINE)


def _head(body: bytes, start: int) -> tuple[str, str | None, int]:
    """The name of a part and of its file, and where its content begins."""
    end = body.find(b"\r\n\r\n", start - len(_LINE), start + HEAD_BYTES_MAX)
    if end < 0:
        raise InvalidField("a part of the form has no end of its headers, or too many of them")
    for line in body[start:end].decode("utf-8", "replace").split("\r\n"):
        header, _, value = line.partition(":")
        if header.strip().lower() == "content-disposition":
            parameters = dict(_parameters(value))
            if name := parameters.get("name"):
                return name, parameters.get("filename*", parameters.get("filename")), end + 4
    raise InvalidField("a part of the form has no name")


def _parameters(value: str) -> Iterator[tuple[str, str]]:
    for key, quoted, bare in _PARAMETER.findall(value):
        given = re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
        yield key.lower(), unquote(given.rpartition("'")[2]) if key.endswith("*") else given

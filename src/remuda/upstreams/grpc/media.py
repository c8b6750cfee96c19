"""Pictures, sounds and films within messages, as backends take them: base64. Pure.

Nothing is fetched, and nothing that could name a file on a worker is passed on.
"""

import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from remuda.core.errors import Invalid, in_field
from remuda.core.slices import Sliced
from remuda.inference.requests import Part, RequestMessage, text_of

_T = TypeVar("_T")

MARKER: Final = "<__media__>"  # Where a rendered prompt has one of them.
PARTS_MAX: Final = 1000  # Of one request; and as many pauses.
_SLICE_BYTES: Final = 256 << 10  # Checked within a millisecond or two.
_HEAD_BYTES_MAX: Final = 1000
_DATA_URL: Final = re.compile(rb"data:[^,;]*(?:;[^,;]*)*;base64,", re.IGNORECASE)
_LINK: Final = re.compile(rb"https?:", re.IGNORECASE)
_ESCAPE_BYTES: Final = 6  # The longest there is in JSON: \\u0041.
# A path without dots can pass for base64, and there are backends that open what they find to be a file. No
# picture is as short as such paths are.
_CONTENT_CHARS_MIN: Final = 64
_TEXTS: Final = ("text", "refusal")
_HINT: Final = "send the content itself, as a data: URL"

Content = bytes | memoryview  # Base64; where possible a part of the request's body, which is not copied.


@dataclass(frozen=True, slots=True)
class Media:
    images: Sequence[Content] = ()
    videos: Sequence[Content] = ()
    audios: Sequence[Content] = ()

    def __bool__(self) -> bool:
        return bool(self.images or self.videos or self.audios)


NO_MEDIA: Final = Media()


@dataclass(slots=True)
class _Found:
    images: list[Content] = field(default_factory=list)
    videos: list[Content] = field(default_factory=list)
    audios: list[Content] = field(default_factory=list)


class _Linked(msgspec.Struct):
    url: msgspec.Raw


class _Enclosed(msgspec.Struct):
    data: msgspec.Raw


def media_in(messages: Sequence[RequestMessage]) -> Sliced[Media]:
    """All there is, in order; NO_MEDIA for text alone. Invalid for what cannot be passed on."""
    found = _Found()
    parts = [(place, part) for place, part in _placed(messages) if part.type not in _TEXTS]
    if len(parts) > PARTS_MAX:
        words = f"the messages have more than {PARTS_MAX} images, audio clips and videos"
        raise Invalid(words, param="messages")
    for place, part in parts:
        with in_field(f"{place}.{part.type[:40]}"):
            yield from _take(part, place, found)
    return Media(found.images, found.videos, found.audios) if parts else NO_MEDIA


def _take(part: Part, place: str, found: _Found) -> Sliced[None]:
    match part.type:
        case "image_url":
            found.images.append((yield from _base64(part.type, _url(part.type, part.image_url))))
        case "video_url":
            found.videos.append((yield from _base64(part.type, _url(part.type, part.video_url))))
        case "input_audio":
            enclosed = _decoded(part.type, part.input_audio, _Enclosed, "data").data
            found.audios.append((yield from _base64(part.type, enclosed)))
        case other:
            raise Invalid(
                f"content of type {other[:40]!r} is not known",
                hint="text, image_url, video_url and input_audio are",
                param=f"{place}.type",
            )


def _placed(messages: Sequence[RequestMessage]) -> Iterator[tuple[str, Part]]:
    """Each part with its place in the request."""
    for index, message in enumerate(messages):
        if isinstance(message.content, list):
            for number, part in enumerate(message.content):
                yield f"messages[{index}].content[{number}]", part


def marked_text(message: RequestMessage) -> str:
    """The text, after a marker for each thing that is to be seen or heard."""
    return MARKER * sum(part.type not in _TEXTS for part in _parts([message])) + text_of(message)


def _parts(messages: Sequence[RequestMessage]) -> Iterator[Part]:
    for message in messages:
        if isinstance(message.content, list):
            yield from message.content


def _url(kind: str, raw: msgspec.Raw) -> msgspec.Raw:
    """OpenAI has it in an object; many send the bare text."""
    return _decoded(kind, raw, _Linked, "url").url if bytes(memoryview(raw)[:1]) == b"{" else raw


def _decoded(kind: str, raw: msgspec.Raw, wanted: type[_T], member: str) -> _T:
    try:
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.DecodeError:
        raise Invalid(f"{kind} must be an object with {member}") from None


def _base64(kind: str, raw: msgspec.Raw) -> Sliced[Content]:
    """The content that a JSON string holds, checked in slices: it may be as long as a body may be."""
    string = memoryview(raw)
    if bytes(string[:1]) != b'"':
        raise Invalid(f"{kind} must have its content as a text", hint=_hint(kind))
    start, text = bytes(string[1 : _HEAD_BYTES_MAX + 1]), string[1:-1]
    if _LINK.match(start):
        raise Invalid(f"{kind} is a link, and links are not fetched", hint=_hint(kind))
    head = _DATA_URL.match(start)
    text = text[head.end() :] if head else text
    checked = _Base64()
    pieces, escaped = list[bytes](), False
    for raw_piece in _pieces(text):
        piece = _unescaped(kind, raw_piece)
        escaped = escaped or piece is not raw_piece
        if not checked.feed(piece):
            raise _no_base64(kind)
        pieces.append(piece)
        if len(raw_piece) >= _SLICE_BYTES - _ESCAPE_BYTES:
            yield
    if not checked.complete:
        raise _no_base64(kind)
    if checked.chars < _CONTENT_CHARS_MIN:
        raise Invalid(f"{kind} is too short to be anything", hint=_hint(kind))
    return b"".join(pieces) if escaped else text


def _pieces(text: memoryview) -> Iterator[bytes]:
    """Such that no escape is cut in two."""
    at = 0
    while at < len(text):
        end = at + _SLICE_BYTES
        if end < len(text):
            escape = bytes(text[end - _ESCAPE_BYTES : end]).rfind(b"\\")
            end = end if escape < 0 else end - _ESCAPE_BYTES + escape
        yield bytes(text[at:end])
        at = end


def _unescaped(kind: str, piece: bytes) -> bytes:
    """Some encoders escape characters of base64."""
    if b"\\" not in piece:
        return piece
    try:
        return msgspec.json.decode(b'"%s"' % piece, type=str).encode()
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise _no_base64(kind) from None


def _no_base64(kind: str) -> Invalid:
    return Invalid(f"{kind} is not base64", hint=_hint(kind))


def _hint(kind: str) -> str:
    return "send the content itself, as base64" if kind == "input_audio" else _HINT


class _Base64:
    """Whether pieces are base64 when they are put together."""

    def __init__(self) -> None:
        self.chars = 0  # Without slashes.
        self._rest = b""
        self._ended = False

    def feed(self, piece: bytes) -> bool:
        self.chars += len(piece) - piece.count(b"/")
        data = self._rest + piece
        whole = len(data) - len(data) % 4
        self._rest = data[whole:]
        if self._ended and data:
            return False
        self._ended = data[:whole].endswith(b"=")
        try:
            binascii.a2b_base64(data[:whole], strict_mode=True)
        except ValueError:
            return False
        return True

    @property
    def complete(self) -> bool:
        return not self._rest

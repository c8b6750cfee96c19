"""Pictures, sounds and films within messages, as backends take them: base64. Pure.

Nothing is fetched, and nothing that could name a file on a worker is passed on.
"""

import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from remuda.core.errors import Invalid
from remuda.inference.requests import Message, Part

_T = TypeVar("_T")

MARKER: Final = "<__media__>"  # Where a rendered prompt has one of them.
_DATA_URL: Final = re.compile(r"data:[^,;]*(?:;[^,;]*)*;base64,", re.IGNORECASE)
# A path without dots can pass for base64, and there are backends that open what they find to be a file. No
# picture is as short as such paths are.
_CONTENT_CHARS_MIN: Final = 64
_TEXTS: Final = ("text", "refusal")


@dataclass(frozen=True, slots=True)
class Media:
    images: Sequence[str] = ()
    videos: Sequence[str] = ()
    audios: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.images or self.videos or self.audios)


NO_MEDIA: Final = Media()


@dataclass(slots=True)
class _Found:
    images: list[str] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)
    audios: list[str] = field(default_factory=list)


class _Linked(msgspec.Struct):
    url: str


class _Enclosed(msgspec.Struct):
    data: str


def media_in(messages: Sequence[Message]) -> Media:
    """All there is, in order. Invalid for what cannot be passed on."""
    if all(isinstance(message.content, str) for message in messages):
        return NO_MEDIA
    found = _Found()
    for part in _parts(messages):
        match part.type:
            case "text" | "refusal":
                continue
            case "image_url":
                found.images.append(_base64(part.type, _url(part.type, part.image_url)))
            case "video_url":
                found.videos.append(_base64(part.type, _url(part.type, part.video_url)))
            case "input_audio":
                found.audios.append(_base64(part.type, _decoded(part.type, part.input_audio, _Enclosed).data))
            case other:
                raise Invalid(
                    f"content of type {other[:40]!r} is not known",
                    hint="text, image_url, video_url and input_audio are",
                )
    return Media(found.images, found.videos, found.audios)


def marked_text(message: Message) -> str:
    """The text, after a marker for each thing that is to be seen or heard."""
    return MARKER * sum(part.type not in _TEXTS for part in _parts([message])) + text_of(message)


def text_of(message: Message) -> str:
    """Its text; of several parts those that are text, one after the other."""
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or () if part.type == "text")


def _parts(messages: Sequence[Message]) -> Iterator[Part]:
    for message in messages:
        if isinstance(message.content, list):
            yield from message.content


def _url(kind: str, raw: msgspec.Raw) -> str:
    """OpenAI has it in an object; many send the bare text."""
    return _decoded(kind, raw, _Linked).url if bytes(raw)[:1] == b"{" else _decoded(kind, raw, str)


def _decoded(kind: str, raw: msgspec.Raw, wanted: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.DecodeError as error:
        raise Invalid(f"{kind} cannot be understood: {error}") from None


def _base64(kind: str, given: str) -> str:
    if given.lower().startswith(("http:", "https:")):
        raise Invalid(
            f"{kind} is a link, and links are not fetched", hint="send the content itself, as a data: URL"
        )
    head = _DATA_URL.match(given)
    text = given[head.end() :] if head else given
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise Invalid(f"{kind} is not base64", hint="send the content itself, as a data: URL") from None
    if len(text.replace("/", "")) < _CONTENT_CHARS_MIN:
        raise Invalid(f"{kind} is too short to be anything", hint="send the content itself, as a data: URL")
    return text

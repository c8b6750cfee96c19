"""Links in the messages of a chat, to pictures and sounds that lie elsewhere: where they are, and what takes
their place. Pure.

A server that a request is relayed to would follow them itself, from within the network, so none is passed on.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from remuda.core.errors import Invalid
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import Request
from remuda.inference.requests import NULL, ChatRequest, Part

LINKS_MAX: Final = 16  # Of one request.
LINK_CHARS_MAX: Final = 4096
_FIELDS: Final[Mapping[str, str]] = {
    "image_url": "url",
    "video_url": "url",
    "audio_url": "url",
    "input_audio": "data",
}  # Of a part, each with the member that has its content or leads to it.
_HEAD_BYTES: Final = 64
_DATA: Final = b"data:"
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
_BLANKS: Final = bytes(range(33))
_WEB: Final = ("http://", "https://")
_raw_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_list: Final = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class MediaLink:
    """`field` of a part of a message leads to `url`."""

    message: int
    part: int
    field: str
    url: str

    @property
    def place(self) -> str:
        return f"messages[{self.message}].content[{self.part}].{self.field}"


@dataclass(frozen=True, slots=True)
class LinkedContent:
    """What a link led to, as base64."""

    link: MediaLink
    media_type: str
    base64: bytes
    sound_format: str = ""  # As `input_audio` names it; empty for what is not heard.


def links_in(request: Request | MediaRequest) -> Sequence[MediaLink]:
    """Those to the web. Invalid for too many, and for addresses of other kinds, such as files."""
    if not isinstance(request, ChatRequest):
        return ()
    found = [
        link
        for number, message in enumerate(request.messages)
        if isinstance(message.content, list)
        for place, part in enumerate(message.content)
        if part.type != "text"
        for link in _links_of(part, number, place)
    ]
    if len(found) > LINKS_MAX:
        raise Invalid(f"the messages have {len(found)} links, {LINKS_MAX} are allowed", param="messages")
    return found


def _links_of(part: Part, message: int, place: int) -> Iterator[MediaLink]:
    for field, member in _FIELDS.items():
        raw = getattr(part, field)
        if raw is NULL:
            continue
        if url := _address(_content(raw, member)):
            link = MediaLink(message, place, field, url)
            if not url.lower().startswith(_WEB):
                raise Invalid(f"{link.place} is not an address on the web, nor content", param=link.place)
            yield link


def _content(raw: msgspec.Raw, member: str) -> msgspec.Raw:
    if bytes(memoryview(raw)[:1]) != b"{":
        return raw
    try:
        return _raw_members.decode(raw).get(member, NULL)
    except msgspec.DecodeError:
        return NULL


def _address(raw: msgspec.Raw) -> str:
    """Empty for what is no address, but the content itself."""
    view = memoryview(raw)
    if bytes(view[:1]) != b'"':
        return ""
    head = bytes(view[1 : 1 + _HEAD_BYTES]).replace(b"\\/", b"/").lstrip(_BLANKS)
    if head[: len(_DATA)].lower() == _DATA or (b"\\" not in head and _SCHEME.match(head) is None):
        return ""
    if len(view) > LINK_CHARS_MAX:
        raise Invalid("a link in the messages is too long", param="messages")
    text: str = msgspec.json.decode(raw, type=str)
    text = text.strip("".join(map(chr, range(33))))
    written = text.encode("utf-8", "replace")
    if written[: len(_DATA)].lower() == _DATA or _SCHEME.match(written) is None:
        return ""
    return text


def put_in_place(request: Request | MediaRequest, contents: Sequence[LinkedContent]) -> None:
    """Have the request bring what its links led to."""
    assert isinstance(request, ChatRequest)
    for content in contents:
        parts = request.messages[content.link.message].content
        assert isinstance(parts, list)
        part = parts[content.link.part]
        field, value = _member(getattr(part, content.link.field), content)
        setattr(part, content.link.field, NULL)
        setattr(part, field, value)
        part.type = field


def body_with(body: bytes, contents: Sequence[LinkedContent]) -> bytes:
    """The same for a request as OpenAI's JSON; all else stays as it was written."""
    whole = _raw_members.decode(body)
    messages: list[Any] = list(_raw_list.decode(whole["messages"]))
    for number in {content.link.message for content in contents}:
        message = _raw_members.decode(messages[number])
        parts: list[Any] = list(_raw_list.decode(message["content"]))
        for content in contents:
            if content.link.message == number:
                parts[content.link.part] = _part_with(parts[content.link.part], content)
        messages[number] = {**message, "content": parts}
    return msgspec.json.encode({**whole, "messages": messages})


def _part_with(part: msgspec.Raw, content: LinkedContent) -> Mapping[str, object]:
    members = _raw_members.decode(part)
    field, value = _member(members.pop(content.link.field), content)
    return {**members, "type": field, field: value}


def _member(raw: msgspec.Raw, content: LinkedContent) -> tuple[str, msgspec.Raw]:
    """The field, and its value: a sound has to be reported as such, whatever led to it."""
    if content.sound_format:
        return "input_audio", msgspec.Raw(
            b'{"data":"%b","format":"%b"}' % (content.base64, content.sound_format.encode())
        )
    url = msgspec.Raw(b'"data:%b;base64,%b"' % (content.media_type.encode(), content.base64))
    others = _raw_members.decode(raw) if bytes(memoryview(raw)[:1]) == b"{" else {}
    return content.link.field, msgspec.Raw(msgspec.json.encode({**others, "url": url}))

"""Of a large body the parser sees no more than it can read in a moment, and the request is the same."""

import json
from dataclasses import replace
from typing import Any

import pytest

from remuda.core import limits
from remuda.core.clock import SystemClock
from remuda.core.errors import TooLarge
from remuda.gateway.inference.bodies import parsed_in_outline
from remuda.gateway.inference.endpoint import ApiEndpoint, ParsedRequest
from remuda.gateway.openai.endpoints import ENDPOINTS
from remuda.inference.large_bodies import Slicer
from remuda.inference.requests import ChatRequest

pytestmark = pytest.mark.anyio

CHAT = ENDPOINTS["/v1/chat/completions"]
EMBEDDING = ENDPOINTS["/v1/embeddings"]
PICTURE = "data:image/png;base64," + "QUJD" * (100 << 10)
SOUND = "UklG" * (100 << 10)
TEXT = {"type": "text", "text": "what is this?"}
PICTURE_PART = {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}
PARTS = [
    TEXT,
    PICTURE_PART,
    {"type": "image_url", "image_url": PICTURE[::-1]},
    {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
    {"type": "video_url", "video_url": {"url": PICTURE}},
    {"type": "file", "file": {"file_data": PICTURE}},
]


class Watched:
    """The parser, and how much it was given each time."""

    def __init__(self, endpoint: ApiEndpoint) -> None:
        self.sizes: list[int] = []
        self.endpoint = replace(endpoint, parse=self._parse)
        self._really = endpoint.parse

    def _parse(self, body: bytes) -> ParsedRequest:
        self.sizes.append(len(body))
        return self._really(body)


def chat(content: object, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]} | more).encode()


def media(known: ParsedRequest) -> list[bytes]:
    assert isinstance(known.request, ChatRequest)
    parts: Any = known.request.messages[0].content
    return [bytes(raw) for part in parts for raw in (part.image_url, part.input_audio, part.video_url)]


async def test_media_are_never_parsed_and_are_all_there() -> None:
    watched, body = Watched(CHAT), chat(PARTS)
    request = await parsed_in_outline(watched.endpoint, body, Slicer(SystemClock()))
    assert watched.sizes[0] == sum(watched.sizes) < 1000
    assert media(request) == media(CHAT.parse(body))


async def test_media_in_fields_that_nobody_here_reads_are_never_parsed_either() -> None:
    watched = Watched(CHAT)
    await parsed_in_outline(watched.endpoint, chat("hi", audio_prompt=SOUND), Slicer(SystemClock()))
    assert watched.sizes[0] == sum(watched.sizes) < 1000


@pytest.mark.parametrize(
    "body", [chat(SOUND), chat([PICTURE_PART], user=SOUND), chat(PARTS, metadata={"x": SOUND})]
)
async def test_where_text_is_expected_it_is_the_text_that_was_sent(body: bytes) -> None:
    known = await parsed_in_outline(CHAT, body, Slicer(SystemClock()))
    parsed_whole = CHAT.parse(body)
    request, expected = known.request, parsed_whole.request
    assert isinstance(request, ChatRequest)
    assert isinstance(expected, ChatRequest)
    assert (request.user, request.metadata) == (expected.user, expected.metadata)
    contents = request.messages[0].content
    assert contents == expected.messages[0].content or media(known) == media(parsed_whole)


async def test_a_text_that_pretends_to_stand_for_a_picture_stays_a_text() -> None:
    pretence = "\\u0028set aside 0)"
    body = chat([PICTURE_PART]).replace(b'"model"', b'"user": "%s", "model"' % pretence.encode())
    known = await parsed_in_outline(CHAT, body, Slicer(SystemClock()))
    assert isinstance(known.request, ChatRequest)
    assert (known.request.user, media(known)) == ("(set aside 0)", media(CHAT.parse(body)))


async def test_a_body_may_be_as_large_as_its_media_make_it() -> None:
    picture = "data:image/png;base64," + "A" * (2 * limits.INFERENCE_JSON_BYTES_MAX)
    body = chat([{"type": "image_url", "image_url": {"url": picture}}])
    assert len(media(await parsed_in_outline(CHAT, body, Slicer(SystemClock())))[0]) > len(picture)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, chat("a word " * (limits.INFERENCE_JSON_BYTES_MAX // 7))),
        (CHAT, chat("A" * limits.INFERENCE_JSON_BYTES_MAX)),
        (EMBEDDING, b'{"model": "m", "input": [%s1]}' % (b"1," * (limits.INFERENCE_JSON_BYTES_MAX // 2))),
    ],
)
async def test_what_is_large_without_media_is_refused_unparsed(endpoint: ApiEndpoint, body: bytes) -> None:
    watched = Watched(endpoint)
    with pytest.raises(TooLarge):
        await parsed_in_outline(watched.endpoint, body, Slicer(SystemClock()))
    assert sum(watched.sizes) < 1000

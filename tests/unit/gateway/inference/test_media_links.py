"""Links in messages are found however they are written, and what they lead to takes their place."""

import json
from typing import Any

import msgspec
import pytest

from remuda.core.errors import Invalid
from remuda.gateway.inference.media_links import (
    LINKS_MAX,
    LinkedContent,
    MediaLink,
    body_with,
    links_in,
    put_in_place,
)
from remuda.inference.requests import ChatRequest

PNG = "data:image/png;base64," + "A" * 100


def body(*parts: dict[str, Any]) -> bytes:
    messages = [{"role": "system", "content": "http://not.a/link"}, {"role": "user", "content": list(parts)}]
    return json.dumps({"model": "m", "messages": messages, "unknown": {"to": "us"}}).encode()


def request(*parts: dict[str, Any]) -> ChatRequest:
    return msgspec.json.decode(body(*parts), type=ChatRequest)


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def urls(*parts: dict[str, Any]) -> list[tuple[str, str]]:
    return [(link.place, link.url) for link in links_in(request(*parts))]


@pytest.mark.parametrize(
    "part",
    [
        image({"url": "https://a.test/x.png", "detail": "low"}),
        image("https://a.test/x.png"),
        image(" \n\thttps://a.test/x.png"),
        {"type": "strange", "image_url": {"url": "https://a.test/x.png"}},
    ],
)
def test_a_link_is_found(part: dict[str, Any]) -> None:
    assert urls({"type": "text", "text": "http://b.test"}, part) == [
        ("messages[1].content[1].image_url", "https://a.test/x.png")
    ]


def test_a_link_with_escapes_or_a_second_time_is_found() -> None:
    text = body(image({"url": "X"})).replace(b'"X"', rb'"\u0068ttp:\/\/a.test\/x"')
    assert [link.url for link in links_in(msgspec.json.decode(text, type=ChatRequest))] == ["http://a.test/x"]
    twice = text.replace(rb'"url": "', b'"url": "data:image/png;base64,AAAA", "url": "')
    assert [link.url for link in links_in(msgspec.json.decode(twice, type=ChatRequest))] == [
        "http://a.test/x"
    ]


def test_links_to_sounds_and_films_are_found() -> None:
    found = urls(
        {"type": "input_audio", "input_audio": {"data": "HTTP://a.test/1", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "http://a.test/2"}},
        {"type": "video_url", "video_url": {"url": "http://a.test/3"}},
    )
    assert [url for _, url in found] == ["HTTP://a.test/1", "http://a.test/2", "http://a.test/3"]


@pytest.mark.parametrize(
    "part",
    [
        image({"url": PNG}),
        image({"url": PNG.replace("data", "DATA")}),
        image({"url": "/9j/" + "A" * 100}),
        image("iVBORw0KGgo" + "A" * 100),
        image({"url": ""}),
        image({"url": 7}),
        image({"no": "url"}),
        image([1]),
        image(None),
        {"type": "input_audio", "input_audio": {"data": "UklGR" + "A" * 100, "format": "wav"}},
    ],
)
def test_content_is_no_link(part: dict[str, Any]) -> None:
    assert urls(part) == []


def test_content_whose_slashes_are_escaped_is_no_link() -> None:
    text = body(image({"url": "X"}))
    for escaped in (rb'"\/9j\/AAAA"', rb'"data:image\/png;base64,AAAA"'):
        assert not links_in(msgspec.json.decode(text.replace(b'"X"', escaped), type=ChatRequest))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a.test/x", "gopher:x", "s3://a/b", "HTTPS:x"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(Invalid, match="not an address on the web") as refused:
        urls(image({"url": url}))
    assert refused.value.param == "messages[1].content[0].image_url"


def test_links_are_bounded() -> None:
    with pytest.raises(Invalid, match=f"{LINKS_MAX} are allowed"):
        urls(*[image("http://a.test")] * (LINKS_MAX + 1))
    with pytest.raises(Invalid, match="too long"):
        urls(image("http://a.test/" + "x" * 5000))


PARTS = (
    {"type": "text", "text": "look"},
    image({"url": "http://a.test/x.png", "detail": "low"}),
    {"type": "audio_url", "audio_url": {"url": "http://a.test/x.mp3"}},
)
CONTENTS = (
    LinkedContent(MediaLink(1, 1, "image_url", ""), "image/png", b"QUJD"),
    LinkedContent(MediaLink(1, 2, "audio_url", ""), "audio/mpeg", b"REVG", "mp3"),
)
IN_PLACE = [
    {"type": "text", "text": "look"},
    image({"url": "data:image/png;base64,QUJD", "detail": "low"}),
    {"type": "input_audio", "input_audio": {"data": "REVG", "format": "mp3"}},
]


def test_what_links_lead_to_takes_their_place_in_what_is_relayed() -> None:
    changed = json.loads(body_with(body(*PARTS), CONTENTS))
    expected = json.loads(body(*PARTS))
    expected["messages"][1]["content"] = IN_PLACE
    assert changed == expected


def test_what_links_lead_to_takes_their_place_in_what_is_translated() -> None:
    asked = request(*PARTS)
    put_in_place(asked, CONTENTS)
    parts = asked.messages[1].content
    assert isinstance(parts, list)
    assert json.loads(bytes(parts[1].image_url)) == IN_PLACE[1]["image_url"]
    assert (parts[2].type, json.loads(bytes(parts[2].input_audio))) == (
        "input_audio",
        IN_PLACE[2]["input_audio"],
    )
    assert links_in(asked) == []

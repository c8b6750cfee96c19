from collections.abc import Sequence

import msgspec
import pytest

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.inference.requests import RequestMessage
from remuda.upstreams.grpc.media import Content, Media, media_in

SEEN, HEARD = "A" * 64, "B" * 64


def _media(**part: object) -> Media:
    message = {"role": "user", "content": [part]}
    return at_once(media_in([msgspec.convert(message, RequestMessage)]))


def _texts(contents: Sequence[Content]) -> list[str]:
    return [bytes(content).decode() for content in contents]


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@pytest.mark.parametrize(
    "url",
    [
        {"url": f"data:image/png;base64,{SEEN}", "detail": "low"},
        {"url": f"DATA:image/png;name=x;BASE64,{SEEN}"},
        f"data:;base64,{SEEN}",
        SEEN,
    ],
)
def test_a_picture_is_passed_on_without_its_label(url: object) -> None:
    assert _texts(_media(type="image_url", image_url=_raw(url)).images) == [SEEN]


def test_a_film_and_a_sound_are_told_apart() -> None:
    film = _media(type="video_url", video_url=_raw({"url": f"data:video/mp4;base64,{SEEN}"}))
    sound = _media(type="input_audio", input_audio=_raw({"data": HEARD, "format": "wav"}))

    assert (_texts(film.videos), _texts(sound.audios)) == ([SEEN], [HEARD])


@pytest.mark.parametrize("url", ["http://example.org/a.png", "HTTPS://example.org/a.png"])
def test_a_link_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="links are not fetched"):
        _media(type="image_url", image_url=_raw({"url": url}))


@pytest.mark.parametrize(
    "url", ["/etc/hostname", "file:///etc/hosts", "../model.gguf", "data:image/png,raw", "AAA", "AA AA"]
)
def test_what_is_no_base64_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="not base64"):
        _media(type="image_url", image_url=_raw({"url": url}))


@pytest.mark.parametrize(
    "url", ["/etc/passwd1", "/" * 101 + "etc/passwd1", "data:image/png;base64,/etc/passwd1"]
)
def test_what_could_be_a_path_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="too short to be anything"):
        _media(type="image_url", image_url=_raw(url))


@pytest.mark.parametrize("value", [None, 5, {}, {"url": 5}, []])
def test_a_picture_of_the_wrong_shape_is_refused(value: object) -> None:
    with pytest.raises(Invalid, match="image_url must"):
        _media(type="image_url", image_url=_raw(value))


def test_a_part_of_an_unknown_type_is_named() -> None:
    with pytest.raises(Invalid, match="'smell'") as refused:
        _media(type="smell")
    assert refused.value.param == "messages[0].content[0].type"


@pytest.mark.parametrize("value", [None, "zzz", {}, {"data": 5}, {"data": "UklGRiQ="}])
def test_audio_that_cannot_be_used_is_named_with_its_place(value: object) -> None:
    with pytest.raises(Invalid, match=r"^input_audio ") as refused:
        _media(type="input_audio", input_audio=_raw(value))
    assert refused.value.param == "messages[0].content[0].input_audio"
    assert "URL" not in str(refused.value)

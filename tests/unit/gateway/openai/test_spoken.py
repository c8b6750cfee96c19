"""Speech comes in the format that was asked for, or is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.openai.spoken import SpeechFormat, sniffed
from remuda.gateway.openai.wav import wav_head
from remuda.inference.failures import RequestUnsupported
from tests.support.wav_files import wav_file

SOUND = b"\x01\x02" * 500
WAV = wav_file(SOUND) + b"LIST\4\0\0\0tags"
MP3 = b"ID3" + bytes(500)


def heard(wanted: str, data: bytes, sample_rate: int = 0, at_once: int = 7) -> tuple[bytes, bytes]:
    """Its content type, and what was passed on."""
    format = SpeechFormat(wanted, "polly")
    format.begin(sample_rate)
    passed = format.opening(sample_rate)
    for start in range(0, len(data), at_once):
        passed += format.feed(data[start : start + at_once])
    passed += format.rest()
    return format.content_type, passed


@pytest.mark.parametrize("wanted", ["", "wav"])
def test_a_file_of_the_right_format_is_passed_on_untouched(wanted: str) -> None:
    assert heard(wanted, WAV) == (b"audio/wav", WAV)


def test_any_file_will_do_where_none_is_asked_for() -> None:
    assert heard("", MP3) == (b"audio/mpeg", MP3)
    assert heard("", b"??") == (b"application/octet-stream", b"??")


@given(st.integers(1, 2000))
def test_samples_are_taken_out_of_a_wav_file_however_it_comes(at_once: int) -> None:
    assert heard("pcm", WAV, at_once=at_once) == (b"audio/pcm;rate=22050;channels=1", SOUND)


def test_samples_become_a_wav_file_or_stay_what_they_are() -> None:
    assert heard("pcm", SOUND, 16_000) == (b"audio/pcm;rate=16000;channels=1", SOUND)
    for wanted in ("", "wav"):
        content_type, passed = heard(wanted, SOUND, 16_000)
        head = wav_head(passed)
        assert head is not None
        assert (content_type, head.sample_rate, passed[head.begin :]) == (b"audio/wav", 16_000, SOUND)


@pytest.mark.parametrize(
    ("wanted", "data", "rate"),
    [
        ("mp3", WAV, 0),
        ("wav", MP3, 0),
        ("opus", b"OggS" + bytes(60), 0),
        ("pcm", MP3, 0),
        ("pcm", wav_file(SOUND, channels=2), 0),
        ("pcm", wav_file(SOUND, width=1), 0),
        ("pcm", b"RIFF\0\0\0\0WAVE" + bytes(100_000), 0),
        ("pcm", b"RIFF\0\0\0\0WAVE", 0),
        ("wav", b"?" * 100, 0),
        ("mp3", b"", 16_000),
    ],
)
def test_what_a_backend_does_not_give_is_refused(wanted: str, data: bytes, rate: int) -> None:
    with pytest.raises(RequestUnsupported, match=f"response_format is {wanted}") as refused:
        heard(wanted, data, rate)
    assert (refused.value.param, refused.value.status) == ("response_format", 400)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"fLaC", "flac"),
        (b"OggS" + bytes(24) + b"OpusHead", "opus"),
        (b"OggS" + bytes(24) + b"\x01vorbis", ""),
        (b"\xff\xf1\x50", "aac"),
        (b"\xff\xfb\x90", "mp3"),
        (b"ID3\4", "mp3"),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_formats_are_known_by_how_they_begin(head: bytes, name: str) -> None:
    assert sniffed(head) == name

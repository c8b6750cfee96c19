"""WAV files that lie, and those that may."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.openai.wav import NoWav, streamed_head, wav_head, wav_problem
from tests.support.wav_files import wav_file

WHOLE = wav_file(b"\x01\x02" * 100)


def claiming(length: int) -> bytes:
    return WHOLE[:40] + length.to_bytes(4, "little") + WHOLE[44:]


def test_a_head_is_read() -> None:
    head = wav_head(WHOLE)
    assert head is not None
    assert (head.sample_rate, head.channels, head.bits, head.plain) == (22_050, 1, 16, True)
    assert (head.begin, head.sound_bytes) == (44, 200)


@pytest.mark.parametrize("length", [201, 100_000, 0x7FFF0000])
def test_one_that_claims_more_than_there_is_was_cut_off(length: int) -> None:
    assert f"{length} bytes of sound, and has 200" in wav_problem(claiming(length))


@pytest.mark.parametrize("length", [0, 100, 200, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFDB])
def test_one_that_does_not_know_its_length_or_goes_on_behind_it_is_fine(length: int) -> None:
    assert wav_problem(claiming(length)) == ""


@pytest.mark.parametrize("length", range(12, 45))
def test_one_that_is_cut_off_within_its_head_is_told(length: int) -> None:
    assert "WAV file" in wav_problem(WHOLE[:length])


def test_one_without_format_or_sound_is_told() -> None:
    assert "how its sound is written" in wav_problem(b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd")
    assert "how its sound is written" in wav_problem(b"RIFF\0\0\0\0WAVEfmt \2\0\0\0abcd")
    assert "no sound in its beginning" in wav_problem(b"RIFF\0\0\0\0WAVE" + b"LIST\0\0\0\0" * 2000)


def test_large_chunks_before_the_sound_are_no_problem_of_a_whole_file() -> None:
    picture = b"LIST" + (200_000).to_bytes(4, "little") + bytes(200_000)
    with_picture = WHOLE[:12] + picture + WHOLE[12:]
    assert wav_problem(with_picture) == ""
    with pytest.raises(NoWav):
        wav_head(with_picture)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"ID3 music", b"RIFF\0\0\0\0AVI "])
def test_other_files_are_left_alone(content: bytes) -> None:
    assert wav_problem(content) == ""


def test_the_head_of_a_stream_can_be_read() -> None:
    head = wav_head(streamed_head(16_000) + b"ab")
    assert head is not None
    assert (head.sample_rate, head.channels, head.bits, head.begin, head.sound_bytes) == (
        16_000,
        1,
        16,
        44,
        None,
    )


@given(st.binary(max_size=200))
def test_whatever_follows_has_a_problem_or_sound(noise: bytes) -> None:
    content = b"RIFF\0\0\0\0WAVE" + noise
    assert wav_problem(content) or b"data" in noise

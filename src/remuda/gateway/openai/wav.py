"""WAV files: what their head says, and heads for samples that have none. Pure."""

import struct
from dataclasses import dataclass
from typing import Final

HEAD_BYTES_MAX: Final = 64 << 10  # Of chunks before the sound.
UNKNOWN_BYTES: Final = 0xFFFFFFFF  # Written as a length by who could not know it yet.
_LONGEST: Final = 0x7FFFF000  # Lengths above it stand for an unknown one, too: some count down from 2 GiB.
_CHUNKS_MAX: Final = 1000
_FORMAT: Final = struct.Struct("<HHIIHH")
_PLAIN: Final = 1
_EXTENSIBLE: Final = 0xFFFE


@dataclass(frozen=True, slots=True)
class WavHead:
    """`begin`: where the sound begins. `sound_bytes`: how much of it there is, as the file says; None: it
    does not say."""

    sample_rate: int
    channels: int
    bits: int
    plain: bool
    begin: int
    sound_bytes: int | None


class NoWav(ValueError):
    """Says why."""


def is_wav(content: bytes | memoryview) -> bool:
    return bytes(content[:4]) == b"RIFF" and bytes(content[8:12]) == b"WAVE"


def wav_head(content: bytes | memoryview, within: int = HEAD_BYTES_MAX) -> WavHead | None:
    """None: the sound has not begun yet, in what there is of the file. NoWav if it does not begin `within` so
    many bytes."""
    at, sound = 12, None
    view = memoryview(content)
    for _ in range(_CHUNKS_MAX):
        if at + 8 > len(view):
            return None
        kind, size = bytes(view[at : at + 4]), int.from_bytes(view[at + 4 : at + 8], "little")
        at += 8
        if kind == b"data":
            if sound is None:
                raise NoWav("it does not say how its sound is written")
            code, channels, rate, _, _, bits = sound
            known = None if size == 0 or size > _LONGEST else size
            return WavHead(rate, channels, bits, code in (_PLAIN, _EXTENSIBLE), at, known)
        if kind == b"fmt ":
            if size < _FORMAT.size:
                raise NoWav("it does not say how its sound is written")
            if at + _FORMAT.size > len(view):
                return None
            sound = _FORMAT.unpack_from(view, at)
        at += size + size % 2
        if at > within:
            break
    raise NoWav("there is no sound in its beginning")


def wav_problem(content: bytes | memoryview) -> str:
    """Why a recording that says that it is a WAV file is none; empty: nothing is wrong with it, or it is
    something else."""
    if not is_wav(content):
        return ""
    try:
        head = wav_head(content, len(content))
    except NoWav as error:
        return f"the WAV file cannot be read: {error}"
    if head is None:
        return "the WAV file is cut off before its sound begins"
    there = len(content) - head.begin
    if not there:
        return "the WAV file has no sound in it"
    if head.sound_bytes is not None and head.sound_bytes > there:
        return (
            f"the WAV file is cut off: it says that it has {head.sound_bytes} bytes of sound, and has {there}"
        )
    return ""


def streamed_head(sample_rate: int) -> bytes:
    """For samples of 16 bits, of one channel, whose number is not known yet."""
    written = _FORMAT.pack(_PLAIN, 1, sample_rate, sample_rate * 2, 2, 16)
    unknown = UNKNOWN_BYTES.to_bytes(4, "little")
    return b"RIFF%bWAVEfmt \x10\x00\x00\x00%bdata%b" % (unknown, written, unknown)

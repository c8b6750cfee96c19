"""Speech as clients ask for it, out of what backends give: a file, or samples. Nothing is encoded anew: what
a backend does not give is refused. Pure.
"""

from typing import Final

from remuda.gateway.openai.wav import HEAD_BYTES_MAX, NoWav, is_wav, streamed_head, wav_head
from remuda.inference.failures import RequestUnsupported

FORMATS: Final = ("mp3", "opus", "aac", "flac", "wav", "pcm")
OF_SAMPLES: Final = ("", "wav", "pcm")  # Can be made while samples come; empty: whatever comes.
_TYPES: Final = {
    "mp3": b"audio/mpeg",
    "opus": b"audio/ogg",
    "aac": b"audio/aac",
    "flac": b"audio/flac",
    "wav": b"audio/wav",
}
_UNKNOWN: Final = "a format that is not known"
_SNIFFED_BYTES: Final = 64  # The codec within Ogg is named by byte 36.


class SpeechFormat:
    """One recording on its way. `wanted` is empty where any format will do."""

    def __init__(self, wanted: str, model: str) -> None:
        self._wanted = wanted
        self._model = model
        self._held: bytes | None = b""  # None: the format was found, and what follows passes.
        self._left: int | None = None  # Of the sound of a WAV file, where only that is passed on.
        self.content_type = b"application/octet-stream"

    def begin(self, sample_rate: int) -> None:
        """As inference.answers.AudioSink has it."""
        if not sample_rate:
            return
        if self._wanted not in OF_SAMPLES:
            raise self._refused("samples, which become wav or pcm")
        self._held = None
        self.content_type = _pcm(sample_rate) if self._wanted == "pcm" else _TYPES["wav"]

    def opening(self, sample_rate: int) -> bytes:
        """What goes before the first samples."""
        return streamed_head(sample_rate) if sample_rate and self._wanted != "pcm" else b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now; nothing, until the format is known."""
        if self._held is None:
            return self._cut(data)
        self._held += data
        return self._found(self._held) if len(self._held) >= _SNIFFED_BYTES else b""

    def rest(self) -> bytes:
        """What was held back, when nothing more comes."""
        passed = self._found(self._held) if self._held else b""
        if self._held:
            raise self._refused("a WAV file without sound")
        return passed

    def _found(self, held: bytes) -> bytes:
        given = sniffed(held)
        if self._wanted == "pcm" and given == "wav":
            return self._sound_of(held)
        if self._wanted and self._wanted != given:
            raise self._refused(given or _UNKNOWN)
        self._held = None
        self.content_type = _TYPES.get(given, self.content_type)
        return held

    def _sound_of(self, held: bytes) -> bytes:
        try:
            head = wav_head(held)
        except NoWav as error:
            raise self._refused(f"a WAV file: {error}") from None
        if head is None:
            if len(held) > HEAD_BYTES_MAX:
                raise self._refused("a WAV file without sound in its beginning")
            return b""
        if not head.plain or head.bits != 16 or head.channels != 1:
            raise self._refused(f"a WAV file of {head.channels} channels of {head.bits} bits")
        self._held, self._left = None, head.sound_bytes
        self.content_type = _pcm(head.sample_rate)
        return self._cut(held[head.begin :])

    def _cut(self, data: bytes) -> bytes:
        """A WAV file may have other things behind its sound."""
        if self._left is None:
            return data
        passed = data[: self._left]
        self._left -= len(passed)
        return passed

    def _refused(self, given: str) -> RequestUnsupported:
        refusal = RequestUnsupported(
            f"response_format is {self._wanted}, and the backend of {self._model} gives {given}"
        )
        refusal.param = "response_format"
        return refusal


def _pcm(sample_rate: int) -> bytes:
    """Samples do not say how fast they are to be played."""
    return b"audio/pcm;rate=%d;channels=1" % sample_rate


def sniffed(head: bytes) -> str:
    """The format of a recording by how it begins; empty: not known."""
    if is_wav(head):
        return "wav"
    if head.startswith(b"fLaC"):
        return "flac"
    if head.startswith(b"OggS"):
        return "opus" if b"OpusHead" in head else ""
    if head[:2] in (b"\xff\xf1", b"\xff\xf9"):
        return "aac"
    if head.startswith(b"ID3") or (head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE0 == 0xE0):
        return "mp3"
    return ""

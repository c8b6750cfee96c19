"""Requests that bring files, or are answered with them: images to make, speech to write down or to say, and
sounds. Written by the gateway for whichever API its client speaks.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, field

FILES_MAX: Final = 64  # Of one request.
IMAGES_MAX: Final = 10  # Made for one request; OpenAI's own bound.


class InputFile(Struct, frozen=True):
    """A file that a client sent. Of its name only the ending counts, by which some backends tell formats."""

    name: str
    content: bytes | memoryview


class ImageRequest(Struct, kw_only=True, frozen=True):
    """Of numbers, 0 is the backend's own choice."""

    model: str
    prompt: str
    negative_prompt: str = ""
    width: int = 0
    height: int = 0
    steps: int = 0
    seed: int | None = None
    count: int = 1
    source: InputFile | None = None  # An image to start from.
    references: tuple[InputFile, ...] = ()


class TranscriptionRequest(Struct, kw_only=True, frozen=True):
    model: str
    audio: InputFile
    language: str = ""  # Empty: to be recognised.
    translate: bool = False  # Into English.
    diarize: bool = False
    prompt: str = ""
    temperature: float = 0.0
    granularities: tuple[str, ...] = ()  # `word`, `segment`.
    stream: bool = False


class SpeechRequest(Struct, kw_only=True, frozen=True):
    model: str
    text: str
    voice: str | InputFile = ""  # A name, or a recording of the voice.
    language: str | None = None
    instructions: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)  # The backend's own.
    stream: bool = False


class SoundRequest(Struct, kw_only=True, frozen=True):
    """Music and noises."""

    model: str
    text: str
    duration_s: float | None = None
    temperature: float | None = None
    sample: bool | None = None
    source: InputFile | None = None  # A sound to start from.


MediaRequest = ImageRequest | TranscriptionRequest | SpeechRequest | SoundRequest


def input_files(request: MediaRequest) -> Iterator[InputFile]:
    """All that the request brings."""
    match request:
        case ImageRequest():
            yield from (request.source,) if request.source is not None else ()
            yield from request.references
        case TranscriptionRequest():
            yield request.audio
        case SpeechRequest(voice=InputFile() as voice):
            yield voice
        case SoundRequest(source=InputFile() as source):
            yield source

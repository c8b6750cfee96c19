"""Replicas for speech and images that answer as a test tells them, and the requests to ask them."""

import base64
from collections.abc import Awaitable, Callable, Sequence

from remuda.inference.answers import AnswerSink, Transcript, TranscriptSegment, TranscriptWord
from remuda.inference.media_requests import ImageRequest, SpeechRequest, TranscriptionRequest
from remuda.inference.model import InferenceCall

Answering = Callable[[InferenceCall, AnswerSink], Awaitable[None]]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HEARD = Transcript(
    "one two",
    (
        TranscriptSegment(0, 0.0, 1.0, "one", (1,), "A", (TranscriptWord(0.0, 0.9, "one"),)),
        TranscriptSegment(1, 1.0, 2.5, "two", (2,), "B", (TranscriptWord(1.1, 2.4, "two"),)),
    ),
    "en",
    2.5,
)


def hears(transcript: Transcript = HEARD, parts: Sequence[str] = ("one", " two")) -> Answering:
    """Tells the parts first, if a stream is asked for."""

    async def hear(call: InferenceCall, sink: AnswerSink) -> None:
        assert isinstance(call.request, TranscriptionRequest)
        media = sink.media()
        for part in parts if call.request.stream else ():
            await media.transcribed(part)
        await media.transcript(transcript)

    return hear


def speaks(*pieces: bytes, sample_rate: int = 0) -> Answering:
    """A file, or with a rate samples."""

    async def speak(call: InferenceCall, sink: AnswerSink) -> None:
        assert isinstance(call.request, SpeechRequest)
        audio = sink.media().audio()
        await audio.begin(sample_rate)
        for piece in pieces:
            await audio.write(piece)
        await audio.end()

    return speak


def draws(image: bytes = PNG) -> Answering:
    async def draw(call: InferenceCall, sink: AnswerSink) -> None:
        assert isinstance(call.request, ImageRequest)
        await sink.media().images([image] * call.request.count)

    return draw


def remembering(answer: Answering) -> tuple[list[InferenceCall], Answering]:
    """The same, and the calls that it answered."""
    seen = list[InferenceCall]()

    async def remember(call: InferenceCall, sink: AnswerSink) -> None:
        seen.append(call)
        await answer(call, sink)

    return seen, remember

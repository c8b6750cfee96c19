"""Renders images, speech and what was heard as OpenAI's answers, on the client's response."""

import base64
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from remuda.core.slices import Sliced
from remuda.gateway.inference.api_format import SSE
from remuda.gateway.inference.text_sinks import JSON, AnswerToClient, ResponseSink
from remuda.gateway.openai import transcripts
from remuda.gateway.openai.rendering import DONE, event
from remuda.gateway.openai.spoken import SpeechFormat
from remuda.inference.answers import (
    AudioSink,
    MediaSink,
    Transcript,
)
from remuda.inference.large_bodies import Slicer
from remuda.inference.media_requests import TranscriptionRequest
from remuda.inference.model import InferenceCall

_ENCODED_BYTES: Final = 384 << 10  # At once; a multiple of three.
_IMAGE_FORMATS: Final = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"<svg", "svg"),
)


class _MediaAnswer(AnswerToClient):
    """Of requests that are not answered in text no two are alike."""

    async def images(self, images: Sequence[bytes]) -> None:
        self._not_rendered()

    async def transcribed(self, text: str) -> None:
        self._not_rendered()

    async def transcript(self, transcript: Transcript) -> None:
        self._not_rendered()

    def audio(self) -> AudioSink:
        self._not_rendered()

    def media(self) -> MediaSink:
        return self


class ImagesAnswer(_MediaAnswer):
    def __init__(self, call: InferenceCall, response: ResponseSink, slicer: Slicer, size: str) -> None:
        super().__init__(call, response)
        self._slicer = slicer
        self._size = size

    async def images(self, images: Sequence[bytes]) -> None:
        pieces = await self._slicer.run(_image_list(images, self._call.created, self._size))
        await self._response.begin(200, JSON)
        for one in pieces:
            await self._response.write(one)


class _ImagesHead(msgspec.Struct):
    created: int
    output_format: str | UnsetType = UNSET
    size: str | UnsetType = UNSET


def _image_list(images: Sequence[bytes], created: int, size: str) -> Sliced[Sequence[bytes]]:
    """In pieces that each take no time to send."""
    members = _ImagesHead(created, image_format(images[0]) if images else UNSET, size or UNSET)
    pieces = [msgspec.json.encode(members)[:-1] + b',"data":[']
    for number, image in enumerate(images):
        pieces.append(b',{"b64_json":"' if number else b'{"b64_json":"')
        for start in range(0, len(image), _ENCODED_BYTES):
            pieces.append(base64.b64encode(image[start : start + _ENCODED_BYTES]))
            yield
        pieces.append(b'"}')
    pieces.append(b"]}")
    return pieces


def image_format(image: bytes) -> str | UnsetType:
    """By how the file begins, if that is known."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "webp"
    return next((name for start, name in _IMAGE_FORMATS if image.startswith(start)), UNSET)


class TranscriptAnswer(_MediaAnswer):
    def __init__(self, call: InferenceCall, response: ResponseSink, wanted: str) -> None:
        super().__init__(call, response)
        self._wanted = wanted
        self._streamed = False

    async def transcribed(self, text: str) -> None:
        if not self._streamed:
            await self._response.begin(200, SSE)
            self._streamed = True
        await self._response.write(event(transcripts.piece(text)))

    async def transcript(self, transcript: Transcript) -> None:
        request = self._call.request
        assert isinstance(request, TranscriptionRequest)
        if request.stream:
            if not self._streamed and transcript.text:  # Of a backend that tells it in one piece.
                await self.transcribed(transcript.text)
            if not self._streamed:
                await self._response.begin(200, SSE)
            await self._response.write(event(transcripts.done(transcript.text)) + DONE)
            return
        content_type, body = transcripts.rendered(transcript, request, self._wanted)
        await self._response.begin(200, content_type)
        await self._response.write(body)


class SpeechAnswer(_MediaAnswer):
    def __init__(self, call: InferenceCall, response: ResponseSink, wanted: str, *, events: bool) -> None:
        super().__init__(call, response)
        self._wanted = wanted
        self._events = events

    def audio(self) -> AudioSink:
        return _Recording(
            self._response, SpeechFormat(self._wanted, self._call.model.id), events=self._events
        )


class _Recording:
    """Implements inference.answers.AudioSink. Nothing is sent before it is known what comes."""

    def __init__(self, response: ResponseSink, format: SpeechFormat, *, events: bool) -> None:
        self._response = response
        self._format = format
        self._events = events
        self._begun = False

    async def begin(self, sample_rate: int) -> None:
        self._format.begin(sample_rate)
        await self._pass_on(self._format.opening(sample_rate))

    async def write(self, data: bytes) -> None:
        await self._pass_on(self._format.feed(data))

    async def end(self) -> None:
        await self._pass_on(self._format.rest())
        if self._events:
            await self._response.write(event(b'{"type":"speech.audio.done"}') + DONE)

    async def _pass_on(self, data: bytes) -> None:
        if not data:
            return
        if not self._begun:
            await self._response.begin(200, SSE if self._events else self._format.content_type)
            self._begun = True
        await self._response.write(_audio_event(data) if self._events else data)


def _audio_event(data: bytes) -> bytes:
    return event(b'{"type":"speech.audio.delta","audio":"%b"}' % base64.b64encode(data))

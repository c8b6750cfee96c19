"""OpenAI's paths for speech and images: their requests, as JSON and as forms with files. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from remuda.core.slices import Sliced
from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import Choices, InvalidField
from remuda.gateway.inference.endpoint import ApiEndpoint, HeaderMap
from remuda.gateway.inference.forms import FormFields, check_choice, read_form
from remuda.gateway.inference.text_sinks import ResponseSink
from remuda.gateway.openai.media_sinks import ImagesAnswer, SpeechAnswer, TranscriptAnswer
from remuda.gateway.openai.rendering import OPENAI
from remuda.gateway.openai.spoken import FORMATS, OF_SAMPLES
from remuda.gateway.openai.transcripts import FORMATS as TRANSCRIPT_FORMATS
from remuda.gateway.openai.transcripts import STREAMED_FORMATS, TRANSLATION_FORMATS
from remuda.gateway.openai.wav import wav_problem
from remuda.inference.answers import AnswerSink
from remuda.inference.large_bodies import Slicer
from remuda.inference.media_requests import (
    IMAGES_MAX,
    ImageRequest,
    MediaRequest,
    SpeechRequest,
    TranscriptionRequest,
)
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ModelName, Positive

PIXELS_MAX: Final = 16_384  # Of an edge.
SEED_MAX: Final = (1 << 31) - 1
INPUT_CHARS_MAX: Final = 1 << 16
PARAMETERS_MAX: Final = 100
_SIZE: Final = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)
_INLINE: Final = "b64_json"


class _Media(Struct, frozen=True):
    """Implements gateway.inference.endpoint.ParsedRequest."""

    request: MediaRequest
    answer: Callable[[InferenceCall, ResponseSink, Slicer], AnswerSink]

    def openai_body(self, body: bytes) -> bytes:
        return b""

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> AnswerSink:
        return self.answer(call, response, slicer)


class TranslationForm(Struct):
    """The fields of a form, as far as they are read."""

    file: bytes
    model: ModelName
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0


class TranscriptionForm(Struct):
    """The fields of a form, as far as they are read."""

    file: bytes
    model: ModelName
    language: str = ""
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"] = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    timestamp_granularities: list[Literal["word", "segment"]] = []
    stream: bool = False


def _transcription(form: FormFields) -> _Media:
    wanted = form.choice("response_format", TRANSCRIPT_FORMATS, "json")
    stream = form.flag("stream")
    if stream:
        check_choice("response_format", wanted, STREAMED_FORMATS)
    if form.texts("include"):
        raise InvalidField("include: log probabilities of transcriptions are not available", "include")
    granularities = form.choices("timestamp_granularities", ("word", "segment"))
    return _heard(
        form,
        wanted,
        language=form.text("language"),
        diarize=wanted == "diarized_json",
        granularities=granularities,
        stream=stream,
    )


def _translation(form: FormFields) -> _Media:
    return _heard(form, form.choice("response_format", TRANSLATION_FORMATS, "json"), translate=True)


def _heard(
    form: FormFields,
    wanted: str,
    *,
    language: str = "",
    translate: bool = False,
    diarize: bool = False,
    granularities: tuple[str, ...] = (),
    stream: bool = False,
) -> _Media:
    (audio,) = form.files("file", most=1)
    if problem := wav_problem(audio.content):
        raise InvalidField(problem, "file")
    request = TranscriptionRequest(
        model=form.model(),
        audio=audio,
        language=language,
        translate=translate,
        diarize=diarize,
        prompt=form.text("prompt"),
        temperature=form.number("temperature", 0, 1) or 0.0,
        granularities=granularities,
        stream=stream,
    )
    return _Media(request, lambda call, response, _: TranscriptAnswer(call, response, wanted))


class NamedVoice(Struct):
    id: Annotated[str, Meta(max_length=512)]


class SpeechBody(Struct):
    model: ModelName
    input: Annotated[str, Meta(min_length=1, max_length=INPUT_CHARS_MAX)]
    voice: Annotated[str, Meta(max_length=512)] | NamedVoice | None = None  # Without one, the backend's own.
    instructions: str | None = None
    language: str | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    stream_format: Literal["sse", "audio"] | None = None
    params: Annotated[dict[str, str], Meta(max_length=PARAMETERS_MAX)] | None = None  # The backend's own.


class ImageBody(Struct):
    """Beside OpenAI's fields, those of LocalAI that are passed on to backends."""

    model: ModelName
    prompt: Annotated[str, Meta(min_length=1, max_length=INPUT_CHARS_MAX)]
    n: Annotated[int, Meta(ge=1, le=IMAGES_MAX)] | None = None
    size: str | None = None
    response_format: Literal["url", "b64_json"] | None = None
    stream: bool | None = None
    negative_prompt: str | None = None
    seed: Annotated[int, Meta(ge=0, le=SEED_MAX)] | None = None
    step: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    user: str | None = None


class ImageEditForm(Struct):
    """The fields of a form, as far as they are read."""

    image: list[bytes]
    model: ModelName
    prompt: str
    n: Positive = 1
    size: str = ""
    response_format: Literal["b64_json"] = "b64_json"


_CHOICES: Final[Choices] = {
    "response_format": FORMATS,
    "stream_format": ("sse", "audio"),
}
_OF_IMAGES: Final[Choices] = {"response_format": ("b64_json",)}
_SPEECH: Final = msgspec.json.Decoder(SpeechBody)
_IMAGE: Final = msgspec.json.Decoder(ImageBody)


def _speech(body: bytes) -> _Media:
    asked = decoded(_SPEECH, body, _CHOICES)
    wanted = asked.response_format or ""
    told: Mapping[str, str] = asked.params or {}
    if asked.speed is not None and asked.speed != 1:
        told = {"speed": f"{asked.speed:g}", **told}
    voice = asked.voice.id if isinstance(asked.voice, NamedVoice) else asked.voice or ""
    if voice.startswith(("/", "\\", "~")) or ".." in voice:  # Backends read it as a file on their machine.
        raise InvalidField("voice must be a name, not a path", "voice")
    request = SpeechRequest(
        model=asked.model,
        text=asked.input,
        voice=voice,
        language=asked.language,
        instructions=asked.instructions,
        parameters=told,
        stream=wanted in OF_SAMPLES and (asked.stream_format is not None or wanted == "pcm"),
    )
    events = asked.stream_format == "sse"
    return _Media(request, lambda call, response, _: SpeechAnswer(call, response, wanted, events=events))


def _image(body: bytes) -> _Media:
    asked = decoded(_IMAGE, body, _OF_IMAGES)
    _check_inline(asked.response_format or _INLINE)
    if asked.stream:
        raise InvalidField("stream: images are not streamed", "stream", hint="leave it out")
    width, height = _measures(asked.size or "")
    request = ImageRequest(
        model=asked.model,
        prompt=asked.prompt,
        negative_prompt=asked.negative_prompt or "",
        width=width,
        height=height,
        steps=asked.step or 0,
        seed=asked.seed,
        count=asked.n or 1,
    )
    return _images(request)


def _image_edit(form: FormFields) -> _Media:
    if form.has_file("mask"):
        raise InvalidField("mask: masks are not taken", "mask", hint="say in the prompt what is to change")
    _check_inline(form.text("response_format") or _INLINE)
    width, height = _measures(form.text("size"))
    source, *others = form.files("image", most=16)
    request = ImageRequest(
        model=form.model(),
        prompt=form.required("prompt"),
        width=width,
        height=height,
        seed=form.whole_number("seed", 0, SEED_MAX),
        count=form.whole_number("n", 1, IMAGES_MAX) or 1,
        source=source,
        references=tuple(others),
    )
    return _images(request)


def _images(request: ImageRequest) -> _Media:
    size = f"{request.width}x{request.height}" if request.width else ""
    return _Media(request, lambda call, response, slicer: ImagesAnswer(call, response, slicer, size))


def _check_inline(response_format: str) -> None:
    if response_format != _INLINE:
        raise InvalidField(
            f"response_format cannot be {response_format[:20]}: images come in the answer itself",
            "response_format",
            hint=f"use {_INLINE}",
        )


def _measures(size: str) -> tuple[int, int]:
    """Width and height; 0 for the backend's own choice."""
    if size in ("", "auto"):
        return 0, 0
    found = _SIZE.fullmatch(size)
    if found is None or not all(0 < int(edge) <= PIXELS_MAX for edge in found.groups()):
        raise InvalidField(
            f"size must be WIDTHxHEIGHT, each from 1 to {PIXELS_MAX}, as 1024x1024, or auto", "size"
        )
    return int(found[1]), int(found[2])


def _of_form(
    kind: RequestKind, body: type[Struct], parse: Callable[[FormFields], _Media], summary: str
) -> ApiEndpoint:
    def read(headers: HeaderMap, content: bytes) -> Sliced[_Media]:
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        return parse((yield from read_form(content_type, content)))

    return ApiEndpoint(kind, OPENAI, body, _no_json, form=read, summary=summary)


def _no_json(body: bytes) -> _Media:
    raise AssertionError("bodies of this endpoint are forms")


ENDPOINTS: Final = {
    "/v1/audio/transcriptions": _of_form(
        RequestKind.TRANSCRIPTION, TranscriptionForm, _transcription, "Write down what is said"
    ),
    "/v1/audio/translations": _of_form(
        RequestKind.TRANSCRIPTION, TranslationForm, _translation, "Write down in English what is said"
    ),
    "/v1/audio/speech": ApiEndpoint(RequestKind.SPEECH, OPENAI, SpeechBody, _speech),
    "/v1/images/generations": ApiEndpoint(RequestKind.IMAGE, OPENAI, ImageBody, _image),
    "/v1/images/edits": _of_form(RequestKind.IMAGE, ImageEditForm, _image_edit, "Make images of images"),
}

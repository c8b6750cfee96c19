"""What was heard in a recording, in each form that clients ask for: JSON, text, subtitles, events. Pure.

What a backend does not tell is null, where OpenAI's API has a number.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from remuda.inference.answers import Transcript, TranscriptSegment
from remuda.inference.failures import RequestUnsupported
from remuda.inference.media_requests import TranscriptionRequest

TRANSLATION_FORMATS: Final = ("json", "text", "srt", "vtt", "verbose_json")
FORMATS: Final = (*TRANSLATION_FORMATS, "diarized_json")
STREAMED_FORMATS: Final = ("json", "text")
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_TYPES: Final = {"text": _TEXT, "srt": _TEXT, "vtt": b"text/vtt; charset=utf-8"}
_encode: Final = msgspec.json.Encoder().encode


class _Duration(Struct):
    seconds: float
    type: str = "duration"


class _Plain(Struct):
    text: str
    usage: _Duration | UnsetType = UNSET


class _Word(Struct):
    word: str
    start: float
    end: float


class _Segment(Struct):
    id: int
    start: float
    end: float
    text: str
    tokens: Sequence[int]
    temperature: float
    seek: int | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


class _Verbose(Struct):
    task: str
    language: str
    duration: float
    text: str
    segments: Sequence[_Segment] | UnsetType = UNSET
    words: Sequence[_Word] | UnsetType = UNSET
    usage: _Duration | UnsetType = UNSET


class _Spoken(Struct):
    """A stretch of speech, and who spoke."""

    id: str
    start: float
    end: float
    speaker: str
    text: str
    type: str = "transcript.text.segment"


class _Diarized(Struct):
    task: str
    duration: float
    text: str
    segments: Sequence[_Spoken]
    usage: _Duration | UnsetType = UNSET


class _Piece(Struct):
    delta: str
    type: str = "transcript.text.delta"


class _Done(Struct):
    text: str
    type: str = "transcript.text.done"


def rendered(found: Transcript, request: TranscriptionRequest, wanted: str) -> tuple[bytes, bytes]:
    """The content type, and the whole answer in this form."""
    match wanted:
        case "text":
            body = f"{found.text}\n".encode()
        case "srt" | "vtt":
            body = "".join(_subtitles(found, wanted)).encode()
        case "verbose_json":
            body = _encode(_verbose(found, request))
        case "diarized_json":
            body = _encode(_diarized(found, request))
        case _:
            body = _encode(_Plain(found.text, _usage(found)))
    return _TYPES.get(wanted, _JSON), body


def piece(text: str) -> bytes:
    """An event: a further part of the text."""
    return _encode(_Piece(text))


def done(text: str) -> bytes:
    """The last event, with all of it."""
    return _encode(_Done(text))


def _duration_s(found: Transcript) -> float:
    return found.duration_s or max((segment.end_s for segment in found.segments), default=0.0)


def _usage(found: Transcript) -> _Duration | UnsetType:
    return _Duration(_duration_s(found)) if _duration_s(found) else UNSET


def _verbose(found: Transcript, request: TranscriptionRequest) -> _Verbose:
    wanted = request.granularities or ("segment",)
    segments = [
        _Segment(one.id, one.start_s, one.end_s, one.text, one.tokens, request.temperature)
        for one in found.segments
    ]
    words = [
        _Word(word.text, word.start_s, word.end_s) for segment in found.segments for word in segment.words
    ]
    return _Verbose(
        _task(request),
        "english" if request.translate else found.language or request.language,
        _duration_s(found),
        found.text,
        segments if "segment" in wanted else UNSET,
        words if "word" in wanted else UNSET,
        _usage(found),
    )


def _diarized(found: Transcript, request: TranscriptionRequest) -> _Diarized:
    if found.segments and not any(segment.speaker for segment in found.segments):
        raise RequestUnsupported(f"the backend of {request.model} does not identify speakers")
    spoken = [
        _Spoken(f"seg_{one.id}", one.start_s, one.end_s, one.speaker, one.text) for one in found.segments
    ]
    return _Diarized(_task(request), _duration_s(found), found.text, spoken, _usage(found))


def _task(request: TranscriptionRequest) -> str:
    return "translate" if request.translate else "transcribe"


def _subtitles(found: Transcript, kind: str) -> Iterator[str]:
    if kind == "vtt":
        yield "WEBVTT\n\n"
    whole = TranscriptSegment(0, 0.0, _duration_s(found), found.text)
    segments = found.segments or ([whole] if found.text else [])
    mark = "," if kind == "srt" else "."
    for number, segment in enumerate(segments, 1):
        times = f"{_time(segment.start_s, mark)} --> {_time(segment.end_s, mark)}"
        text = " ".join(segment.text.split()).replace("-->", "->")
        if kind == "srt":
            yield f"{number}\n{times}\n{text}\n\n"
        else:
            text = text.replace("&", "&amp;").replace("<", "&lt;")
            yield f"{times}\n{text}\n\n"


def _time(seconds: float, mark: str) -> str:
    milliseconds = round(max(seconds, 0.0) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"

"""What was heard, in each form; OpenAI's own types read it."""

import json

import pytest
from openai.types.audio import (
    Transcription,
    TranscriptionDiarized,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
    Translation,
)

from remuda.gateway.openai import transcripts
from remuda.inference.answers import Transcript, TranscriptSegment, TranscriptWord
from remuda.inference.failures import RequestUnsupported
from remuda.inference.media_requests import InputFile, TranscriptionRequest

HEARD = Transcript(
    "Hello there. <Bye> & out",
    (
        TranscriptSegment(
            0,
            0.0,
            1.5,
            " Hello\nthere.",
            (1, 2),
            words=(TranscriptWord(0.0, 0.7, "Hello"), TranscriptWord(0.8, 1.5, "there.")),
        ),
        TranscriptSegment(1, 3661.25, 3662.0, " <Bye> & out -->", (3,)),
    ),
    "en",
    3662.5,
)


def asked(**more: object) -> TranscriptionRequest:
    return TranscriptionRequest(model="m", audio=InputFile("a.wav", b"x"), **more)  # type: ignore[arg-type]


def test_json_and_text() -> None:
    content_type, body = transcripts.rendered(HEARD, asked(), "json")
    read = Transcription.model_validate_json(body, strict=True)
    assert (content_type, read.text) == (b"application/json", HEARD.text)
    assert read.usage is not None
    assert read.usage.type == "duration"
    assert read.usage.seconds == 3662.5
    assert Translation.model_validate_json(body).text == HEARD.text
    assert transcripts.rendered(HEARD, asked(), "text")[1] == b"Hello there. <Bye> & out\n"


def test_subtitles() -> None:
    _, srt = transcripts.rendered(HEARD, asked(), "srt")
    assert srt.decode() == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n"
        "2\n01:01:01,250 --> 01:01:02,000\n<Bye> & out ->\n\n"
    )
    content_type, vtt = transcripts.rendered(HEARD, asked(), "vtt")
    assert content_type == b"text/vtt; charset=utf-8"
    assert vtt.decode() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there.\n\n"
        "01:01:01.250 --> 01:01:02.000\n&lt;Bye> &amp; out ->\n\n"
    )


def test_subtitles_of_a_backend_without_segments_are_one() -> None:
    _, srt = transcripts.rendered(Transcript("all of it", duration_s=2), asked(), "srt")
    assert srt == b"1\n00:00:00,000 --> 00:00:02,000\nall of it\n\n"
    assert transcripts.rendered(Transcript(""), asked(), "vtt")[1] == b"WEBVTT\n\n"


def verbose(found: Transcript = HEARD, **more: object) -> TranscriptionVerbose:
    _, body = transcripts.rendered(found, asked(**more), "verbose_json")
    return TranscriptionVerbose.construct(**json.loads(body))


def test_the_verbose_form_has_segments_or_words() -> None:
    segments = verbose(temperature=0.5)
    assert segments.segments is not None
    assert [(one.id, one.start, one.end, one.tokens, one.temperature) for one in segments.segments] == [
        (0, 0.0, 1.5, [1, 2], 0.5),
        (1, 3661.25, 3662.0, [3], 0.5),
    ]
    assert segments.segments[0].avg_logprob is None, "it is not known"
    assert (segments.words, segments.language, segments.duration) == (None, "en", 3662.5)
    words = verbose(granularities=("word",))
    assert words.words is not None
    assert [(one.word, one.start, one.end) for one in words.words] == [
        ("Hello", 0.0, 0.7),
        ("there.", 0.8, 1.5),
    ]
    assert words.segments is None
    both = verbose(granularities=("word", "segment"))
    assert both.segments is not None
    assert both.words is not None


def test_a_translation_is_in_english_and_an_unknown_length_is_that_of_what_was_said() -> None:
    found = verbose(Transcript("x", HEARD.segments, "de"), translate=True)
    assert (found.language, found.duration) == ("english", 3662.0)


def test_speakers_are_told_or_refused() -> None:
    spoken = Transcript("hi", (TranscriptSegment(3, 0.0, 1.0, "hi", speaker="A"),))
    _, body = transcripts.rendered(spoken, asked(diarize=True), "diarized_json")
    read = TranscriptionDiarized.model_validate_json(body, strict=True)
    assert [(one.id, one.speaker, one.text) for one in read.segments] == [("seg_3", "A", "hi")]
    with pytest.raises(RequestUnsupported, match="identify speakers"):
        transcripts.rendered(HEARD, asked(diarize=True), "diarized_json")


def test_events_are_those_of_the_client() -> None:
    assert TranscriptionTextDeltaEvent.model_validate_json(transcripts.piece("hi"), strict=True).delta == "hi"
    assert TranscriptionTextDoneEvent.model_validate_json(transcripts.done("all"), strict=True).text == "all"

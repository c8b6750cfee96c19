"""The official client on speech and images: what it sends is understood, what it gets it can read."""

import base64
import json
from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI

from remuda.inference.answers import AnswerSink
from remuda.inference.failures import Fault, RequestUnsupported, UpstreamFailed
from remuda.inference.media_requests import ImageRequest, SpeechRequest, TranscriptionRequest
from remuda.inference.model import InferenceCall
from tests.integration.api.openai.asking_media import PNG, draws, hears, remembering, speaks
from tests.integration.api.openai.test_openai_client import client_of
from tests.support.scripted_upstreams import Gateway, gateway, serving
from tests.support.wav_files import wav_file

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Gateway]:
    """One for all of them: none changes anything that the next would see."""
    async with serving(gateway()) as running:
        yield running


SPEECH = ("speech.wav", wav_file(b"\x01\x02" * 500))
WAV = wav_file(b"\x03\x04" * 5000)


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(served) as client:
        yield client


async def test_a_transcription(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(hears())
    answer = await client.audio.transcriptions.create(
        model="m", file=SPEECH, language="en", prompt="numbers", temperature=0.25
    )
    assert answer.text == "one two"
    assert answer.usage is not None
    assert answer.usage.type == "duration"
    (call,) = seen
    asked = call.request
    assert isinstance(asked, TranscriptionRequest)
    assert (asked.language, asked.prompt, asked.temperature) == ("en", "numbers", 0.25)
    assert (asked.audio.name, bytes(asked.audio.content)) == SPEECH


async def test_a_transcription_with_segments_and_words(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(hears())
    answer = await client.audio.transcriptions.create(
        model="m", file=SPEECH, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert (answer.language, answer.duration, answer.text) == ("en", 2.5, "one two")
    assert [(one.word, one.start, one.end) for one in answer.words or ()] == [
        ("one", 0.0, 0.9),
        ("two", 1.1, 2.4),
    ]
    assert [(one.id, one.text) for one in answer.segments or ()] == [(0, "one"), (1, "two")]
    asked = seen[0].request
    assert isinstance(asked, TranscriptionRequest)
    assert asked.granularities == ("word", "segment")


async def test_speakers_are_told(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = hears()
    answer = await client.audio.transcriptions.create(
        model="m", file=SPEECH, response_format="diarized_json", chunking_strategy="auto"
    )
    assert [(one.speaker, one.text) for one in answer.segments] == [("A", "one"), ("B", "two")]


async def test_a_transcription_as_text_and_subtitles(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = hears()
    transcribe = client.audio.transcriptions.create
    assert await transcribe(model="m", file=SPEECH, response_format="text") == "one two\n"
    assert "00:00:01,000 --> 00:00:02,500\ntwo" in await transcribe(
        model="m", file=SPEECH, response_format="srt"
    )
    assert (await transcribe(model="m", file=SPEECH, response_format="vtt")).startswith("WEBVTT\n")


@pytest.mark.parametrize("parts", [("one", " two"), ()], ids=["in parts", "at once"])
async def test_a_streamed_transcription(served: Gateway, client: AsyncOpenAI, parts: tuple[str, ...]) -> None:
    served.upstreams.typed = hears(parts=parts)
    stream = await client.audio.transcriptions.create(model="m", file=SPEECH, stream=True)
    events = [event async for event in stream]
    told = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert told == (list(parts) or ["one two"])
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "one two"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # Models that OpenAI retires are meant.
async def test_a_translation(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(hears())
    assert (await client.audio.translations.create(model="m", file=SPEECH)).text == "one two"
    verbose = await client.audio.translations.create(model="m", file=SPEECH, response_format="verbose_json")
    assert (verbose.language, verbose.duration) == ("english", 2.5)
    assert [call.request.translate for call in seen if isinstance(call.request, TranscriptionRequest)] == [
        True,
        True,
    ]


async def test_speech(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(speaks(WAV[:10], WAV[10:]))
    answer = await client.audio.speech.create(
        model="m", voice="joe", input="hello", instructions="softly", speed=1.5
    )
    assert answer.read() == WAV
    assert answer.response.headers["content-type"] == "audio/wav"
    asked = seen[0].request
    assert isinstance(asked, SpeechRequest)
    assert (asked.text, asked.voice, asked.instructions, asked.stream) == ("hello", "joe", "softly", False)
    assert asked.parameters == {"speed": "1.5"}


async def test_a_voice_may_be_named_in_an_object(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(speaks(WAV))
    await client.audio.speech.create(model="m", voice={"id": "voice_7"}, input="hello")
    asked = seen[0].request
    assert isinstance(asked, SpeechRequest)
    assert asked.voice == "voice_7"


async def test_streamed_speech(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(speaks(b"ab", b"cd", sample_rate=24_000))
    async with client.audio.speech.with_streaming_response.create(
        model="m", voice="joe", input="hello", response_format="pcm"
    ) as answer:
        assert answer.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
        assert b"".join([part async for part in answer.iter_bytes()]) == b"abcd"
    asked = seen[0].request
    assert isinstance(asked, SpeechRequest)
    assert asked.stream


async def test_speech_in_events(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = speaks(b"ab", b"cd", sample_rate=24_000)
    async with client.audio.speech.with_streaming_response.create(
        model="m", voice="joe", input="hello", response_format="pcm", stream_format="sse"
    ) as answer:
        events = [line.removeprefix("data: ") async for line in answer.iter_lines() if line]
    *parts, done, end = events
    assert b"".join(base64.b64decode(json.loads(part)["audio"]) for part in parts) == b"abcd"
    assert (json.loads(done)["type"], end) == ("speech.audio.done", "[DONE]")


async def test_a_format_that_the_backend_does_not_give_is_refused(
    served: Gateway, client: AsyncOpenAI
) -> None:
    served.upstreams.typed = speaks(WAV)
    with pytest.raises(openai.BadRequestError, match="gives wav") as refused:
        await client.audio.speech.create(model="m", voice="joe", input="hello", response_format="mp3")
    assert (refused.value.code, refused.value.param) == ("unsupported_request", "response_format")


async def test_images(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(draws())
    answer = await client.images.generate(model="m", prompt="a house", n=2, size="64x32", quality="low")
    assert [base64.b64decode(image.b64_json or "") for image in answer.data or ()] == [PNG, PNG]
    assert (answer.output_format, answer.size, answer.created > 0) == ("png", "64x32", True)
    asked = seen[0].request
    assert isinstance(asked, ImageRequest)
    assert (asked.prompt, asked.width, asked.height, asked.count) == ("a house", 64, 32, 2)


async def test_a_large_image_arrives_whole(served: Gateway, client: AsyncOpenAI) -> None:
    large = PNG + bytes(range(256)) * 20_000
    served.upstreams.typed = draws(large)
    answer = await client.images.generate(model="m", prompt="a house", response_format="b64_json")
    assert base64.b64decode((answer.data or [])[0].b64_json or "") == large


async def test_edited_images(served: Gateway, client: AsyncOpenAI) -> None:
    seen, served.upstreams.typed = remembering(draws())
    images = [("a.png", b"first"), ("b.png", b"second")]
    await client.images.edit(model="m", image=images, prompt="redder", size="auto", n=1)
    asked = seen[0].request
    assert isinstance(asked, ImageRequest)
    assert asked.source is not None
    assert (asked.source.name, bytes(asked.source.content)) == ("a.png", b"first")
    assert [bytes(one.content) for one in asked.references] == [b"second"]
    assert (asked.width, asked.height) == (0, 0)


async def test_images_have_no_addresses(served: Gateway, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="b64_json") as refused:
        await client.images.generate(model="m", prompt="a house", response_format="url")
    assert refused.value.param == "response_format"


async def test_what_a_model_does_not_do_is_the_clients_error(served: Gateway, client: AsyncOpenAI) -> None:
    async def refuses(call: InferenceCall, sink: AnswerSink) -> None:
        raise RequestUnsupported("m does not do transcriptions")

    served.upstreams.typed = refuses
    with pytest.raises(openai.BadRequestError) as refused:
        await client.audio.transcriptions.create(model="m", file=SPEECH)
    assert refused.value.code == "unsupported_request"


async def test_an_error_in_a_stream_is_raised_after_what_came(served: Gateway, client: AsyncOpenAI) -> None:
    async def breaks(call: InferenceCall, sink: AnswerSink) -> None:
        await sink.media().transcribed("one")
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.upstreams.typed = breaks
    stream = await client.audio.transcriptions.create(model="m", file=SPEECH, stream=True)
    assert (await anext(stream)).type == "transcript.text.delta"
    with pytest.raises(openai.APIError, match="the backend crashed"):
        await anext(stream)


async def test_speech_that_breaks_off_does_not_look_whole(served: Gateway, client: AsyncOpenAI) -> None:
    async def breaks(call: InferenceCall, sink: AnswerSink) -> None:
        audio = sink.media().audio()
        await audio.begin(24_000)
        await audio.write(b"ab")
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.upstreams.typed = breaks
    with pytest.raises(openai.APIConnectionError):
        await client.audio.speech.create(model="m", voice="joe", input="hello", response_format="pcm")
    assert not served.ledger.own()

"""Bad requests for speech and images: 4xx in OpenAI's shape, with the field; nothing is left in flight, and
the line survives. Clients that leave stop what is done for them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from remuda.inference.answers import AnswerSink
from remuda.inference.model import InferenceCall
from tests.integration.api.openai.asking import ASK_CHAT
from tests.integration.api.openai.asking_media import draws, hears, speaks
from tests.support.raw_http import RawClient, post, raw_client
from tests.support.scripted_upstreams import Gateway, gateway, serving
from tests.support.waiting import wait_until
from tests.support.wav_files import wav_file

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Gateway]:
    """One for all of them: none changes anything that the next would see."""
    async with serving(gateway()) as running:
        yield running


TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
SPEAK, DRAW, EDIT = "/v1/audio/speech", "/v1/images/generations", "/v1/images/edits"
WAV = wav_file(b"\x01\x02" * 500)
HUGE = 200 << 20
File = tuple[str, bytes]


def lying(length: int) -> bytes:
    return WAV[:40] + length.to_bytes(4, "little") + WAV[44:]


FORMS: list[tuple[str, dict[str, Any], dict[str, File], str]] = [
    (TRANSCRIBE, {}, {"file": ("a.wav", WAV)}, "model"),
    (TRANSCRIBE, {"model": "m"}, {"other": ("a.wav", WAV)}, "file"),
    (TRANSCRIBE, {"model": "m"}, {"file": ("a.wav", b"")}, "file"),
    (TRANSCRIBE, {"model": "m"}, {"file": ("a.wav", lying(1_000_000))}, "file"),
    (TRANSCRIBE, {"model": "m"}, {"file": ("a.wav", WAV[:30])}, "file"),
    (TRANSCRIBE, {"model": "m", "response_format": "docx"}, {"file": ("a.wav", WAV)}, "response_format"),
    (TRANSCRIBE, {"model": "m", "temperature": "warm"}, {"file": ("a.wav", WAV)}, "temperature"),
    (TRANSCRIBE, {"model": "m", "temperature": "2"}, {"file": ("a.wav", WAV)}, "temperature"),
    (TRANSCRIBE, {"model": "m", "temperature": "nan"}, {"file": ("a.wav", WAV)}, "temperature"),
    (TRANSCRIBE, {"model": "m", "stream": "perhaps"}, {"file": ("a.wav", WAV)}, "stream"),
    (
        TRANSCRIBE,
        {"model": "m", "stream": "true", "response_format": "srt"},
        {"file": ("a.wav", WAV)},
        "response_format",
    ),
    (TRANSCRIBE, {"model": "m", "include[]": "logprobs"}, {"file": ("a.wav", WAV)}, "include"),
    (TRANSCRIBE, {"model": ["m", "n"]}, {"file": ("a.wav", WAV)}, "model"),
    (TRANSCRIBE, {"model": "m" * 600}, {"file": ("a.wav", WAV)}, "model"),
    (
        TRANSCRIBE,
        {"model": "m", "timestamp_granularities[]": "syllable"},
        {"file": ("a.wav", WAV)},
        "timestamp_granularities",
    ),
    (
        TRANSLATE,
        {"model": "m", "response_format": "diarized_json"},
        {"file": ("a.wav", WAV)},
        "response_format",
    ),
    (EDIT, {"model": "m", "prompt": "x"}, {"other": ("a.png", b"x")}, "image"),
    (EDIT, {"model": "m"}, {"image": ("a.png", b"x")}, "prompt"),
    (EDIT, {"model": "m", "prompt": "x"}, {"image": ("a.png", b"x"), "mask": ("b.png", b"y")}, "mask"),
    (EDIT, {"model": "m", "prompt": "x", "n": "1.5"}, {"image": ("a.png", b"x")}, "n"),
    (EDIT, {"model": "m", "prompt": "x", "n": "11"}, {"image": ("a.png", b"x")}, "n"),
    (EDIT, {"model": "m", "prompt": "x", "size": "1x"}, {"image": ("a.png", b"x")}, "size"),
    (
        EDIT,
        {"model": "m", "prompt": "x", "response_format": "url"},
        {"image": ("a.png", b"x")},
        "response_format",
    ),
]


@pytest.mark.parametrize(("path", "fields", "files", "param"), FORMS)
async def test_a_form_that_makes_no_sense_is_refused_by_its_field(
    served: Gateway,
    client: httpx.AsyncClient,
    path: str,
    fields: dict[str, Any],
    files: dict[str, File],
    param: str,
) -> None:
    answer = await client.post(path, data=fields, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not served.ledger.own()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (SPEAK, {"model": "m"}, "input"),
        (SPEAK, {"model": "m", "input": ""}, "input"),
        (SPEAK, {"model": "m", "input": 7}, "input"),
        (SPEAK, {"model": "m", "input": "x" * 70_000}, "input"),
        (SPEAK, {"input": "x"}, "model"),
        (SPEAK, {"model": "m", "input": "x", "voice": 7}, "voice"),
        (SPEAK, {"model": "m", "input": "x", "voice": {"name": "joe"}}, "voice.id"),
        (SPEAK, {"model": "m", "input": "x", "voice": "/etc/passwd"}, "voice"),
        (SPEAK, {"model": "m", "input": "x", "voice": {"id": "a/../../b"}}, "voice"),
        (SPEAK, {"model": "m", "input": "x", "speed": 9}, "speed"),
        (SPEAK, {"model": "m", "input": "x", "response_format": "midi"}, "response_format"),
        (SPEAK, {"model": "m", "input": "x", "stream_format": "video"}, "stream_format"),
        (SPEAK, {"model": "m", "input": "x", "params": {"a": 1}}, "params"),
        (DRAW, {"model": "m"}, "prompt"),
        (DRAW, {"model": "m", "prompt": ""}, "prompt"),
        (DRAW, {"prompt": "x"}, "model"),
        (DRAW, {"model": "m", "prompt": "x", "n": 0}, "n"),
        (DRAW, {"model": "m", "prompt": "x", "n": 11}, "n"),
        (DRAW, {"model": "m", "prompt": "x", "size": "large"}, "size"),
        (DRAW, {"model": "m", "prompt": "x", "size": "0x10"}, "size"),
        (DRAW, {"model": "m", "prompt": "x", "size": "99999x1"}, "size"),
        (DRAW, {"model": "m", "prompt": "x", "response_format": "url"}, "response_format"),
        (DRAW, {"model": "m", "prompt": "x", "stream": True}, "stream"),
        (DRAW, {"model": "m", "prompt": "x", "seed": -1}, "seed"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_by_its_field(
    served: Gateway, client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not served.ledger.own()


FORM_TYPE = "Content-Type: multipart/form-data; boundary=edge"
PART = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'


@pytest.mark.parametrize("path", [TRANSCRIBE, TRANSLATE, EDIT])
@pytest.mark.parametrize(
    ("body", "header"),
    [
        (b"", FORM_TYPE),
        (b"noise", FORM_TYPE),
        (PART + WAV, FORM_TYPE),
        (PART + WAV + b"\r\n--edge", FORM_TYPE),
        (PART[:20], FORM_TYPE),
        (b"--edge\r\n\r\nx\r\n--edge--", FORM_TYPE),
        (b"--edge\r\n" * 1000 + b"--edge--", FORM_TYPE),
        (PART + WAV + b"\r\n--edge--", "Content-Type: multipart/form-data"),
        (b'{"model":"m"}', "Content-Type: application/json"),
        (b'{"model":"m"}', "X: y"),
    ],
)
async def test_a_form_that_is_none_is_refused(raw: RawClient, path: str, body: bytes, header: str) -> None:
    reply = await raw.ask(post(path, body, header))
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert (await raw.ask(ASK_CHAT)).status == 200


@pytest.mark.parametrize("path", [SPEAK, DRAW])
@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"model":', b"\xff", b"[" * 100_000])
async def test_json_that_is_none_is_refused(raw: RawClient, path: str, body: bytes) -> None:
    assert (await raw.ask(post(path, body))).status == 400
    assert (await raw.ask(ASK_CHAT)).status == 200


async def test_200_megabytes_are_refused_before_they_are_sent(raw: RawClient) -> None:
    reply = await raw.ask(post(TRANSCRIBE, PART, FORM_TYPE, length=HUGE))
    assert (reply.status, reply.json["error"]["code"]) == (413, "too_large")


async def test_200_megabytes_of_unknown_length_are_refused_while_they_come(raw: RawClient) -> None:
    head = (
        f"POST {TRANSCRIBE} HTTP/1.1\r\nHost: 127.0.0.1\r\n{FORM_TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await raw.send(head.encode())
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while sent < HUGE:
            await raw.send(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
            sent += 1 << 20

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pour)
        reply = await raw.reply()
        tasks.cancel_scope.cancel()
    assert (reply.status, reply.json["error"]["code"]) == (413, "too_large")
    assert sent < HUGE


async def test_a_form_whose_client_leaves_in_the_middle_is_forgotten(served: Gateway) -> None:
    async with raw_client(served.port) as raw:
        await raw.send(post(TRANSCRIBE, PART + WAV, FORM_TYPE, length=100_000))
        await wait_until(lambda: len(served.running) == 1)
    await wait_until(lambda: len(served.running) == 0)
    assert not served.ledger.own()


STREAMED = {"model": "m", "input": "x", "response_format": "pcm"}
FORM = (
    b"".join(
        b'--edge\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % pair
        for pair in ((b"model", b"m"), (b"stream", b"true"))
    )
    + PART
    + WAV
    + b"\r\n--edge--"
)
ASKED = {
    "transcription": post(TRANSCRIBE, FORM, FORM_TYPE),
    "speech": post(SPEAK, STREAMED),
    "events of speech": post(SPEAK, STREAMED | {"stream_format": "sse"}),
}


@pytest.mark.parametrize("events", [0, 1, 3])
@pytest.mark.parametrize("kind", ASKED)
async def test_a_stream_that_is_abandoned_at_any_event_stops_the_replica(
    served: Gateway, kind: str, events: int
) -> None:
    told, stopped = 0, False

    async def tell(call: InferenceCall, sink: AnswerSink) -> None:
        nonlocal told, stopped
        media = sink.media()
        audio = media.audio() if kind != "transcription" else None
        try:
            if audio is not None:
                await audio.begin(16_000)
            for told in range(events + 1):
                if told == events:
                    await anyio.sleep_forever()
                await (media.transcribed("word ") if audio is None else audio.write(bytes(3000)))
        finally:
            stopped = True

    served.upstreams.typed = tell
    async with raw_client(served.port) as raw:
        await raw.send(ASKED[kind])
        await wait_until(lambda: told == events and len(served.ledger.own()) == 1)
    await wait_until(lambda: stopped)
    await wait_until(lambda: len(served.running) == 0)
    assert not served.ledger.own()


async def test_the_short_paths_and_unknown_models(served: Gateway, client: httpx.AsyncClient) -> None:
    """Some clients leave /v1 out."""
    for path, answer, body in (
        (SPEAK, speaks(WAV), {"input": "x"}),
        (DRAW, draws(), {"prompt": "x"}),
    ):
        served.upstreams.typed = answer
        assert (await client.post(path.removeprefix("/v1"), json={"model": "m", **body})).status_code == 200
        assert (await client.post(path, json={"model": "nobody", **body})).status_code == 404
        assert (await client.get(path)).headers["allow"] == "POST"
    served.upstreams.typed = hears()
    heard = await client.post(TRANSCRIBE, data={"model": "m"}, files={"file": ("a", WAV)})
    assert json.loads(heard.content)["text"] == "one two"

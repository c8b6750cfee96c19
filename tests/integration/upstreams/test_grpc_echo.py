"""The gRPC upstream and a real backend process."""

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import RequestKind
from remuda.rpc import backend_pb2 as pb
from tests.integration.backends.programs import BackendProcess, loaded, running
from tests.integration.upstreams.grpc_rig import Client, call_of, chat, upstream_at

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendProcess]:
    with loaded(tmp_path_factory.mktemp("echo")) as (process, _):
        yield process


async def test_chat_streams_what_the_backend_says(echo: BackendProcess) -> None:
    client, call = Client(), chat("one two three", stream_options={"include_usage": True})

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call, client)

    assert (client.status, client.content_type) == (200, b"text/event-stream")
    assert client.text == "one two three"
    *said, closing, usage = client.events
    assert said[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert closing["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert {event["id"] for event in client.events} == {"chatcmpl-r1"}
    assert {event["model"] for event in client.events} == {"polly"}
    assert (call.tally.prompt_tokens, call.tally.completion_tokens) == (3, 3)


async def test_a_whole_chat_is_counted(echo: BackendProcess) -> None:
    client, call = Client(), chat("one two three", stream=False, max_completion_tokens=2, max_tokens=9)

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call, client)

    (choice,) = client.json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "length")
    assert (call.tally.prompt_tokens, call.tally.completion_tokens) == (3, 2)
    assert call.tally.first_token_s is not None


async def test_probabilities_are_told_when_they_are_asked_for(echo: BackendProcess) -> None:
    client = Client()

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(chat("one", stream=False, logprobs=True, top_logprobs=2), client)

    (token,) = client.json["choices"][0]["logprobs"]["content"]
    assert (token["token"], len(token["top_logprobs"])) == ("one", 2)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize(("stop", "met"), [(["four", " three", "two"], "two"), (["four"], ""), ([], "")])
async def test_at_which_stop_sequence_an_answer_ended_is_known(
    echo: BackendProcess, stream: bool, stop: list[str], met: str
) -> None:
    call = chat("one two three", stop=stop, stream=stream)

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call, Client())

    assert call.tally.stop_sequence == met


async def test_every_prompt_of_a_completion_is_answered(echo: BackendProcess) -> None:
    client = Client()
    body = {"prompt": ["one two", "three"], "n": 2, "echo": True, "logprobs": 1}

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call_of(RequestKind.COMPLETION, body), client)

    choices = client.json["choices"]
    assert [choice["text"] for choice in choices] == ["one twoone two"] * 2 + ["threethree"] * 2
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert choices[0]["logprobs"]["tokens"] == ["one", " two"]
    assert choices[0]["logprobs"]["text_offset"] == [7, 10]
    assert client.json["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


async def test_a_completion_streams(echo: BackendProcess) -> None:
    client = Client()
    body = {"prompt": "one two", "stream": True, "echo": True, "stop": " two", "logprobs": 0}

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call_of(RequestKind.COMPLETION, body), client)

    assert client.text == "one twoone"
    assert {event["object"] for event in client.events} == {"text_completion"}
    assert client.events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("given", "count"),
    [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)],
    ids=["text", "texts", "tokens", "lists of tokens"],
)
async def test_every_input_becomes_a_vector(echo: BackendProcess, given: object, count: int) -> None:
    client, call = Client(), call_of(RequestKind.EMBEDDING, {"input": given})

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call, client)

    data = client.json["data"]
    assert [entry["index"] for entry in data] == list(range(count))
    assert {len(entry["embedding"]) for entry in data} == {64}
    assert client.json["usage"]["prompt_tokens"] == call.tally.prompt_tokens > 0


async def test_a_vector_in_base64_is_the_same(echo: BackendProcess) -> None:
    plain, packed = Client(), Client()

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call_of(RequestKind.EMBEDDING, {"input": "a", "dimensions": 8}), plain)
        body = {"input": "a", "dimensions": 8, "encoding_format": "base64"}
        await upstream.serve(call_of(RequestKind.EMBEDDING, body), packed)

    floats = struct.unpack("<8f", base64.b64decode(packed.json["data"][0]["embedding"]))
    assert list(floats) == pytest.approx(plain.json["data"][0]["embedding"], abs=1e-6)


async def test_documents_are_ranked(echo: BackendProcess) -> None:
    client = Client()
    body = {"query": "blue horse", "documents": ["a dog", "a blue horse", "a horse"], "top_n": 2}

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call_of(RequestKind.RERANK, body), client)

    assert [(found["index"], found["document"]["text"]) for found in client.json["results"]] == [
        (1, "a blue horse"),
        (2, "a horse"),
    ]
    assert client.json["usage"]["total_tokens"] == 9


async def test_the_token_opens_a_backend_that_wants_one(tmp_path: Path) -> None:
    client = Client()

    with running(tmp_path, LOCALAI_GRPC_AUTH_TOKEN="secret") as process:
        with process.calls("secret") as calls:
            assert calls.LoadModel(pb.ModelOptions(Model="parrot")).success
        async with upstream_at(process.address, "secret") as upstream:
            await upstream.serve(chat("hi"), client)
        async with upstream_at(process.address, "wrong") as upstream:
            with pytest.raises(UpstreamFailed) as failed:
                await upstream.serve(chat("hi"), Client())

    assert client.text == "hi"
    assert failed.value.fault is Fault.UNREACHABLE

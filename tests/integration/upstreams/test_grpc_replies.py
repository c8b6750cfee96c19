"""What clients are told of what backends reply, over real connections."""

from typing import Any

import grpc
import pytest

from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import RequestKind
from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.metadata import CACHED_TOKENS
from tests.integration.upstreams.grpc_rig import Client, call_of, chat, upstream_at
from tests.integration.upstreams.grpc_scripts import says, says_then_fails, scripted, text

pytestmark = pytest.mark.anyio

LLAMA = ModelConfig.model_validate(
    {"name": "llama", "backend": "llama-cpp", "parameters": {"model": "l.gguf"}}
)
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


async def _answer(client: Client, *replies: pb.Reply | bytes, **body: Any) -> None:
    async with scripted(PredictStream=says(*replies)) as address, upstream_at(address) as upstream:
        await upstream.serve(chat(**body), client)


async def test_a_character_split_over_replies_arrives_whole() -> None:
    whole = "héllo 🐎".encode()
    client = Client()

    await _answer(client, *(pb.Reply(message=whole[i : i + 1]) for i in range(len(whole))))

    assert client.text == "héllo 🐎"


async def test_bytes_that_are_no_text_are_replaced() -> None:
    client = Client()

    await _answer(client, pb.Reply(message=b"a\xff"), pb.Reply(message=b"b\xf0\x9f"))

    assert client.text == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


async def test_an_empty_reply_tells_the_client_nothing() -> None:
    client = Client()

    await _answer(client, pb.Reply(), text("hi"), pb.Reply())

    assert [event["choices"][0]["delta"].get("content") for event in client.events] == ["", "hi", None]


async def test_content_that_comes_as_text_and_delta_is_told_once() -> None:
    client = Client()
    thought = pb.Reply(chat_deltas=[pb.ChatDelta(reasoning_content="hm")])

    await _answer(client, thought, text("one"), pb.Reply(message=b"onetwo", tokens=2), text("two"))

    assert client.text == "onetwo"
    assert client.events[1]["choices"][0]["delta"] == {"reasoning_content": "hm", "reasoning": "hm"}


async def test_the_last_count_of_tokens_is_the_usage() -> None:
    client = Client()

    await _answer(
        client,
        text("a", tokens=1),
        text("b", tokens=2, prompt_tokens=7),
        pb.Reply(),
        stream_options={"include_usage": True},
    )

    assert client.events[-1]["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


async def test_an_answer_as_long_as_allowed_was_cut() -> None:
    client = Client()

    await _answer(client, text("a b", tokens=2), max_tokens=2)

    assert client.events[-1]["choices"][0]["finish_reason"] == "length"


async def test_ten_megabytes_in_one_reply_pass() -> None:
    client = Client()

    await _answer(client, pb.Reply(message=b"x" * (10 << 20)))

    assert len(client.text) == 10 << 20


async def test_tool_calls_are_told_piece_by_piece() -> None:
    client = Client()
    pieces = [
        pb.ToolCallDelta(index=0, id="c9", name="weather", arguments='{"a'),
        pb.ToolCallDelta(index=0, arguments='":1}'),
        pb.ToolCallDelta(index=1, name="weather", arguments="{}"),
    ]

    await _answer(
        client,
        *(pb.Reply(chat_deltas=[pb.ChatDelta(tool_calls=[piece])]) for piece in pieces),
        tools=[WEATHER],
    )

    told = [event["choices"][0]["delta"].get("tool_calls") for event in client.events[1:-1]]
    assert told == [
        [{"index": 0, "id": "c9", "type": "function", "function": {"name": "weather", "arguments": '{"a'}}],
        [{"index": 0, "function": {"arguments": '":1}'}}],
        [
            {
                "index": 1,
                "id": "call_r1_0_1",
                "type": "function",
                "function": {"name": "weather", "arguments": "{}"},
            }
        ],
    ]
    assert client.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_several_answers_are_made_at_once_and_told_apart() -> None:
    seeds = set()

    async def behaviour(request: pb.PredictOptions, context: Any) -> None:
        seeds.add(request.Seed)
        await context.write(text(f"seed {request.Seed}", tokens=2, prompt_tokens=5))

    client = Client()
    async with scripted(PredictStream=behaviour) as address, upstream_at(address) as upstream:
        await upstream.serve(chat(n=3, seed=10, stream_options={"include_usage": True}), client)

    said: dict[int, str] = {}
    for choice in (choice for event in client.events for choice in event["choices"]):
        said[choice["index"]] = said.get(choice["index"], "") + choice["delta"].get("content", "")
    assert said == {0: "seed 10", 1: "seed 11", 2: "seed 12"}
    assert seeds == {10, 11, 12}
    assert client.events[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


async def test_of_a_prompt_with_several_answers_so_much_was_known_as_the_least_of_them_says() -> None:
    """Each of the others may have found what this very request had just computed."""

    async def behaviour(request: pb.PredictOptions, context: Any) -> None:
        await context.write(text("yes", tokens=2, prompt_tokens=5))
        if request.Seed < 13:  # An answer that says nothing of it does not count.
            context.set_trailing_metadata(((CACHED_TOKENS, str(request.Seed - 7)),))

    client = Client()
    async with scripted(PredictStream=behaviour) as address, upstream_at(address) as upstream:
        await upstream.serve(chat(n=4, seed=10, stream_options={"include_usage": True}), client)

    usage = client.events[-1]["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]) == (5, {"cached_tokens": 3})


async def test_words_of_an_error_are_not_told_as_content() -> None:
    client = Client()
    failing = says_then_fails(
        grpc.StatusCode.INTERNAL, "context is full", pb.Reply(message=b"context is full")
    )

    async with scripted(PredictStream=failing) as address, upstream_at(address) as upstream:
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.serve(chat(model=LLAMA), client)

    assert not client.begun
    assert failed.value.message == "the backend of llama failed: context is full"


async def test_text_that_might_have_been_an_error_is_told_when_it_was_none() -> None:
    client = Client()

    async with (
        scripted(PredictStream=says(pb.Reply(message=b"one "), pb.Reply(message=b"two"))) as address,
        upstream_at(address) as upstream,
    ):
        await upstream.serve(chat(model=LLAMA), client)

    assert client.text == "one two"


@pytest.mark.parametrize(("knows", "prompt"), [(True, "<my-eye>look"), (False, "<__media__>look")])
async def test_a_rendered_prompt_marks_pictures_as_its_backend_wants_it(knows: bool, prompt: str) -> None:
    prompts: list[str] = []

    async def metadata(request: pb.ModelOptions, context: Any) -> pb.ModelMetadataResponse:
        return pb.ModelMetadataResponse(media_marker="<my-eye>")

    async def predict(request: pb.PredictOptions, context: Any) -> pb.Reply:
        prompts.append(request.Prompt)
        return text("a horse")

    templates = {"chat_message": "{{.Content}}", "chat": "{{.Input}}"}
    model = ModelConfig.model_validate({**LLAMA.model_dump(), "template": templates})
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 64}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "look"}]}]
    body = {"messages": messages}
    async with (
        scripted(Predict=predict, **({"ModelMetadata": metadata} if knows else {})) as address,
        upstream_at(address) as upstream,
    ):
        await upstream.serve(call_of(RequestKind.CHAT, body, model), Client())

    assert prompts == [prompt]


async def test_a_whole_chat_is_one_object() -> None:
    async def predict(request: pb.PredictOptions, context: Any) -> pb.Reply:
        delta = pb.ChatDelta(content="hi", reasoning_content="hm")
        return pb.Reply(message=b"<think>hm</think>hi", tokens=2, prompt_tokens=3, chat_deltas=[delta])

    client = Client()
    async with scripted(Predict=predict) as address, upstream_at(address) as upstream:
        await upstream.serve(chat(stream=False), client)

    assert client.content_type == b"application/json"
    assert client.json == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "polly",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "reasoning_content": "hm",
                    "reasoning": "hm",
                },
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


async def test_a_whole_answer_can_be_a_tool_call() -> None:
    async def predict(request: pb.PredictOptions, context: Any) -> pb.Reply:
        call = pb.ToolCallDelta(index=0, id="c1", name="weather", arguments="{}")
        return pb.Reply(message=b"<tool_call>...", chat_deltas=[pb.ChatDelta(tool_calls=[call])])

    client = Client()
    async with scripted(Predict=predict) as address, upstream_at(address) as upstream:
        await upstream.serve(chat(stream=False, tools=[WEATHER]), client)

    (choice,) = client.json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    }


async def test_vectors_of_tokens_become_one() -> None:
    async def embed(request: pb.PredictOptions, context: Any) -> pb.EmbeddingResult:
        return pb.EmbeddingResult(
            embeddings=[1, 0, 0, 1], tokens=2, dim=2, layout=pb.EMBEDDING_LAYOUT_PER_TOKEN
        )

    client = Client()
    async with scripted(Embedding=embed) as address, upstream_at(address) as upstream:
        await upstream.serve(call_of(RequestKind.EMBEDDING, {"input": "a b"}), client)

    assert client.json["data"][0]["embedding"] == pytest.approx([0.7071067, 0.7071067])


async def test_a_reply_that_cannot_be_decoded_is_a_break() -> None:
    with pytest.raises(UpstreamFailed) as failed:
        await _answer(Client(), b"\xff\xff\xff")

    assert (failed.value.fault, failed.value.status) == (Fault.BROKE, 502)
    assert failed.value.message == "the backend of polly answered what cannot be understood"

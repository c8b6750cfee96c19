"""What is written is what the official client reads."""

from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from remuda.core.slices import at_once
from remuda.gateway.inference.text_answers import choice_of
from remuda.gateway.openai.rendering import ChatRenderer, CompletionRenderer, embedding_list
from remuda.inference.answers import NOTHING, Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.model import RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from tests.support.grpc_calls import HELLO, call_of

PROBABILITIES = b'[{"token":"hi","logprob":-0.5,"bytes":[104,105],"top_logprobs":[]}]'
DELTA = Delta("hi", "hm", [ToolCallDelta(0, "c", "f", "{}")], PROBABILITIES)


def _events(data: bytes) -> list[bytes]:
    events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n")]
    assert events[-2:] == [b"[DONE]", b""]
    return events[:-2]


def test_a_streamed_chat_is_valid() -> None:
    call = call_of(RequestKind.CHAT, {**HELLO, "stream_options": {"include_usage": True}})
    assert isinstance(call.request, ChatRequest)
    renderer = ChatRenderer(call, call.request)

    data = renderer.piece(0, DELTA) + renderer.closing(0, FinishReason.TOOL_CALLS, NOTHING)
    data += renderer.ending(Usage(1, 2))

    first, piece, closing, usage = [ChatCompletionChunk.model_validate_json(one) for one in _events(data)]
    assert first.choices[0].delta.role == "assistant"
    assert piece.choices[0].delta.tool_calls is not None
    assert piece.choices[0].logprobs is not None
    assert piece.choices[0].delta.model_extra == {"reasoning_content": "hm", "reasoning": "hm"}
    assert closing.choices[0].finish_reason == "tool_calls"
    assert usage.usage is not None
    assert usage.usage.total_tokens == 3


def test_a_whole_chat_is_valid() -> None:
    call = call_of(RequestKind.CHAT, HELLO)
    assert isinstance(call.request, ChatRequest)

    data = ChatRenderer(call, call.request).whole(
        [choice_of(call, 0, [DELTA], FinishReason.STOP)], Usage(1, 2)
    )

    (choice,) = ChatCompletion.model_validate_json(data).choices
    assert choice.message.tool_calls is not None
    assert choice.logprobs is not None
    assert choice.message.model_extra == {"reasoning_content": "hm", "reasoning": "hm"}


def test_a_completion_is_valid() -> None:
    call = call_of(RequestKind.COMPLETION, {"prompt": "p"})
    assert isinstance(call.request, CompletionRequest)
    renderer = CompletionRenderer(call, call.request)

    whole = renderer.whole([choice_of(call, 0, [DELTA], FinishReason.LENGTH)], Usage(1, 2))
    piece = _events(renderer.piece(0, DELTA) + renderer.ending(Usage()))[0]

    assert Completion.model_validate_json(whole).choices[0].finish_reason == "length"
    assert b'"finish_reason":null' in piece


def test_a_list_of_embeddings_is_valid() -> None:
    request = call_of(RequestKind.EMBEDDING, {"input": "a"}).request
    assert isinstance(request, EmbeddingRequest)

    data = at_once(embedding_list(request, [[0.5, 0.25]], Usage(3)))

    assert CreateEmbeddingResponse.model_validate_json(data).data[0].embedding == [0.5, 0.25]

"""The gRPC upstream, our llama.cpp backend and a model that makes sense, all the way."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.inference.model import ReplicaEndpoint, RequestKind
from remuda.inference.requests import ChatRequest, TokenizeRequest
from remuda.models.config import ModelConfig
from remuda.scheduler.model import Place
from remuda.upstreams.grpc.engine import GrpcEngine
from remuda.upstreams.grpc.upstream import GrpcUpstream, SharedTranslation
from remuda.upstreams.http.client import Pool
from tests.integration.backends.llama_cpp_process import TOKEN, started
from tests.integration.upstreams.grpc_rig import Client, Rendered, call_of, chat
from tests.support.json_lines_api import JsonLinesClient
from tests.support.models import smollm2

pytestmark = pytest.mark.anyio

FILE = "smol/model.gguf"
SMOL = ModelConfig.model_validate(
    {
        "name": "smol",
        "backend": "llama-cpp",
        "context_size": 1024,
        "threads": 1,  # Several would wait for each other busily, on cores that run other tests.
        "parameters": {"model": FILE, "temperature": 0},
    }
)
TEMPLATED = SMOL.model_validate(
    {
        **SMOL.model_dump(),
        "stopwords": ["<|im_end|>"],
        "template": {
            "chat_message": "<|im_start|>{{.RoleName}}\n{{.Content}}<|im_end|>",
            "chat": "{{.Input}}\n<|im_start|>assistant\n",
            "function": (
                "<|im_start|>system\nCall one of these functions: {{toJson .Functions}}<|im_end|>\n"
                "{{.Input}}\n<|im_start|>assistant\n"
            ),
        },
    }
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "inhabitants": {"type": "integer"}},
    "required": ["city", "inhabitants"],
    "additionalProperties": False,
}
CITIES = ["Paris", "Ulm"]
PLACE = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string", "enum": CITIES}},
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city", "parameters": PLACE},
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "clock", "description": "The time in a city", "parameters": PLACE},
}
NAMED = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(scope="module")
async def upstream(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rendered]:
    with started(tmp_path_factory.mktemp("llama")) as process:
        endpoint = ReplicaEndpoint(process.address, token=TOKEN)
        await GrpcEngine(Pool()).load(endpoint, SMOL, Place(model_file=str(smollm2())))
        shared = SharedTranslation(SystemClock())
        opened = Rendered(GrpcUpstream(endpoint, SystemClock(), SeededEntropy(7), None, shared), shared)
        yield opened
        await opened.aclose()


async def test_a_question_is_answered_in_a_sentence(upstream: Rendered) -> None:
    client = Client()

    await upstream.serve(
        chat("Name the capital of France.", SMOL, max_tokens=40, stream_options={"include_usage": True}),
        client,
    )

    usage = client.events[-1]["usage"]
    assert "Paris" in client.text
    assert usage["prompt_tokens"] > 5
    assert 3 < usage["completion_tokens"] <= 40


async def test_written_templates_lead_to_the_same_answer(upstream: Rendered) -> None:
    client = Client()

    await upstream.serve(chat("Name the capital of France.", TEMPLATED, max_tokens=40, stream=False), client)

    (choice,) = client.json["choices"]
    assert "Paris" in choice["message"]["content"]


@pytest.mark.parametrize("model", [SMOL, TEMPLATED], ids=["own template", "written templates"])
async def test_an_answer_keeps_to_its_schema(upstream: Rendered, model: ModelConfig) -> None:
    client = Client()
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}

    await upstream.serve(
        chat("Which city is the capital of France?", model, response_format=wanted, max_tokens=80), client
    )

    assert set(json.loads(client.text)) == {"city", "inhabitants"}


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_a_tool_that_must_be_called_is_called_by_grammar(upstream: Rendered, stream: bool) -> None:
    client = Client()
    body: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "stream": stream, "max_tokens": 80}

    await upstream.serve(chat("What is the weather in Paris?", TEMPLATED, **body), client)

    assert _called(client, stream) == ("weather", {"city": "Paris"}, "tool_calls")


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["any", "named"])
async def test_a_tool_that_must_be_called_is_called_though_the_models_template_has_no_place_for_it(
    upstream: Rendered, choice: Any, stream: bool
) -> None:
    client = Client()
    body = {"tools": [WEATHER, CLOCK], "tool_choice": choice, "stream": stream, "max_tokens": 80}

    await upstream.serve(chat("What is the weather in Paris?", SMOL, **body), client)

    name, arguments, finish_reason = _called(client, stream)
    assert name in (["clock"] if choice is NAMED else ["weather", "clock"])
    assert set(arguments) == {"city"}
    assert arguments["city"] in CITIES
    assert finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("model", [SMOL, TEMPLATED], ids=["own template", "written templates"])
async def test_a_call_that_is_cut_at_the_limit_is_told_as_far_as_it_is(
    upstream: Rendered, model: ModelConfig, stream: bool
) -> None:
    client = Client()
    long = {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 400}},
        "required": ["city"],
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": long}}
    body = {"tools": [tool], "tool_choice": "required", "stream": stream, "max_tokens": 30}

    await upstream.serve(chat("What is the weather in Paris?", model, **body), client)

    choices = [event["choices"][0] for event in client.events] if stream else client.json["choices"]
    messages = [choice["delta" if stream else "message"] for choice in choices]
    pieces = [call["function"] for message in messages for call in message.get("tool_calls", [])]
    arguments = "".join(piece["arguments"] for piece in pieces)
    assert "".join(message.get("content") or "" for message in messages) == ""
    assert (pieces[0]["name"], arguments[:1], choices[-1]["finish_reason"]) == ("weather", "{", "length")


async def test_what_was_known_of_a_prompt_from_an_earlier_one_is_told(upstream: Rendered) -> None:
    question = "Which rivers meet in the city of Passau, and what are they called there?"
    told = []
    for _ in range(2):
        client = Client()
        await upstream.serve(chat(question, SMOL, max_tokens=4, stream=False), client)
        told.append(client.json)

    usage, timings = told[-1]["usage"], told[-1]["timings"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 10 < cached < usage["prompt_tokens"]
    assert timings["prompt_n"] + cached == usage["prompt_tokens"]


async def test_a_strict_tool_is_called_by_grammar_where_the_models_template_has_no_place_for_it(
    upstream: Rendered,
) -> None:
    client = Client()
    strict = {"type": "function", "function": {**CLOCK["function"], "strict": True}}

    await upstream.serve(chat("What time is it?", SMOL, tools=[strict], max_tokens=80, stream=False), client)

    name, arguments, finish_reason = _called(client, stream=False)
    assert (name, set(arguments), finish_reason) == ("clock", {"city"}, "tool_calls")


def _called(client: Client, stream: bool) -> tuple[str, Any, str]:
    """The tool, its arguments, and why the answer ended."""
    choices = [event["choices"][0] for event in client.events] if stream else client.json["choices"]
    told = [choice["delta" if stream else "message"].get("tool_calls", []) for choice in choices]
    pieces = [call["function"] for calls in told for call in calls]
    arguments = json.loads("".join(piece["arguments"] for piece in pieces))
    return pieces[0]["name"], arguments, choices[-1]["finish_reason"]


@pytest.mark.parametrize("model", [SMOL, TEMPLATED], ids=["own template", "written templates"])
@pytest.mark.parametrize("body", [{}, {"tools": [WEATHER]}], ids=["plain", "tools"])
async def test_the_tokens_of_a_chat_are_those_that_its_answer_costs(
    upstream: Rendered, model: ModelConfig, body: dict[str, Any]
) -> None:
    answered, counted = Client(), JsonLinesClient()
    asked = chat("What is the weather in Paris?", model, **body, max_tokens=1, stream=False)
    assert isinstance(asked.request, ChatRequest)
    request = TokenizeRequest(model=model.id, prompt=asked.request)

    await upstream.serve(asked, answered)
    await upstream.upstream.serve(structs.replace(asked, kind=RequestKind.TOKENIZE, request=request), counted)

    assert counted.lines[0]["count"] == answered.json["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("model", [SMOL, TEMPLATED], ids=["own template", "written templates"])
async def test_at_which_stop_sequence_an_answer_ended_is_known(
    upstream: Rendered, model: ModelConfig, stream: bool
) -> None:
    question = "Name the capital of France."
    stopped = chat(question, model, stop=["Berlin", "Paris"], max_tokens=40, stream=stream)
    ended = chat(question, model, stop=["Berlin"], max_tokens=80, stream=stream)

    for call in (stopped, ended):
        await upstream.serve(call, Client())

    assert (stopped.tally.stop_sequence, ended.tally.stop_sequence) == ("Paris", "")


async def test_a_text_is_continued_with_probabilities(upstream: Rendered) -> None:
    client = Client()
    body = {"prompt": "The capital of France is", "max_tokens": 4, "logprobs": 2}

    await upstream.serve(call_of(RequestKind.COMPLETION, body, SMOL), client)

    (choice,) = client.json["choices"]
    assert "Paris" in choice["text"]
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == 4


async def test_probabilities_of_a_chat_come_with_their_tokens(upstream: Rendered) -> None:
    client = Client()

    await upstream.serve(chat("Say yes.", SMOL, max_tokens=3, logprobs=True, top_logprobs=2), client)

    told = [event["choices"][0].get("logprobs") for event in client.events]
    tokens = [token for part in told if part for token in part["content"]]
    assert len(tokens) == 3
    assert {len(token["top_logprobs"]) for token in tokens} == {2}

"""Tools that must be called by a model that knows of them and would rather not: the gRPC upstream, our
llama.cpp backend and Qwen2.5-Coder, all the way."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.scheduler.model import Place
from remuda.upstreams.grpc.engine import GrpcEngine
from remuda.upstreams.grpc.upstream import GrpcUpstream, SharedTranslation
from remuda.upstreams.http.client import Pool
from tests.integration.backends.llama_cpp_process import TOKEN, started
from tests.integration.upstreams.grpc_rig import Client, Rendered, chat
from tests.support.fetched_models import qwen_coder

pytestmark = [pytest.mark.anyio, pytest.mark.long]

CODER = ModelConfig.model_validate(
    {
        "name": "coder",
        "backend": "llama-cpp",
        "context_size": 2048,
        "parameters": {"model": "coder/model.gguf", "temperature": 0},
    }
)
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER, CLOCK = (
    {"type": "function", "function": {"name": name, "description": about, "parameters": PLACE}}
    for name, about in (("weather", "The weather in a city"), ("clock", "The time in a city"))
)
NAMED = {"type": "function", "function": {"name": "clock"}}
QUESTIONS = ("What is the weather in Paris?", "Write a haiku about the sea.", "Hello!")


@pytest.fixture(scope="module")
async def upstream(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rendered]:
    with started(tmp_path_factory.mktemp("llama")) as process:
        endpoint = ReplicaEndpoint(process.address, token=TOKEN)
        await GrpcEngine(Pool()).load(endpoint, CODER, Place(model_file=str(qwen_coder())))
        shared = SharedTranslation(SystemClock())
        opened = Rendered(GrpcUpstream(endpoint, SystemClock(), SeededEntropy(7), None, shared), shared)
        yield opened
        await opened.aclose()


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["any", "named"])
@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_tool_that_must_be_called_is_called_whatever_is_asked(
    upstream: Rendered, question: str, choice: Any, stream: bool
) -> None:
    client = Client()
    body = {"tools": [WEATHER, CLOCK], "tool_choice": choice, "stream": stream, "max_tokens": 200}

    await upstream.serve(chat(question, CODER, **body), client)

    name, arguments, text, finish_reason = called(client, stream)
    assert name in (["clock"] if choice is NAMED else ["weather", "clock"])
    assert set(arguments) == {"city"}
    assert (text, finish_reason) == ("", "tool_calls")


def called(client: Client, stream: bool) -> tuple[str, Any, str, str]:
    """The first tool, its arguments, what was said beside it, and why the answer ended."""
    choices = [event["choices"][0] for event in client.events] if stream else client.json["choices"]
    messages = [choice["delta" if stream else "message"] for choice in choices]
    told = [
        call
        for message in messages
        for call in message.get("tool_calls", [])
        if call["index" if stream else "type"] in (0, "function")
    ]
    text = "".join(message.get("content") or "" for message in messages)
    if not told:
        raise AssertionError(f"nothing was called: {text!r}")
    arguments = json.loads("".join(call["function"]["arguments"] for call in told))
    return told[0]["function"]["name"], arguments, text, choices[-1]["finish_reason"]

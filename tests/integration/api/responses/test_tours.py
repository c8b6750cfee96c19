"""Frameworks that people build with, as they come: each asks for chats and for responses, calls a tool, reads
a stream, and tells errors apart."""

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from remuda.inference.answers import AnswerSink, Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.failures import ContextExceeded
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest
from remuda.store.database import Database
from tests.integration.api.responses.conftest import client_of, keeping
from tests.integration.api.responses.scripts import answers, says
from tests.support.scripted_upstreams import Gateway

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch, served: Gateway) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    served.upstreams.relays = False


async def looks_once(call: InferenceCall, sink: AnswerSink) -> None:
    """Calls the tool that it is given, and then says what that answered."""
    request = call.request
    assert isinstance(request, ChatRequest)
    results = [message.content for message in request.messages if message.role == "tool"]
    if results:
        await says(f"It is {results[-1]}")(call, sink)
        return
    assert request.tools
    name = request.tools[-1].function.name
    delta = Delta(tool_calls=[ToolCallDelta(0, "call-1", name, '{"at": "sky"}')])
    await answers(delta, reason=FinishReason.TOOL_CALLS)(call, sink)


async def too_long(call: InferenceCall, sink: AnswerSink) -> None:
    raise ContextExceeded("9 tokens do not fit the context of 8")


async def vectors(call: InferenceCall, sink: AnswerSink) -> None:
    await sink.vectors([[0.5, 0.25]], Usage(2))


# LiteLLM, which also speaks to us as it would to Anthropic and to Ollama.


@pytest.fixture
def litellm() -> Any:
    return pytest.importorskip("litellm")


async def asked(ask: Callable[..., Any], **how: Any) -> Any:
    """In a thread: some of what LiteLLM does blocks the event loop, which is also the gateway's."""
    return await anyio.to_thread.run_sync(partial(ask, num_retries=0, timeout=20, **how))


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama_chat"])
async def test_litellm_chats_in_every_api(served: Gateway, litellm: Any, provider: str) -> None:
    base = f"{served.url}/v1" if provider == "openai" else served.url
    how = {"model": f"{provider}/m", "messages": HI, "api_base": base, "api_key": "none"}
    answer = await asked(litellm.completion, **how)
    assert answer.choices[0].message.content == "Hello there"

    def streamed() -> str:
        parts = litellm.completion(**how, stream=True, num_retries=0, timeout=20)
        return "".join(part.choices[0].delta.content or "" for part in parts)

    assert await anyio.to_thread.run_sync(streamed) == "Hello there"


async def test_litellm_asks_for_responses_and_vectors(served: Gateway, litellm: Any) -> None:
    common = {"api_base": f"{served.url}/v1", "api_key": "none"}
    first = await asked(litellm.responses, input="hi", model="openai/m", **common)
    assert first.output[0].content[0].text == "Hello there"
    served.upstreams.typed = vectors
    found = await asked(litellm.embedding, model="openai/m", input=["hi"], encoding_format="float", **common)
    assert found.data[0]["embedding"] == [0.5, 0.25]


async def test_litellm_tells_errors_apart(served: Gateway, litellm: Any, database: Database) -> None:
    served.upstreams.typed = too_long
    how = {"model": "openai/m", "messages": HI, "api_key": "wrong"}
    with pytest.raises(litellm.ContextWindowExceededError):
        await asked(litellm.completion, api_base=f"{served.url}/v1", **how)
    async with keeping(database, keys_required=True) as closed:
        for provider, path in (("openai", "/v1"), ("anthropic", "")):
            how["model"] = f"{provider}/m"
            with pytest.raises(litellm.AuthenticationError):
                await asked(litellm.completion, api_base=closed.url + path, **how)


# LangChain.


@pytest.fixture(params=["chat", "responses"])
async def chain_model(served: Gateway, http: httpx.AsyncClient, request: pytest.FixtureRequest) -> Any:
    langchain = pytest.importorskip("langchain_openai")
    return langchain.ChatOpenAI(
        model="m",
        base_url=f"{served.url}/v1",
        api_key="none",
        use_responses_api=request.param == "responses",
        max_retries=0,
        http_async_client=http,
    )


async def test_langchain_chats_streams_and_calls_tools(served: Gateway, chain_model: Any) -> None:
    model = chain_model
    assert (await model.ainvoke("hi")).text == "Hello there"
    pieces = [part.text async for part in model.astream("hi")]
    assert "".join(pieces) == "Hello there"

    def look(at: str) -> str:
        """Look at something."""
        return f"{at} is blue"

    served.upstreams.typed = looks_once
    bound = model.bind_tools([look])
    called = await bound.ainvoke("what color is the sky?")
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("look", {"at": "sky"})
    result = {"role": "tool", "content": look(**call["args"]), "tool_call_id": call["id"]}
    assert (await bound.ainvoke([*HI, called, result])).text == "It is sky is blue"


async def test_langchain_reads_structured_output(served: Gateway, chain_model: Any) -> None:
    schema = {"title": "Color", "type": "object", "properties": {"name": {"type": "string"}}}
    served.upstreams.typed = says('{"name": "blue"}')
    shaped = chain_model.with_structured_output(schema, method="json_schema")
    assert await shaped.ainvoke("hi") == {"name": "blue"}


# Pydantic AI.


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai_runs_an_agent(served: Gateway, kind: str) -> None:
    agents = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    async with client_of(served) as client:
        model = getattr(models, kind)("m", provider=providers.OpenAIProvider(openai_client=client))
        agent = agents.Agent(model)

        @agent.tool_plain  # type: ignore[untyped-decorator]
        def look(at: str) -> str:
            return f"{at} is blue"

        served.upstreams.typed = looks_once
        assert (await agent.run("what color is the sky?")).output == "It is sky is blue"
        served.upstreams.typed = says("Hello", " there")
        async with agents.Agent(model).run_stream("hi") as streamed:
            assert await streamed.get_output() == "Hello there"

"""The official client: what it sends is understood, what it gets it can read, errors are the right ones."""

import json
from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from remuda.accounts.keys import KeyScope
from remuda.accounts.terms import KeyTerms
from remuda.core.errors import Invalid
from remuda.inference.answers import ByteSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, EmbeddingRequest
from remuda.router.dispatch import WaitLimits
from remuda.router.loading import LoadStatus, Meanwhile, ModelLoading
from tests.support.scripted_upstreams import (
    JSON,
    SSE,
    Endless,
    Gateway,
    chunk,
    gateway,
    model,
    route_to,
    serving,
    table,
    whole,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Weather(BaseModel):
    city: str
    degrees: int


def client_of(served: Gateway, key: str = "sk-none") -> AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(api_key=key, base_url=f"{served.url}/v1", http_client=http, max_retries=0)


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(served) as client:
        yield client


async def test_a_chat(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "Hello there"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5
    assert answer._request_id is not None


async def test_a_streamed_chat(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    assert [event.choices[0].delta.content async for event in stream] == ["Hello", " there"]


async def test_comments_before_the_answer_are_no_part_of_it(served: Gateway, client: AsyncOpenAI) -> None:
    async def bring(name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        served.clock.forward(3)
        await meanwhile(LoadStatus("m", "loading", "gpu-1", 42))
        served.tables.replace(table(model("m", route_to("m"))))

    served.tables.replace(table(model("m")))
    served.loading.bringing = bring
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    assert [event.choices[0].delta.content async for event in stream] == ["Hello", " there"]


async def test_tools(served: Gateway, client: AsyncOpenAI) -> None:
    async def calls(call: InferenceCall, sink: ByteSink) -> None:
        assert isinstance(call.request, ChatRequest)
        assert call.request.tools is not None
        name, schema = call.request.tools[0].function.name, call.request.tools[0].function.parameters
        function = {"name": name, "arguments": json.dumps({"schema": json.loads(bytes(schema))})}
        called = [{"id": "call-1", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": called}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        await sink.begin(200, JSON)
        await sink.write(json.dumps(json.loads(whole("")) | {"choices": [choice]}).encode())

    served.upstreams.script = calls
    answer = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        tool_choice={"type": "function", "function": {"name": "look"}},
    )
    (called,) = answer.choices[0].message.tool_calls or []
    assert called.type == "function"
    assert (called.function.name, called.function.arguments) == ("look", '{"schema": {"type": "object"}}')


async def test_structured_output(served: Gateway, client: AsyncOpenAI) -> None:
    seen = {}

    async def structured(call: InferenceCall, sink: ByteSink) -> None:
        assert isinstance(call.request, ChatRequest)
        assert call.request.response_format is not None
        assert call.request.response_format.json_schema is not None
        seen.update(json.loads(bytes(call.request.response_format.json_schema.schema)))
        await sink.begin(200, JSON)
        await sink.write(whole('{\\"city\\":\\"Rome\\",\\"degrees\\":31}'))

    served.upstreams.script = structured
    answer = await client.chat.completions.parse(
        model="m", messages=[{"role": "user", "content": "hi"}], response_format=Weather
    )
    assert answer.choices[0].message.parsed == Weather(city="Rome", degrees=31)
    assert seen["required"] == ["city", "degrees"]


async def test_embeddings_are_asked_for_in_base64(served: Gateway, client: AsyncOpenAI) -> None:
    async def embed(call: InferenceCall, sink: ByteSink) -> None:
        assert isinstance(call.request, EmbeddingRequest)
        assert (call.request.encoding_format, call.request.input) == ("base64", ["a", "b"])
        await sink.begin(200, JSON)
        await sink.write(
            b'{"object":"list","model":"m","usage":{"prompt_tokens":2,"total_tokens":2},"data":'
            b'[{"object":"embedding","index":0,"embedding":"AACAPwAAAEA="}]}'
        )

    served.upstreams.script = embed
    answer = await client.embeddings.create(model="m", input=["a", "b"])
    assert answer.data[0].embedding == [1.0, 2.0]


async def test_completions(served: Gateway, client: AsyncOpenAI) -> None:
    async def complete(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, JSON)
        await sink.write(
            b'{"id":"c","object":"text_completion","created":1,"model":"m",'
            b'"choices":[{"index":0,"text":" more","finish_reason":"stop","logprobs":null}]}'
        )

    served.upstreams.script = complete
    answer = await client.completions.create(model="m", prompt="Say")
    assert answer.choices[0].text == " more"


async def test_models(client: AsyncOpenAI) -> None:
    assert [found.id async for found in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).owned_by == "remuda"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("none")


async def ask(client: AsyncOpenAI, name: str = "m", max_tokens: int = 1) -> None:
    await client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": "hi"}], max_tokens=max_tokens
    )


async def test_what_is_wrong_with_a_request_is_its_kind_of_error(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await ask(client, max_tokens=-1)
    assert (bad.value.param, bad.value.code) == ("max_tokens", "invalid")
    with pytest.raises(openai.NotFoundError) as unknown:
        await ask(client, "none")
    assert unknown.value.code == "model_not_found"


async def test_a_tool_schema_that_makes_no_sense_is_refused(served: Gateway, client: AsyncOpenAI) -> None:
    async def refuses(call: InferenceCall, sink: ByteSink) -> None:
        raise Invalid("tools[0].function.parameters: '#/$defs/a' refers to itself")

    served.upstreams.script = refuses
    with pytest.raises(openai.BadRequestError, match="refers to itself"):
        await ask(client)


async def test_keys_have_their_kinds_of_error() -> None:
    async with serving(gateway(keys_required=True)) as served:
        secret, _ = await served.keyring.create("app", KeyScope.INFERENCE, ("other",))
        async with client_of(served) as nobody, client_of(served, secret) as somebody:
            with pytest.raises(openai.AuthenticationError):
                await ask(nobody)
            with pytest.raises(openai.PermissionDeniedError):
                await ask(somebody)


async def test_a_keys_limit_is_a_rate_limit_that_says_when_to_come_back() -> None:
    async with serving(gateway(keys_required=True)) as served:
        secret, _ = await served.keyring.create(
            "app", KeyScope.INFERENCE, terms=KeyTerms(tokens_per_day=10, requests_per_minute=1000)
        )
        async with client_of(served, secret) as client:

            async def often() -> None:
                for _ in range(4):
                    await ask(client)

            with pytest.raises(openai.RateLimitError) as refused:
                await often()
            assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
            assert refused.value.response.headers["x-ratelimit-limit-tokens"] == "10"
            assert refused.value.response.headers["x-should-retry"] == "false"


async def test_a_full_queue_is_a_rate_limit() -> None:
    async with serving(gateway(waits=WaitLimits(waiting_max=0))) as served:
        served.tables.replace(table(model("m", route_to("m", parallel=1))))
        served.upstreams.script = endless = Endless()
        async with client_of(served) as client, client_of(served) as other:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            await wait_until(lambda: endless.began)
            with pytest.raises(openai.RateLimitError):
                await ask(other)
            await stream.close()


async def test_what_is_not_the_clients_fault_is_a_servers_error(served: Gateway, client: AsyncOpenAI) -> None:
    async def bring(name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        raise ModelLoading("m is being loaded", LoadStatus("m"), 7)

    served.tables.replace(table(model("m")))
    served.loading.bringing = bring
    with pytest.raises(openai.InternalServerError) as loading:
        await ask(client)
    assert (loading.value.status_code, loading.value.response.headers["retry-after"]) == (503, "7")


async def test_an_error_in_a_stream_is_raised_after_what_came(served: Gateway, client: AsyncOpenAI) -> None:
    async def breaks(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, SSE)
        await sink.write(chunk("one"))
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.upstreams.script = breaks
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    assert (await anext(stream)).choices[0].delta.content == "one"
    with pytest.raises(openai.APIError, match="the backend crashed"):
        await anext(stream)

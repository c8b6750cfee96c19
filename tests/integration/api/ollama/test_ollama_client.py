"""The official client: what it sends is understood, what it gets it can read, errors are the right ones."""

import json
from functools import partial
from typing import Any

import anyio.to_thread
import httpx
import ollama
import pytest

from remuda.accounts.keys import KeyScope
from remuda.inference.answers import ByteSink
from remuda.inference.failures import ContextExceeded, Fault, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from remuda.router.dispatch import WaitLimits
from remuda.router.loading import LoadStatus, Meanwhile, ModelLoading
from tests.integration.api.ollama.clients import HI, client_of, sync_client_of
from tests.support.scripted_upstreams import (
    JSON,
    SSE,
    Endless,
    Gateway,
    chunk,
    gateway,
    hello,
    model,
    route_to,
    serving,
    table,
    whole,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Kept:
    """A replica that says hello, and keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[InferenceCall] = []

    async def __call__(self, call: InferenceCall, sink: ByteSink) -> None:
        self.calls.append(call)
        await hello(call, sink)

    @property
    def body(self) -> Any:
        """What a server of OpenAI's API would have been sent."""
        return json.loads(self.calls[-1].body)


@pytest.fixture
def kept(served: Gateway) -> Kept:
    served.upstreams.script = kept = Kept()
    return kept


async def test_a_chat(client: ollama.AsyncClient) -> None:
    answer = await client.chat("m", HI)
    assert answer.message.content == "Hello there"
    assert (answer.model, answer.done, answer.done_reason) == ("m", True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (3, 2)
    assert (answer.total_duration or 0) > 0
    assert answer.eval_duration is None, "the replica did not tell"


async def test_a_streamed_chat(client: ollama.AsyncClient) -> None:
    parts = [part async for part in await client.chat("m", HI, stream=True)]
    assert [part.message.content for part in parts] == ["Hello", " there", ""]
    assert [part.done for part in parts] == [False, False, True]
    assert parts[-1].done_reason == "stop"
    assert parts[0].created_at == parts[-1].created_at


async def test_the_client_that_is_not_async(served: Gateway) -> None:
    with sync_client_of(served.url) as client:
        answer = await anyio.to_thread.run_sync(partial(client.chat, "m", HI))
        assert answer.message.content == "Hello there"
        parts = await anyio.to_thread.run_sync(lambda: list(client.generate("m", "hi", stream=True)))
        assert [part.response for part in parts] == ["Hello", " there", ""]


async def test_a_stream_is_what_is_answered_unless_it_is_refused(client: ollama.AsyncClient) -> None:
    answer = await client._client.post("/api/chat", json={"model": "m", "messages": HI})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["done"] for line in answer.text.splitlines()] == [False, False, True]


async def test_a_prompt_is_a_chat_of_one_message(client: ollama.AsyncClient, kept: Kept) -> None:
    answer = await client.generate("m", "Why?", system="Be brief.")
    assert (answer.response, answer.done_reason, answer.context) == ("Hello there", "stop", None)
    asked = [(message["role"], message["content"]) for message in kept.body["messages"]]
    assert asked == [("system", "Be brief."), ("user", "Why?")]


@pytest.mark.parametrize("more", [{"raw": True}, {"suffix": "the end"}])
async def test_a_raw_prompt_is_a_completion(
    served: Gateway, client: ollama.AsyncClient, more: dict[str, Any]
) -> None:
    asked: list[CompletionRequest] = []

    async def complete(call: InferenceCall, sink: ByteSink) -> None:
        assert isinstance(call.request, CompletionRequest)
        asked.append(call.request)
        await sink.begin(200, JSON)
        await sink.write(b'{"choices":[{"index":0,"text":" more","finish_reason":"length"}]}')

    served.upstreams.script = complete
    answer = await client.generate("m", "Say", **more)
    assert (answer.response, answer.done_reason) == (" more", "length")
    assert (asked[0].prompt, asked[0].suffix) == ("Say", more.get("suffix"))


async def test_options_reach_the_replica(client: ollama.AsyncClient, kept: Kept) -> None:
    options = {"num_predict": 7, "temperature": 0.5, "top_k": 3, "seed": 11, "stop": ["end"]}
    await client.chat("m", HI, options={**options, "num_ctx": 8192.0, "num_gpu": 99, "unheard_of": "x"})
    wanted = {"max_tokens": 7, "temperature": 0.5, "top_k": 3, "seed": 11, "stop": ["end"]}
    assert {name: kept.body[name] for name in wanted} == wanted
    assert not {"num_ctx", "num_gpu", "unheard_of", "options"} & kept.body.keys()


async def test_tools(served: Gateway, client: ollama.AsyncClient) -> None:
    async def calls(call: InferenceCall, sink: ByteSink) -> None:
        assert isinstance(call.request, ChatRequest)
        asked = json.loads(call.body)["tools"][0]["function"]
        assert asked["parameters"]["properties"]["city"]["type"] == "string"
        function = {"name": asked["name"], "arguments": '{"city": "Rome"}'}
        called = [{"id": "call-1", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": called}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        await sink.begin(200, JSON)
        await sink.write(json.dumps(json.loads(whole("")) | {"choices": [choice]}).encode())

    def weather(city: str) -> str:
        """How it is there.

        Args:
          city: Which one.
        """
        return city

    served.upstreams.script = calls
    answer = await client.chat("m", HI, tools=[weather])
    (called,) = answer.message.tool_calls or []
    assert (called.function.name, called.function.arguments) == ("weather", {"city": "Rome"})
    assert answer.done_reason == "stop"


async def test_calls_in_a_stream_come_whole(served: Gateway, client: ollama.AsyncClient) -> None:
    async def calls(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, SSE)
        for function in ({"name": "look", "arguments": '{"at"'}, {"arguments": ': "sky"}'}):
            delta = {"tool_calls": [{"index": 0, "id": "c", "function": function}]}
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            await sink.write(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode())
        await sink.write(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n')
        await sink.write(b"data: [DONE]\n\n")

    served.upstreams.script = calls
    parts = [part async for part in await client.chat("m", HI, stream=True)]
    made = [call.function for part in parts for call in part.message.tool_calls or []]
    assert [(call.name, call.arguments) for call in made] == [("look", {"at": "sky"})]


async def test_what_a_tool_answered_goes_back(client: ollama.AsyncClient, kept: Kept) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    result = {"role": "tool", "tool_name": "weather", "content": "sunny"}
    await client.chat("m", [*HI, {"role": "assistant", "tool_calls": [call]}, result])
    _, called, answered = kept.body["messages"]
    assert called["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Rome"}'}
    assert answered["tool_call_id"] == called["tool_calls"][0]["id"]


async def test_a_schema_for_the_answer(client: ollama.AsyncClient, kept: Kept) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    await client.chat("m", HI, format=schema)
    assert kept.body["response_format"]["json_schema"]["schema"] == schema
    await client.generate("m", "hi", format="json")
    assert kept.body["response_format"]["type"] == "json_object"


@pytest.mark.parametrize(
    ("think", "told", "effort"), [(True, True, None), (False, False, None), ("high", True, "high")]
)
async def test_thinking_is_asked_for(
    client: ollama.AsyncClient, kept: Kept, think: Any, told: bool, effort: str | None
) -> None:
    await client.chat("m", HI, think=think)
    assert kept.body["chat_template_kwargs"] == {"enable_thinking": told}
    assert kept.body.get("reasoning_effort") == effort
    request = kept.calls[-1].request
    assert isinstance(request, ChatRequest)
    assert request.metadata == {"enable_thinking": str(told).lower()}
    assert "metadata" not in kept.body


async def test_thoughts_are_apart_from_the_answer(served: Gateway, client: ollama.AsyncClient) -> None:
    async def thinks(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, SSE)
        for delta in ({"reasoning_content": "Hm."}, {"content": "Yes."}):
            choice = {"index": 0, "delta": delta}
            await sink.write(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode())
        await sink.write(b"data: [DONE]\n\n")

    served.upstreams.script = thinks
    parts = [part async for part in await client.chat("m", HI, think=True, stream=True)]
    assert [part.message.thinking for part in parts] == ["Hm.", None, None]
    assert "".join(part.message.content or "" for part in parts) == "Yes."
    texts = [part async for part in await client.generate("m", "hi", think=True, stream=True)]
    assert [part.thinking for part in texts] == ["Hm.", None, None]


async def test_pictures_are_shown(client: ollama.AsyncClient, kept: Kept) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + bytes(100)
    await client.chat("m", [{"role": "user", "content": "What?", "images": [picture]}])
    shown, text = kept.body["messages"][0]["content"]
    assert shown["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert text == {"type": "text", "text": "What?"}


async def test_a_large_picture_is_shown_as_a_small_one_is(client: ollama.AsyncClient, kept: Kept) -> None:
    picture = b"\xff\xd8\xff\xe0" + bytes(range(256)) * (12 << 10)
    await client.generate("m", "What?", images=[picture])
    shown, _ = kept.body["messages"][0]["content"]
    head, _, content = shown["image_url"]["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    assert content == ollama.Image(value=picture).model_dump()


async def test_embeddings(served: Gateway, client: ollama.AsyncClient) -> None:
    async def embed(call: InferenceCall, sink: ByteSink) -> None:
        assert isinstance(call.request, EmbeddingRequest)
        count = len(call.request.input) if isinstance(call.request.input, list) else 1
        data = [{"index": number, "embedding": [0.1, 2.0]} for number in range(count)]
        usage = {"prompt_tokens": 4, "total_tokens": 4}
        await sink.begin(200, JSON)
        await sink.write(json.dumps({"data": data, "usage": usage}).encode())

    served.upstreams.script = embed
    several = await client.embed("m", ["a", "b"])
    assert (several.embeddings, several.prompt_eval_count) == ([[0.1, 2.0], [0.1, 2.0]], 4)
    assert (await client.embed("m", "a")).embeddings == [[0.1, 2.0]]
    assert (await client.embeddings("m", "a")).embedding == [0.1, 2.0]
    assert (await client.embed("m", "")).embeddings == [], "it only loads the model"
    assert (await client.embeddings("m", "")).embedding == []


# Names, loads and keys.


async def test_latest_is_what_a_name_without_a_tag_means(served: Gateway, client: ollama.AsyncClient) -> None:
    served.tables.replace(table(model("m", route_to("m")), model("n:latest", route_to("n:latest"))))
    assert (await client.chat("m:latest", HI)).model == "m:latest"
    assert (await client.chat("n", HI)).model == "n"
    with pytest.raises(ollama.ResponseError, match="no model 'm:1b'") as unknown:
        await client.chat("m:1b", HI)
    assert unknown.value.status_code == 404


async def test_a_key_for_a_model_is_for_it_by_its_tag_too() -> None:
    async with serving(gateway(keys_required=True)) as served:
        secret, _ = await served.keyring.create("app", KeyScope.INFERENCE, ("m",))
        async with client_of(served.url, secret) as client:
            assert (await client.chat("m:latest", HI)).message.content == "Hello there"


async def test_an_empty_prompt_loads_the_model(served: Gateway, client: ollama.AsyncClient) -> None:
    brought = []

    async def bring(name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        brought.append(name)
        served.tables.replace(table(model("m", route_to("m"))))

    served.tables.replace(table(model("m")))
    served.loading.bringing = bring
    assert (await client.generate("m")).done_reason == "load"
    assert brought == ["m"]
    assert (await client.chat("m", [])).done_reason == "load"
    assert brought == ["m"], "it is there"


async def test_an_empty_prompt_with_no_time_to_live_unloads_it(
    served: Gateway, client: ollama.AsyncClient
) -> None:
    answer = await client.generate("m:latest", keep_alive=0)
    assert (answer.response, answer.done, answer.done_reason) == ("", True, "unload")
    assert (await client.chat("m", [], keep_alive="0s")).done_reason == "unload"
    assert served.models.unloaded == [("m", "local")] * 2


async def test_unloading_takes_an_admin() -> None:
    async with serving(gateway(keys_required=True)) as served:
        theirs, _ = await served.keyring.create("app", KeyScope.INFERENCE)
        ours, _ = await served.keyring.create("boss", KeyScope.ADMIN)
        async with client_of(served.url, theirs) as client, client_of(served.url, ours) as admin:
            with pytest.raises(ollama.ResponseError, match="scope admin") as refused:
                await client.generate("m", keep_alive=0)
            assert refused.value.status_code == 403
            assert (await client.generate("m")).done_reason == "load"
            assert (await client.chat("m", HI, keep_alive=0)).message.content == "Hello there"
            await admin.generate("m", keep_alive=0)
        assert served.models.unloaded == [("m", "boss")]


async def refused(client: ollama.AsyncClient, name: str = "m", **more: Any) -> tuple[int, str]:
    with pytest.raises(ollama.ResponseError) as error:
        await client.chat(name, HI, **more)
    return error.value.status_code, error.value.error


async def test_keys_have_their_statuses() -> None:
    async with serving(gateway(keys_required=True)) as served:
        secret, _ = await served.keyring.create("app", KeyScope.INFERENCE, ("other",))
        async with client_of(served.url) as nobody, client_of(served.url, secret) as somebody:
            assert (await refused(nobody))[0] == 401
            assert (await refused(somebody))[0] == 403


async def test_what_is_wrong_with_a_request_is_said(served: Gateway, client: ollama.AsyncClient) -> None:
    assert await refused(client, options={"temperature": 9}) == (
        400,
        "options.temperature must be 2 or less",
    )

    async def too_long(call: InferenceCall, sink: ByteSink) -> None:
        raise ContextExceeded("9000 tokens do not fit the context of 4096")

    served.upstreams.script = too_long
    status, words = await refused(client)
    assert (status, words[:15]) == (400, "9000 tokens do ")


async def test_a_load_that_takes_longer_is_told(served: Gateway, client: ollama.AsyncClient) -> None:
    async def bring(name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        served.clock.forward(5)
        await meanwhile(LoadStatus("m", "loading"))
        raise ModelLoading("m is being loaded", LoadStatus("m"), 7)

    served.tables.replace(table(model("m")))
    served.loading.bringing = bring
    answer = await client._client.post("/api/chat", json={"model": "m", "messages": HI})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.json() == {"error": "m is being loaded"}


async def test_a_full_queue_is_told() -> None:
    async with serving(gateway(waits=WaitLimits(waiting_max=0))) as served:
        served.tables.replace(table(model("m", route_to("m", parallel=1))))
        served.upstreams.script = endless = Endless()
        async with client_of(served.url) as client, client_of(served.url) as other:
            stream = await client.chat("m", HI, stream=True)
            assert (await anext(aiter(stream))).message.content == "one"
            assert (await refused(other))[0] == 429
            await stream.aclose()
        await wait_until(lambda: endless.stopped)


async def test_an_error_in_a_stream_is_raised_after_what_came(
    served: Gateway, client: ollama.AsyncClient
) -> None:
    async def breaks(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, SSE)
        await sink.write(chunk("one"))
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.upstreams.script = breaks
    stream = aiter(await client.chat("m", HI, stream=True))
    assert (await anext(stream)).message.content == "one"
    with pytest.raises(ollama.ResponseError, match="the backend crashed"):
        await anext(stream)


async def test_other_methods_are_refused_in_the_same_shape(client: ollama.AsyncClient) -> None:
    answer = await client._client.get("/api/chat")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json() == {"error": "GET does not work on this path; use POST"}


async def test_what_is_wrong_is_told_in_the_words_of_this_api(client: ollama.AsyncClient) -> None:
    async with httpx.AsyncClient(base_url=str(client._client.base_url), trust_env=False) as http:
        message = {"role": "user", "content": "hi", "images": ["http://127.0.0.1:9/a.png"]}
        refused = await http.post("/api/chat", json={"model": "m", "messages": [message]})
        words = refused.json()["error"]
        assert (refused.status_code, words.startswith("images[0] is a link")) == (400, True)
        assert "send the picture itself, in base64" in words
        missing = await http.post("/api/chat", json={"model": "zzz", "messages": [{"role": "user"}]})
        assert "GET /api/tags lists" in missing.json()["error"]

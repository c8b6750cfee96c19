"""The official client: what it sends is understood, what it gets it can read, errors are the right ones."""

import json
from typing import Any

import anthropic
import anyio
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock

from remuda.accounts.keys import KeyScope
from remuda.accounts.terms import KeyTerms
from remuda.inference.answers import AnswerSink, Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.failures import ContextExceeded, Fault, RequestUnsupported, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, NamedTool, TokenizeRequest
from remuda.router.dispatch import WaitLimits
from remuda.router.loading import LoadStatus, Meanwhile, ModelLoading
from tests.integration.api.anthropic.conftest import client_of
from tests.support.scripted_upstreams import Gateway, TypedScript, gateway, model, route_to, serving, table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HI: list[MessageParam] = [{"role": "user", "content": "hi"}]
LOOK: ToolParam = {
    "name": "look",
    "description": "Looks something up",
    "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
}
CACHE: Any = {"type": "ephemeral"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

CONVERSATION: Any = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>"},
            {"type": "text", "text": "Look at this", "cache_control": CACHE},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "redacted_thinking", "data": "abc"},
            {"type": "text", "text": "Yes"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"what": "it"}},
            {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [
                    {"type": "text", "text": "This:"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                    },
                ],
            },
            {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
            {"type": "text", "text": "Well?"},
        ],
    },
]


def says(*deltas: Delta, reason: FinishReason = FinishReason.STOP, usage: Usage | None = None) -> TypedScript:
    async def script(call: InferenceCall, sink: AnswerSink) -> None:
        texts = sink.texts(1)
        for delta in deltas:
            await texts.write(0, delta)
        await texts.finish(0, reason)
        await texts.end(usage or Usage(3, 2))

    return script


def noted(served: Gateway, script: TypedScript) -> list[ChatRequest]:
    """The chats that upstreams are asked for."""
    asked: list[ChatRequest] = []

    async def note(call: InferenceCall, sink: AnswerSink) -> None:
        request = call.request.prompt if isinstance(call.request, TokenizeRequest) else call.request
        assert isinstance(request, ChatRequest)
        asked.append(request)
        await script(call, sink)

    served.upstreams.typed = note
    return asked


async def ask(client: AsyncAnthropic, name: str = "m", **body: Any) -> Message:
    answer = await client.messages.create(**{"model": name, "messages": HI, "max_tokens": 9, **body})
    assert isinstance(answer, Message)
    return answer


# Answers.


async def test_a_message(client: AsyncAnthropic) -> None:
    answer = await ask(client)

    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello there"}]
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", "m", "end_turn")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 2)
    assert answer.usage.cache_read_input_tokens is None
    assert answer._request_id is not None
    assert answer.id == f"msg_{answer._request_id}"


async def test_a_streamed_message(client: AsyncAnthropic) -> None:
    async with client.messages.stream(model="m", messages=HI, max_tokens=9) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()

    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "text",
        "content_block_delta",
        "text",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert message.content == [TextBlock(type="text", text="Hello there")] or message.content[
        0
    ].to_dict() == {
        "type": "text",
        "text": "Hello there",
    }
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == (
        "end_turn",
        3,
        2,
    )


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_thoughts_text_and_calls_are_blocks_of_their_own(
    served: Gateway, client: AsyncAnthropic, stream: bool
) -> None:
    called = ToolCallDelta(0, "call-1", "look", '{"what"')
    served.upstreams.typed = says(
        Delta(reasoning="Hm"),
        Delta(reasoning=", yes"),
        Delta("Let me"),
        Delta(" look."),
        Delta(tool_calls=[called]),
        Delta(tool_calls=[ToolCallDelta(0, arguments=': "it"}')]),
        Delta(tool_calls=[ToolCallDelta(1, "call-2", "rest")]),
        reason=FinishReason.TOOL_CALLS,
        usage=Usage(10, 7, cached_tokens=4, reasoning_tokens=2),
    )
    message = await whole_or_streamed(client, stream, tools=[LOOK])

    thought, text, look, rest = message.content
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(text, TextBlock)
    assert isinstance(look, ToolUseBlock)
    assert isinstance(rest, ToolUseBlock)
    assert (thought.thinking, text.text) == ("Hm, yes", "Let me look.")
    assert (look.id, look.name, look.input) == ("call-1", "look", {"what": "it"})
    assert (rest.id, rest.name, rest.input) == ("call-2", "rest", {})
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens == 6
    assert message.usage.cache_read_input_tokens == 4
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens == 2


async def whole_or_streamed(client: AsyncAnthropic, stream: bool, **body: Any) -> Message:
    if not stream:
        return await ask(client, **body)
    async with client.messages.stream(
        **{"model": "m", "messages": HI, "max_tokens": 9, **body}
    ) as open_stream:
        return await open_stream.get_final_message()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive", "display": "omitted"}])
async def test_thoughts_that_nobody_wants_are_left_out(
    served: Gateway, client: AsyncAnthropic, stream: bool, thinking: Any
) -> None:
    served.upstreams.typed = says(Delta(reasoning="Hm"), Delta(reasoning="."), Delta("Yes"))

    message = await whole_or_streamed(client, stream, thinking=thinking)

    assert [block.type for block in message.content] == ["text"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_why_an_answer_ended_is_told(served: Gateway, client: AsyncAnthropic, stream: bool) -> None:
    async def stops(call: InferenceCall, sink: AnswerSink) -> None:
        call.tally.stop_sequence = "END"
        await says(Delta("a"))(call, sink)

    served.upstreams.typed = stops
    stopped = await whole_or_streamed(client, stream, stop_sequences=["X", "END"])
    served.upstreams.typed = says(Delta("a"), reason=FinishReason.LENGTH, usage=Usage(1, 9))
    cut = await whole_or_streamed(client, stream)

    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)


async def test_an_empty_answer_is_one(served: Gateway, client: AsyncAnthropic) -> None:
    served.upstreams.typed = says()
    for stream in (True, False):
        message = await whole_or_streamed(client, stream)
        assert (message.content, message.stop_reason) == ([], "end_turn")


async def test_comments_before_the_answer_are_no_part_of_it(served: Gateway, client: AsyncAnthropic) -> None:
    async def bring(name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        served.clock.forward(3)
        await meanwhile(LoadStatus("m", "loading", "gpu-1", 42))
        served.tables.replace(table(model("m", route_to("m"))))

    served.tables.replace(table(model("m")))
    served.loading.bringing = bring
    message = await whole_or_streamed(client, stream=True)

    assert message.content[0].to_dict() == {"type": "text", "text": "Hello there"}


# Requests.


async def test_what_claude_code_sends_reaches_the_model(served: Gateway, client: AsyncAnthropic) -> None:
    asked = noted(served, says(Delta("ok")))

    await client.beta.messages.create(
        model="m",
        max_tokens=16000,
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        metadata={"user_id": "user_1"},
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=4711;"},
            {"type": "text", "text": "You help.", "cache_control": CACHE},
            {"type": "text", "text": "Be brief.", "cache_control": CACHE},
        ],
        thinking={"type": "enabled", "budget_tokens": 1024},
        stop_sequences=["</stop>"],
        tools=[{**LOOK, "cache_control": CACHE}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        extra_body={"temperature": 0.5, "top_k": 20, "context_management": {"edits": []}},
        messages=CONVERSATION,
    )

    (chat,) = asked
    system, user, assistant, first, second, shown = chat.messages
    assert (system.role, system.content) == ("system", "You help.\n\nBe brief.")
    assert (user.role, user.content) == ("user", "<system-reminder>\n\nLook at this")
    assert (assistant.content, assistant.reasoning_content) == ("Yes", "Hm")
    calls = [(call.id, call.function.name, call.function.arguments) for call in assistant.tool_calls or ()]
    assert [call[:2] for call in calls] == [("t1", "look"), ("t2", "look")]
    assert [json.loads(call[2]) for call in calls] == [{"what": "it"}, {}]
    assert (first.role, first.tool_call_id) == ("tool", "t1")
    assert first.content == "This:\n\n(An image: it follows after the results.)"
    assert (second.role, second.tool_call_id, second.content) == ("tool", "t2", "Error: no")
    assert isinstance(shown.content, list)
    image, text = shown.content
    assert json.loads(bytes(image.image_url)) == {"url": f"data:image/png;base64,{PIXEL}"}
    assert text.text == "Well?"
    assert chat.tools is not None
    assert json.loads(bytes(chat.tools[0].function.parameters)) == LOOK["input_schema"]
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("auto", False)
    assert (chat.max_tokens, chat.stop, chat.user) == (16000, ["</stop>"], "user_1")
    assert (chat.temperature, chat.top_k) == (0.5, 20)
    assert chat.metadata == {"enable_thinking": "true"}


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [({"type": "any"}, "required"), ({"type": "none"}, "none"), ({"type": "tool", "name": "look"}, "look")],
)
async def test_which_tool_is_to_be_called_is_passed_on(
    served: Gateway, client: AsyncAnthropic, choice: Any, wanted: str
) -> None:
    asked = noted(served, says(Delta("ok")))

    await ask(client, tools=[LOOK], tool_choice=choice)

    chosen = asked[0].tool_choice
    assert (chosen.function.name if isinstance(chosen, NamedTool) else chosen) == wanted


async def test_structured_output_is_asked_for_by_its_schema(served: Gateway, client: AsyncAnthropic) -> None:
    asked = noted(served, says(Delta('{"a": 1}')))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    await ask(client, output_config={"effort": "max", "format": {"type": "json_schema", "schema": schema}})

    wanted = asked[0].response_format
    assert wanted is not None
    assert wanted.json_schema is not None
    assert json.loads(bytes(wanted.json_schema.schema)) == schema
    assert asked[0].reasoning_effort == "high"


async def test_tokens_are_counted_as_the_answer_would_read_them(
    served: Gateway, client: AsyncAnthropic
) -> None:
    asked = noted(served, served.upstreams.typed or says())

    counted = await client.messages.count_tokens(model="m", messages=HI, system="Be brief.", tools=[LOOK])

    assert counted.input_tokens == 7
    assert [message.content for message in asked[0].messages] == ["Be brief.", "hi"]
    assert asked[0].tools is not None


async def test_models_come_page_by_page(served: Gateway, client: AsyncAnthropic) -> None:
    names = [f"m{number:02}" for number in range(25)]
    served.tables.replace(table(*(model(name, route_to(name)) for name in names)))

    assert [found.id async for found in client.models.list(limit=10)] == names
    last = await client.models.list(before_id="m24", limit=3)
    assert ([found.id for found in last.data], last.has_more) == (["m21", "m22", "m23"], True)
    info = await client.models.retrieve("m03")
    assert (info.id, info.type, info.display_name, info.created_at.year) == ("m03", "model", "m03", 1970)
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("none")


# Errors.


async def test_what_is_wrong_with_a_request_is_its_kind_of_error(client: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        await ask(client, max_tokens=-1)
    assert (bad.value.type, bad.value.error_code) == ("invalid_request_error", "invalid")
    assert bad.value.api_message == "max_tokens must be 1 or more"
    assert bad.value.request_id is not None
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await ask(client, "none")
    assert (unknown.value.type, unknown.value.error_code) == ("not_found_error", "model_not_found")


async def test_both_ways_to_send_a_key_work_and_have_their_kinds_of_error() -> None:
    async with serving(gateway(keys_required=True)) as served:
        served.upstreams.typed = says(Delta("ok"))
        secret, _ = await served.keyring.create("app", KeyScope.INFERENCE, ("m",))
        other, _ = await served.keyring.create("other", KeyScope.INFERENCE, ("other",))
        http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
        bearer = AsyncAnthropic(auth_token=secret, base_url=served.url, http_client=http, max_retries=0)
        async with client_of(served) as nobody, client_of(served, secret) as app, bearer:
            assert (await ask(app)).stop_reason == "end_turn"
            assert (await ask(bearer)).stop_reason == "end_turn"
            assert [found.id async for found in app.models.list()] == ["m"]
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await ask(nobody)
            assert refused.value.type == "authentication_error"
            with pytest.raises(anthropic.AuthenticationError):
                await nobody.models.list()
        async with client_of(served, other) as somebody:
            with pytest.raises(anthropic.PermissionDeniedError) as denied:
                await ask(somebody)
            assert denied.value.type == "permission_error"


async def test_a_keys_limit_is_a_rate_limit() -> None:
    async with serving(gateway(keys_required=True)) as served:
        served.upstreams.typed = says(Delta("ok"))
        secret, _ = await served.keyring.create(
            "app", KeyScope.INFERENCE, terms=KeyTerms(requests_per_minute=1)
        )
        async with client_of(served, secret) as client:

            async def often() -> None:
                for _ in range(4):
                    await ask(client)

            with pytest.raises(anthropic.RateLimitError) as refused:
                await often()
            assert refused.value.type == "rate_limit_error"
            assert refused.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
            assert int(refused.value.response.headers["retry-after"]) >= 1


async def test_a_prompt_that_is_too_long_is_said_in_the_words_that_clients_know(
    served: Gateway, client: AsyncAnthropic
) -> None:
    async def refuses(call: InferenceCall, sink: AnswerSink) -> None:
        raise ContextExceeded("305 tokens do not fit the context of 256")

    served.upstreams.typed = refuses
    with pytest.raises(anthropic.BadRequestError) as refused:
        await ask(client)
    assert refused.value.error_code == "context_length_exceeded"
    assert (refused.value.api_message or "").startswith("prompt is too long: 305 tokens > 256 maximum")


async def test_tokens_that_nobody_can_count_are_refused(served: Gateway, client: AsyncAnthropic) -> None:
    async def refuses(call: InferenceCall, sink: AnswerSink) -> None:
        raise RequestUnsupported("its server does not count tokens")

    served.upstreams.typed = refuses
    with pytest.raises(anthropic.BadRequestError, match="does not count tokens"):
        await client.messages.count_tokens(model="m", messages=HI)


async def test_a_full_queue_is_a_rate_limit() -> None:
    async with serving(gateway(waits=WaitLimits(waiting_max=0))) as served:
        served.tables.replace(table(model("m", route_to("m", parallel=1))))
        served.upstreams.typed = endless = Endless()
        async with client_of(served) as client, client_of(served) as other:
            stream = await client.messages.create(model="m", messages=HI, max_tokens=9, stream=True)
            await wait_until(lambda: endless.began)
            with pytest.raises(anthropic.RateLimitError) as limited:
                await ask(other)
            assert limited.value.type == "rate_limit_error"
            assert limited.value.response.headers["retry-after"] == "5"
            await stream.close()
        await wait_until(lambda: endless.stopped)


class Endless:
    def __init__(self) -> None:
        self.began = self.stopped = 0

    async def __call__(self, call: InferenceCall, sink: AnswerSink) -> None:
        self.began += 1
        texts = sink.texts(1)
        try:
            await texts.write(0, Delta("on and on"))
            await anyio.sleep_forever()
        finally:
            self.stopped += 1


async def test_what_is_not_the_clients_fault_is_a_servers_error(
    served: Gateway, client: AsyncAnthropic
) -> None:
    async def bring(name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        raise ModelLoading("m is being loaded", LoadStatus("m"), 7)

    served.tables.replace(table(model("m")))
    served.loading.bringing = bring
    with pytest.raises(anthropic.OverloadedError) as loading:
        await ask(client)
    assert (loading.value.type, loading.value.error_code) == ("overloaded_error", "model_loading")
    assert loading.value.response.headers["retry-after"] == "7"


async def test_an_error_in_a_stream_is_raised_after_what_came(
    served: Gateway, client: AsyncAnthropic
) -> None:
    async def breaks(call: InferenceCall, sink: AnswerSink) -> None:
        await sink.texts(1).write(0, Delta("one"))
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.upstreams.typed = breaks
    async with client.messages.stream(model="m", messages=HI, max_tokens=9) as stream:
        texts = stream.text_stream
        assert await anext(texts) == "one"
        with pytest.raises(anthropic.APIStatusError, match="the backend crashed") as broken:
            await anext(texts)
    assert (broken.value.type, broken.value.error_code) == ("api_error", "backend_failed")


async def test_other_paths_answer_clients_of_this_api_in_its_shape(client: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.batches.list()
    assert (missing.value.type, missing.value.error_code) == ("not_found_error", "no_such_endpoint")
    assert "Anthropic's batch API is not offered here" in (missing.value.api_message or "")
    with pytest.raises(anthropic.NotFoundError, match="Anthropic's Files API is not offered here"):
        await client.beta.files.list()


async def test_a_link_is_refused_in_the_words_of_this_api(client: AsyncAnthropic) -> None:
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/a.png"}}
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": [image]}], system="Be brief."
        )
    words = refused.value.api_message or ""
    assert "the source of an image is a link" in words
    assert "a source of the type base64" in words
    assert "image_url" not in str(refused.value.body)

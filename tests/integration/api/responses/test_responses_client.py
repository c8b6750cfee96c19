"""The official client asks for responses: what it sends is understood, what it gets it can read, and errors
are the right ones."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from remuda.inference.answers import AnswerSink, Delta, FinishReason
from remuda.inference.failures import ContextExceeded
from remuda.inference.model import InferenceCall
from remuda.store.database import Database
from tests.integration.api.responses.conftest import client_of, keeping
from tests.integration.api.responses.scripts import Remembering, answers, breaks_off, calls, says
from tests.support.scripted_upstreams import Gateway

pytestmark = pytest.mark.anyio
LOOK: Any = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": False,
}


class Weather(BaseModel):
    city: str
    degrees: int


async def test_a_response(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="m", input="hi", store=False)
    assert (response.status, response.output_text, response.model) == ("completed", "Hello there", "m")
    assert response.usage is not None
    assert (response.usage.total_tokens, response.usage.input_tokens_details.cached_tokens) == (5, 1)
    assert response.id.startswith("resp_")


async def streamed(stream: AsyncIterator[ResponseStreamEvent]) -> list[ResponseStreamEvent]:
    return [event async for event in stream]


async def test_a_streamed_response(client: AsyncOpenAI) -> None:
    events = await streamed(await client.responses.create(model="m", input="hi", stream=True, store=False))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "Hello there"


async def test_the_clients_own_accumulator_reads_the_stream(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="m", input="hi", store=False) as stream:
        async for _ in stream:
            pass
        response = await stream.get_final_response()
    assert response.output_text == "Hello there"


async def test_thoughts_are_items_of_their_own(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = answers(Delta(reasoning="Hm"), Delta(reasoning="."), Delta("Hello"))
    events = await streamed(
        await client.responses.create(
            model="m", input="hi", stream=True, store=False, reasoning={"effort": "low"}
        )
    )
    assert [event.delta for event in events if event.type == "response.reasoning_text.delta"] == ["Hm", "."]
    assert events[-1].type == "response.completed"
    thought, said = events[-1].response.output
    assert thought.type == "reasoning"
    assert [part.text for part in thought.content or ()] == ["Hm."]
    assert said.type == "message"


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_are_called_and_their_results_told(
    served: Gateway, client: AsyncOpenAI, stream: bool
) -> None:
    served.upstreams.typed = calls("look", '{"at": "sky"}')
    asked: Any = {"model": "m", "input": "hi", "tools": [LOOK], "tool_choice": "required", "store": False}
    if stream:
        events = await streamed(await client.responses.create(**asked, stream=True))
        last = events[-1]
        assert last.type == "response.completed"
        response = last.response
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert [event.arguments for event in done] == ['{"at": "sky"}']
    else:
        response = await client.responses.create(**asked)
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("look", {"at": "sky"})

    remembering = served.upstreams.typed = Remembering()
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "blue"}
    items: Any = [{"role": "user", "content": "hi"}, call.model_dump(exclude_none=True), result]
    await client.responses.create(model="m", input=items, tools=[LOOK], store=False)
    messages = remembering.chats[0].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert messages[2].tool_call_id == call.call_id


async def test_structured_output(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = says('{"city": "Rome", ', '"degrees": 30}')
    response = await client.responses.parse(model="m", input="hi", text_format=Weather, store=False)
    assert response.output_parsed == Weather(city="Rome", degrees=30)


async def test_probabilities_are_told_where_they_are_wanted(served: Gateway, client: AsyncOpenAI) -> None:
    told = b'[{"token":"hi","logprob":-0.5,"top_logprobs":[{"token":"ho","logprob":-1}]}]'
    served.upstreams.typed = answers(Delta("hi", logprobs=told))
    response = await client.responses.create(
        model="m", input="hi", include=["message.output_text.logprobs"], top_logprobs=1, store=False
    )
    (message,) = response.output
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    token = (message.content[0].logprobs or [])[0]
    assert (token.token, token.logprob, token.bytes) == ("hi", -0.5, [104, 105])
    assert token.top_logprobs[0].token == "ho"


async def test_an_answer_that_is_cut_off_is_incomplete(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = answers(Delta("Hel"), reason=FinishReason.LENGTH)
    response = await client.responses.create(model="m", input="hi", max_output_tokens=1, store=False)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events = await streamed(await client.responses.create(model="m", input="hi", stream=True, store=False))
    assert events[-1].type == "response.incomplete"


async def test_a_stream_that_breaks_off_ends_with_an_error(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = breaks_off
    events = await streamed(await client.responses.create(model="m", input="hi", stream=True, store=False))
    last = events[-1]
    assert last.type == "error"
    assert (last.code, last.sequence_number) == ("backend_failed", len(events) - 1)
    assert "stopped before its end" in last.message


async def test_a_prompt_that_is_too_long_has_openais_code(served: Gateway, client: AsyncOpenAI) -> None:
    async def too_long(call: InferenceCall, sink: AnswerSink) -> None:
        raise ContextExceeded("9 tokens do not fit the context of 8")

    served.upstreams.typed = too_long
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="m", input="hi", stream=True, store=False)
    assert caught.value.code == "context_length_exceeded"


async def test_a_wrong_key_is_an_authentication_error(database: Database) -> None:
    async with keeping(database, keys_required=True) as served, client_of(served, "sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="m", input="hi")


async def test_a_model_that_does_not_exist(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="nobody", input="hi")


async def test_a_refusal_names_the_field(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="m", input="hi", tools=[{"type": "web_search"}], store=False)
    assert caught.value.param == "tools[0].type"


async def test_other_methods_are_told_what_works(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/responses")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")

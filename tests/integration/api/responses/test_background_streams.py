"""Responses that are made in the background while a client reads their events, is cut off, and goes on."""

from typing import Any

import anyio
import openai
import pytest
from openai import AsyncOpenAI

from remuda.accounts.keys import KeyScope
from remuda.gateway.sessions import CONSOLE_HEADER, COOKIE
from remuda.inference.answers import AnswerSink, Delta, FinishReason, Usage
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.store.database import Database
from tests.integration.api.responses.conftest import client_of, keeping
from tests.integration.api.responses.scripts import says
from tests.support.raw_http import raw_client
from tests.support.scripted_upstreams import Gateway
from tests.support.shared_lines import SharedLines

pytestmark = pytest.mark.anyio


class Halting:
    """Says a word, and goes on when it is let."""

    def __init__(self) -> None:
        self.gate = anyio.Event()

    async def __call__(self, call: InferenceCall, sink: AnswerSink) -> None:
        texts = sink.texts(1)
        await texts.write(0, Delta("Good"))
        await self.gate.wait()
        await texts.write(0, Delta(" day"))
        await texts.finish(0, FinishReason.STOP)
        await texts.end(Usage(3, 2))


async def begun(client: AsyncOpenAI) -> tuple[str, list[Any]]:
    """A response with its first events; its client leaves after the first word."""
    events = list[Any]()
    stream = await client.responses.create(model="m", input="hi", background=True, stream=True)
    async for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    return events[0].response.id, events


async def rest(client: AsyncOpenAI, response_id: str, after: int) -> list[Any]:
    stream = await client.responses.retrieve(response_id, stream=True, starting_after=after)
    with anyio.fail_after(30):
        return [event async for event in stream]


async def test_a_client_that_was_cut_off_goes_on_where_it_was(served: Gateway, client: AsyncOpenAI) -> None:
    halting = served.upstreams.typed = Halting()
    response_id, first = await begun(client)
    halting.gate.set()
    later = await rest(client, response_id, first[-1].sequence_number)
    assert [event.sequence_number for event in first + later] == list(range(len(first) + len(later)))
    said = [event.delta for event in first + later if event.type == "response.output_text.delta"]
    assert said == ["Good", " day"]
    assert later[-1].type == "response.completed"
    assert later[-1].response.output_text == "Good day"
    assert (await client.responses.retrieve(response_id)).status == "completed", (
        "it is kept before that is told"
    )
    again = await rest(client, response_id, -1)
    assert [event.type for event in again] == [event.type for event in first + later]
    assert await rest(client, response_id, later[-1].sequence_number) == []


async def test_another_frontend_tells_the_same_events(
    served: Gateway, client: AsyncOpenAI, elsewhere: AsyncOpenAI
) -> None:
    halting = served.upstreams.typed = Halting()
    response_id, first = await begun(client)
    found = list[Any]()

    async def follow() -> None:
        stream = await elsewhere.responses.retrieve(response_id, stream=True, starting_after=-1)
        with anyio.fail_after(30):
            async for event in stream:
                found.append(event)
                if len(found) == len(first):  # What was said by then is told before there is more.
                    halting.gate.set()

    await follow()
    here = await rest(client, response_id, -1)
    assert [event.to_json() for event in found] == [event.to_json() for event in here]
    assert [event.sequence_number for event in found] == list(range(len(here)))
    for number in (len(first), len(here) - 2, len(here) - 1, len(here) + 5):
        later = await rest(elsewhere, response_id, number)
        assert [event.sequence_number for event in later] == list(range(number + 1, len(here)))


async def test_a_long_answer_comes_from_the_other_frontend_in_parts(
    served: Gateway, client: AsyncOpenAI, elsewhere: AsyncOpenAI, bus: SharedLines
) -> None:
    words = ["x" * 9_000 + str(number) for number in range(60)]
    served.upstreams.typed = says(*words)
    stream = await client.responses.create(model="m", input="hi", background=True, stream=True)
    here: list[Any] = [event async for event in stream]
    there = await rest(elsewhere, here[0].response.id, -1)
    said = [event.delta for event in there if event.type == "response.output_text.delta"]
    assert said == words
    assert there[-1].to_json() == here[-1].to_json()
    numbers = [event.sequence_number for event in there]
    assert numbers == sorted(set(numbers))
    assert max(len(one.payload) for one in bus.sent) < 1_000_000, "what a bus takes"


async def test_where_nobody_has_the_events_any_more_the_end_is_told(
    served: Gateway, client: AsyncOpenAI, elsewhere: AsyncOpenAI, bus: SharedLines
) -> None:
    bus.down = True
    halting = served.upstreams.typed = Halting()
    response_id, first = await begun(client)
    number = first[-1].sequence_number
    found = list[Any]()

    async def follow() -> None:
        found.extend(await rest(elsewhere, response_id, number))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        halting.gate.set()
    [event] = found
    assert (event.type, event.sequence_number) == ("response.completed", number + 1)
    assert event.response.output_text == "Good day"


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after a word"])
async def test_one_that_fails_ends_with_the_reason(served: Gateway, client: AsyncOpenAI, late: bool) -> None:
    async def fails(call: InferenceCall, sink: AnswerSink) -> None:
        if late:
            await sink.texts(1).write(0, Delta("Good"))
        raise UpstreamFailed(Fault.FAILED, "out of memory")

    served.upstreams.typed = fails
    stream = await client.responses.create(model="m", input="hi", background=True, stream=True)
    events = [event async for event in stream]
    last: Any = events[-1]
    assert (last.type, last.response.error.message) == ("response.failed", "out of memory")
    assert last.sequence_number == len(events) - 1
    assert (await client.responses.retrieve(last.response.id)).status == "failed"


async def test_one_that_is_cancelled_ends_the_stream(served: Gateway, client: AsyncOpenAI) -> None:
    served.upstreams.typed = Halting()
    response_id, first = await begun(client)
    later = list[Any]()

    async def follow() -> None:
        later.extend(await rest(client, response_id, first[-1].sequence_number))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        assert (await client.responses.cancel(response_id)).status == "cancelled"
    assert later == []


async def test_only_what_is_made_in_the_background_is_streamed_again(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="m", input="hi")
    with pytest.raises(openai.BadRequestError, match="in the background"):
        await client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_0", stream=True)


async def test_reading_ends_with_the_session_that_reads_and_the_response_is_made_on(
    database: Database,
) -> None:
    async with keeping(database, keys_required=True) as served:
        secret, key = await served.keyring.create("ana", KeyScope.ADMIN)
        halting = served.upstreams.typed = Halting()
        cookie = served.sessions.begin(key)
        session = served.sessions.of(cookie)
        assert session is not None
        async with client_of(served, secret) as client, raw_client(served.port) as reader:
            response_id, _ = await begun(client)
            head = (f"GET /v1/responses/{response_id}?stream=true HTTP/1.1", "Host: 127.0.0.1")
            asked = (*head, f"Cookie: {COOKIE}={cookie}", f"{CONSOLE_HEADER}: 1", "", "")
            await reader.send("\r\n".join(asked).encode())
            assert (await reader.head())[0] == 200
            await served.sessions.end(session)
            assert b"response.completed" not in b"".join([part async for part in reader.chunks()])
            halting.gate.set()
            later = await rest(client, response_id, -1)
        assert later[-1].type == "response.completed"

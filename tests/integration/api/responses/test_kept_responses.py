"""Responses that are kept: conversations go on with them, also on another frontend; they belong to their key,
go when they are told to, and are worked on in the background."""

from typing import Any

import anyio
import httpx
import openai
import pytest
from openai import AsyncOpenAI

from remuda.accounts.keys import KeyScope
from remuda.accounts.terms import KeyTerms
from remuda.core.errors import StoreUnusable
from remuda.inference.answers import AnswerSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.store.database import Database
from remuda.store.responses import SqlResponseStore
from tests.integration.api.responses.conftest import client_of, keeping
from tests.integration.api.responses.scripts import Remembering, says
from tests.support.scripted_upstreams import Gateway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [False, True])
async def test_whoever_reads_of_the_end_finds_the_response_on_any_frontend(
    client: AsyncOpenAI, elsewhere: AsyncOpenAI, stream: bool
) -> None:
    if stream:
        events = [event async for event in await client.responses.create(model="m", input="hi", stream=True)]
        last = events[-1]
        assert last.type == "response.completed"
        response = last.response
    else:
        response = await client.responses.create(model="m", input="hi", metadata={"a": "b"})
    assert response.store  # type: ignore[attr-defined]
    found = await elsewhere.responses.retrieve(response.id)
    assert found == response


async def test_a_conversation_goes_on(served: Gateway, client: AsyncOpenAI, elsewhere: AsyncOpenAI) -> None:
    remembering = served.upstreams.typed = Remembering()
    first = await client.responses.create(model="m", input="one", instructions="Be brief.")
    second = await client.responses.create(model="m", input="two", previous_response_id=first.id)
    await client.responses.create(model="m", input="three", previous_response_id=second.id, instructions="X")
    told = [(message.role, message.content) for message in remembering.chats[2].messages]
    assert told == [
        ("system", "X"),
        ("user", "one"),
        ("assistant", "Hello 1"),
        ("user", "two"),
        ("assistant", "Hello 2"),
        ("user", "three"),
    ]
    assert (
        await elsewhere.responses.create(model="m", input="four", previous_response_id=second.id)
    ).output_text


async def test_what_is_not_to_be_stored_is_not(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="m", input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="m", input="hi", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"


async def test_a_deleted_response_is_gone(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="m", input="hi")
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(response.id)


async def test_what_was_asked_is_listed_page_by_page(client: AsyncOpenAI) -> None:
    items: Any = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    response = await client.responses.create(model="m", input=items)
    page = await client.responses.input_items.list(response.id, order="asc", limit=2)
    assert page.has_more
    texts = [item.to_dict()["content"][0]["text"] async for item in page]  # type: ignore[index]
    assert texts == ["one", "two", "three"]
    newest: Any = await client.responses.input_items.list(response.id)
    assert newest.data[0].content[0].text == "three"


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nothing"])
async def test_a_page_that_cannot_be_is_refused(
    client: AsyncOpenAI, http: httpx.AsyncClient, query: str
) -> None:
    response = await client.responses.create(model="m", input="hi")
    answer = await http.get(f"/v1/responses/{response.id}/input_items?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


async def test_a_response_belongs_to_its_key(database: Database) -> None:
    async with keeping(database, keys_required=True) as served:
        secrets = [(await served.keyring.create(name, KeyScope.INFERENCE))[0] for name in ("ada", "bob")]
        async with client_of(served, secrets[0]) as ada, client_of(served, secrets[1]) as bob:
            response = await ada.responses.create(model="m", input="hi")
            assert (await ada.responses.retrieve(response.id)).id == response.id
            asked = (bob.responses.retrieve, bob.responses.delete, bob.responses.cancel)
            for ask in (*asked, bob.responses.input_items.list):
                with pytest.raises(openai.NotFoundError):
                    await ask(response.id)
            with pytest.raises(openai.BadRequestError):
                await bob.responses.create(model="m", input="x", previous_response_id=response.id)
            assert (await ada.responses.retrieve(response.id)).id == response.id


async def test_an_answer_that_cannot_be_kept_is_given_and_says_so(
    served: Gateway, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: object, kept: object, chain: object) -> None:
        raise StoreUnusable("the database does not answer")

    monkeypatch.setattr(SqlResponseStore, "add", broken)
    response = await client.responses.create(model="m", input="hi")
    assert (response.output_text, response.store) == ("Hello there", False)  # type: ignore[attr-defined]


# In the background.


class Gated:
    """Says hello when it is let."""

    def __init__(self) -> None:
        self.gate, self.began, self.ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def __call__(self, call: InferenceCall, sink: AnswerSink) -> None:
        self.began.set()
        try:
            await self.gate.wait()
            await says("Hello")(call, sink)
        finally:
            self.ended.set()


async def ended(client: AsyncOpenAI, response_id: str) -> Any:
    found: list[Any] = []

    async def has_ended() -> bool:
        found.append(await client.responses.retrieve(response_id))
        return found[-1].status not in ("queued", "in_progress")

    await wait_until(has_ended, within=20, what="the end of the response")
    return found[-1]


async def test_a_response_is_made_while_nobody_waits(
    served: Gateway, client: AsyncOpenAI, elsewhere: AsyncOpenAI
) -> None:
    gated = served.upstreams.typed = Gated()
    response = await client.responses.create(model="m", input="hi", background=True)
    assert (response.status, response.background) == ("queued", True)
    await gated.began.wait()
    with pytest.raises(openai.BadRequestError, match="nothing follows"):
        await client.responses.create(model="m", input="x", previous_response_id=response.id)
    gated.gate.set()
    done = await ended(elsewhere, response.id)
    assert (done.status, done.output_text) == ("completed", "Hello")
    assert (await client.responses.cancel(response.id)).status == "completed"


async def test_one_that_is_cancelled_ends_on_whichever_frontend(
    served: Gateway, client: AsyncOpenAI, elsewhere: AsyncOpenAI
) -> None:
    for canceller in (client, elsewhere):
        gated = served.upstreams.typed = Gated()
        response = await client.responses.create(model="m", input="hi", background=True)
        await gated.began.wait()
        assert (await canceller.responses.cancel(response.id)).status == "cancelled"
        with anyio.fail_after(20):
            await gated.ended.wait()
        assert (await client.responses.retrieve(response.id)).status == "cancelled"
    await wait_until(lambda: not len(served.running), within=20, what="the end of the work")


async def test_one_that_is_deleted_ends(served: Gateway, client: AsyncOpenAI) -> None:
    gated = served.upstreams.typed = Gated()
    response = await client.responses.create(model="m", input="hi", background=True)
    await gated.began.wait()
    await client.responses.delete(response.id)
    with anyio.fail_after(20):
        await gated.ended.wait()
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_one_that_fails_says_why(served: Gateway, client: AsyncOpenAI) -> None:
    async def fails(call: InferenceCall, sink: AnswerSink) -> None:
        raise UpstreamFailed(Fault.FAILED, "out of memory")

    served.upstreams.typed = fails
    response = await client.responses.create(model="m", input="hi", background=True)
    done = await ended(client, response.id)
    assert (done.status, done.error.code, done.error.message) == ("failed", "server_error", "out of memory")


async def test_only_background_responses_are_cancelled(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="m", input="hi")
    with pytest.raises(openai.BadRequestError, match="in the background"):
        await client.responses.cancel(response.id)


async def test_a_frontend_that_stops_writes_it_down(
    served: Gateway, client: AsyncOpenAI, database: Database
) -> None:
    gated = Gated()
    async with keeping(database) as stopping, client_of(stopping) as asking:
        stopping.upstreams.typed = gated
        stopping.running._grace_s = 0.0
        response = await asking.responses.create(model="m", input="hi", background=True)
        await gated.began.wait()
    done = await client.responses.retrieve(response.id)
    assert done.status == "failed"
    assert done.error is not None
    assert "stopping" in done.error.message


async def test_there_is_a_limit_to_work_in_the_background(
    served: Gateway, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.core.limits.BACKGROUND_RESPONSES_MAX", 1)
    gated = served.upstreams.typed = Gated()
    await client.responses.create(model="m", input="hi", background=True)
    await gated.began.wait()
    with pytest.raises(openai.RateLimitError, match="works on 1 responses"):
        await client.responses.create(model="m", input="hi", background=True)
    gated.gate.set()


@pytest.mark.parametrize(
    "path", ["/v1/responses/input_tokens", "/v1/responses/compact", "/responses/compact"]
)
async def test_what_is_not_offered_of_responses_says_so(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post(path, json={"model": "m", "input": "hi"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "no_such_endpoint")
    assert "is not offered here" in error["message"]


async def test_a_key_over_its_limits_is_told_at_once_and_pays_for_work_once(database: Database) -> None:
    """Nine requests: a minute may begin in between, and four of one minute are refused at least."""
    async with keeping(database, keys_required=True) as served:
        secret, _ = await served.keyring.create(
            "app", KeyScope.INFERENCE, terms=KeyTerms(requests_per_minute=2)
        )
        async with client_of(served, secret) as client:
            made, refused = [], []
            for _ in range(9):
                try:
                    made.append(await client.responses.create(model="m", input="hi", background=True))
                except openai.RateLimitError as error:
                    refused.append(error)
            assert len(made) in (2, 4)
            assert {error.code for error in refused} == {"rate_limit_exceeded"}
            assert all(int(error.response.headers["retry-after"]) >= 1 for error in refused)
            for response in made:
                assert (await ended(client, response.id)).status == "completed"


async def test_work_in_the_background_is_under_way_until_it_ends(database: Database) -> None:
    async with keeping(database, keys_required=True) as served:
        gated = served.upstreams.typed = Gated()
        terms = KeyTerms(concurrent_requests=1)
        secret, _ = await served.keyring.create("app", KeyScope.INFERENCE, terms=terms)
        async with client_of(served, secret) as client:
            first = await client.responses.create(model="m", input="hi", background=True)
            await gated.began.wait()
            with pytest.raises(openai.RateLimitError, match="1 requests under way"):
                await client.responses.create(model="m", input="hi", background=True)
            gated.gate.set()
            assert (await ended(client, first.id)).status == "completed"
            await wait_until(lambda: not len(served.running), within=20, what="the end of the work")
            assert await client.responses.create(model="m", input="hi", background=True)

"""What keys may take, as OpenAI's clients and plain callers of each API see it."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import anyio
import httpx
import pytest

from remuda.accounts.keys import KeyScope
from remuda.accounts.terms import KeyTerms
from remuda.accounts.usage import KeyUsage, UsageQuery
from remuda.core.clock import SystemClock
from remuda.inference.answers import ByteSink
from remuda.inference.model import InferenceCall
from tests.integration.api.openai.asking import ASK, CHAT
from tests.support.plain_http import PLAIN
from tests.support.scripted_upstreams import JSON, Endless, Gateway, gateway, serving, whole
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
APIS = {
    "openai": (CHAT, ASK),
    "anthropic": ("/v1/messages", ASK | {"max_tokens": 20}),
    "ollama": ("/api/chat", ASK | {"stream": False}),
}


@pytest.fixture
async def served() -> AsyncIterator[Gateway]:
    async with serving(gateway(keys_required=True)) as running:
        yield running


async def key_with(served: Gateway, terms: KeyTerms) -> str:
    secret, _ = await served.keyring.create("app", KeyScope.INFERENCE, terms=terms)
    return secret


async def ask(served: Gateway, key: str, api: str = "openai", **fields: Any) -> httpx.Response:
    path, body = APIS[api]
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=PLAIN) as client:
        return await client.post(path, json=body | fields, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("api", APIS)
async def test_each_api_is_held_to_the_limit_in_its_own_words(served: Gateway, api: str) -> None:
    key = await key_with(served, KeyTerms(requests_per_minute=1))
    replies = [await ask(served, key, api) for _ in range(3)]  # A minute may begin in between.
    assert replies[0].status_code == 200
    reply = next(one for one in replies if one.status_code == 429)
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    body = reply.json()
    words = body["error"] if api == "ollama" else body["error"]["message"]
    assert "the key 'app' may make 1 requests per minute" in words
    if api == "anthropic":
        assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
    if api == "openai":
        assert (body["error"]["type"], body["error"]["code"]) == ("requests", "rate_limit_exceeded")


async def test_openai_clients_are_told_how_their_limits_stand(served: Gateway) -> None:
    key = await key_with(served, KeyTerms(requests_per_minute=100, tokens_per_minute=10_000))
    headers = (await ask(served, key, max_tokens=1000)).headers
    assert headers["x-ratelimit-limit-requests"] == "100"
    assert headers["x-ratelimit-remaining-requests"] == "99"
    assert headers["x-ratelimit-limit-tokens"] == "10000"
    assert 8900 <= int(headers["x-ratelimit-remaining-tokens"]) <= 9000
    assert headers["x-ratelimit-reset-requests"] in {"1m0s", *(f"{second}s" for second in range(61))}


async def test_anthropic_clients_are_told_in_their_headers(served: Gateway) -> None:
    key = await key_with(served, KeyTerms(requests_per_minute=100, tokens_per_day=50_000))
    headers = (await ask(served, key, "anthropic")).headers
    assert headers["anthropic-ratelimit-requests-limit"] == "100"
    assert headers["anthropic-ratelimit-tokens-limit"] == "50000"
    reset = datetime.fromisoformat(headers["anthropic-ratelimit-tokens-reset"])
    assert reset > SystemClock().now()
    assert (reset.hour, reset.minute, reset.second) == (0, 0, 0)


async def test_a_key_without_limits_has_no_such_headers(served: Gateway) -> None:
    key = await key_with(served, KeyTerms())
    assert not [name for name in (await ask(served, key)).headers if "ratelimit" in name]


async def test_a_quota_that_is_used_up_is_not_to_be_tried_again(served: Gateway) -> None:
    key = await key_with(served, KeyTerms(tokens_per_day=1000))
    assert (await ask(served, key, max_tokens=500)).status_code == 200
    served.upstreams.script = hungry
    assert (await ask(served, key, max_tokens=900)).status_code == 200
    reply = await ask(served, key, max_tokens=500)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "insufficient_quota")
    assert reply.headers["x-should-retry"] == "false"


async def hungry(call: InferenceCall, sink: ByteSink) -> None:
    call.tally.prompt_tokens, call.tally.completion_tokens = 10, 900
    await sink.begin(200, JSON)
    await sink.write(whole("so much"))


async def test_a_client_that_leaves_makes_room_for_another(served: Gateway) -> None:
    key = await key_with(served, KeyTerms(concurrent_requests=1))
    answers, served.upstreams.script = served.upstreams.script, Endless()
    endless = served.upstreams.script
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, served, key)
        await wait_until(lambda: endless.began)
        refused = await ask(served, key)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        tasks.cancel_scope.cancel()
    await wait_until(lambda: endless.stopped)
    served.upstreams.script = answers

    async def let_in() -> bool:
        return (await ask(served, key)).status_code == 200

    await wait_until(let_in)


async def test_a_storm_is_let_in_as_far_as_the_limit_goes(served: Gateway) -> None:
    key = await key_with(served, KeyTerms(tokens_per_month=30))
    statuses = list[int]()

    async def one() -> None:
        statuses.append((await ask(served, key, "openai", max_tokens=2)).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(one)
    assert 1 <= statuses.count(200) <= 6, "each takes 5 tokens"
    assert statuses.count(200) + statuses.count(429) == 40


async def test_what_was_asked_is_counted_for_its_key_and_node(served: Gateway) -> None:
    key = await key_with(served, KeyTerms())
    await ask(served, key)
    await ask(served, key, "ollama", messages=[])  # Only has the model loaded.
    await served.metering.usage.write()
    today = SystemClock().now().date()
    [row] = await served.metering.used.rows(UsageQuery(today, today, ()))
    assert (row.model, row.node) == ("m", "gpu-1")
    assert row.usage == KeyUsage(1, 0, 3, 2)

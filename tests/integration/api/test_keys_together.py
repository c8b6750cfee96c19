"""Keys with two frontends on one database: made and revoked on one, soon known to the other, and held to
their limits by both together.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import anyio
import pytest

from remuda.core.clock import SystemClock
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.nats_servers import plain_server
from tests.support.postgres import postgres_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Pair = tuple[LiveFrontend, LiveFrontend]


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("keys")
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        bus = await stack.enter_async_context(plain_server(folder))
        url = postgres.new_database()
        frontends = []
        for name in ("here", "there"):
            (folder / name).mkdir()
            frontend = live_frontend(
                folder / name, host="0.0.0.0", database_url=url, nats_url=bus.url, insecure_no_token=True
            )
            frontends.append(await stack.enter_async_context(frontend))
        yield frontends[0], frontends[1]


async def status_with(frontend: LiveFrontend, secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return (await frontend.anyone.get("/api/keys", headers=headers)).status_code


async def test_a_key_made_here_works_there_and_no_longer_once_revoked(pair: Pair) -> None:
    here, there = pair
    made = (await here.admin.post("/api/keys", json={"name": "app", "scope": "admin"})).json()

    async def works_there() -> bool:
        return await status_with(there, made["key"]) == 200

    async def refused_there() -> bool:
        return await status_with(there, made["key"]) == 401

    await wait_until(works_there)
    assert (await here.admin.delete(f"/api/keys/{made['id']}")).status_code == 200
    await wait_until(refused_there)


async def storm(pair: Pair, secret: str, requests: int) -> list[int]:
    """The statuses of as many requests at once, to both. They name a node that is not there: those that are
    let in end soon, with 503."""
    headers = {"Authorization": f"Bearer {secret}", "X-Remuda-Node": "nosuch"}
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    statuses = list[int]()

    async def ask(frontend: LiveFrontend) -> None:
        reply = await frontend.anyone.post("/v1/chat/completions", json=asked, headers=headers)
        statuses.append(reply.status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(requests):
            tasks.start_soon(ask, pair[number % 2])
    return statuses


async def a_limited_key(pair: Pair, **limits: int) -> str:
    """Known to both, for the model `m`."""
    here, there = pair
    config = "name: m\nbackend: nosuch\nparameters:\n  model: m.gguf\n"
    await here.admin.post("/api/models", json={"config": config})
    name = next(iter(limits))
    made = (await here.admin.post("/api/keys", json={"name": name, "scope": "admin", **limits})).json()

    async def known_there() -> bool:
        return await status_with(there, made["key"]) == 200

    await wait_until(known_there)
    key: str = made["key"]
    return key


async def test_a_storm_on_both_lets_in_a_minutes_requests(pair: Pair) -> None:
    secret = await a_limited_key(pair, requests_per_minute=40)
    before = SystemClock().now().replace(second=0, microsecond=0)
    statuses = [status for _ in range(2) for status in await storm(pair, secret, 60)]
    minutes = 1 + (SystemClock().now() - before) // timedelta(minutes=1)
    assert statuses.count(503) + statuses.count(429) == 120
    assert statuses.count(503) <= 44 * minutes
    assert statuses.count(503) >= 40


async def test_a_storm_on_both_has_so_many_requests_at_once(pair: Pair) -> None:
    secret = await a_limited_key(pair, concurrent_requests=5)
    statuses = await storm(pair, secret, 60)
    assert statuses.count(503) + statuses.count(429) == 60
    assert 1 <= statuses.count(503) <= 10, "each is let in within the second that the first ones take"


async def test_both_count_what_a_key_has_taken(pair: Pair) -> None:
    secret = await a_limited_key(pair, tokens_per_month=10**9)
    await storm(pair, secret, 6)

    asked: Any = {"params": {"key": "tokens_per_month"}, "headers": {"Authorization": f"Bearer {secret}"}}

    async def counted() -> bool:
        told = [await one.anyone.get("/api/usage", **asked) for one in pair]
        return all(reply.json()["total"]["requests"] == 6 for reply in told)

    await wait_until(counted)

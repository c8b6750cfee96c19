"""Keys with two frontends on one database: made and revoked on one, soon known to the other."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

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

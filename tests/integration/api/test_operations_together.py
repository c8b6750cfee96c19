"""Two frontends on one database and one bus: either answers for all operations; a reader may change over."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import pytest

from tests.integration.api.ops_frontends import (
    Stream,
    listed,
    localai_worker,
    now_there,
    operation,
    ops_frontend,
    submit,
    until_status,
)
from tests.support.frontends import LiveFrontend
from tests.support.nats_servers import plain_server
from tests.support.postgres import postgres_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Pair:
    here: LiveFrontend
    there: LiveFrontend


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        bus = await stack.enter_async_context(plain_server(folder))
        url, frontends = postgres.new_database(), []
        for name in ("here", "there"):
            (folder / name).mkdir()
            frontend = ops_frontend(folder / name, database_url=url, nats_url=bus.url)
            frontends.append(await stack.enter_async_context(frontend))
        yield Pair(*frontends)


async def test_what_is_asked_here_is_shown_there(pair: Pair) -> None:
    async with localai_worker(pair.here, "slow", install_s=60):
        op = (await submit(pair.here, backend="llama-cpp", nodes=["slow"]))["operation"]["id"]

        async def seen_at_work() -> bool:
            item = await listed(pair.there, op)
            return item is not None and item["nodes"][0]["status"] == "downloading"

        await wait_until(seen_at_work)
        assert (await pair.there.admin.post(f"/api/ops/{op}/cancel")).status_code == 200
        assert (await operation(pair.here, op))["wish"] == "cancel"


async def test_a_reader_continues_on_the_other_frontend(pair: Pair) -> None:
    async with localai_worker(pair.here, "quick"):
        place = (await now_there(pair.here.admin, "/api/ops/events")).place
        op = (await submit(pair.here, backend="llama-cpp", nodes=["quick"]))["operation"]["id"]
        await until_status(pair.here, op, "succeeded")
    told = await now_there(pair.there.admin, "/api/ops/events", place)
    assert [shown["status"] for shown in told.ops() if shown["id"] == op][-1] == "succeeded"
    assert all(event["event"] != "snapshot" for event in told.events)


async def test_a_change_made_here_is_streamed_there(pair: Pair) -> None:
    stream = Stream()
    async with localai_worker(pair.here, "streamed"), anyio.create_task_group() as tasks:
        tasks.start_soon(stream.follow, pair.there.admin, "/api/ops/events")
        await wait_until(lambda: bool(stream.place), what="the snapshot")
        op = (await submit(pair.here, backend="llama-cpp", nodes=["streamed"]))["operation"]["id"]

        def done() -> bool:
            return any(shown["id"] == op and shown["status"] == "succeeded" for shown in stream.ops())

        await wait_until(done)
        tasks.cancel_scope.cancel()


async def test_history_is_the_same_on_both_and_cleared_on_both(pair: Pair) -> None:
    async def past(frontend: LiveFrontend) -> list[str]:
        reply = await frontend.admin.get("/api/operations/history")
        return [one["jobID"] for one in reply.json()["operations"]]

    async with localai_worker(pair.here, "remembered"):
        op = (await submit(pair.here, backend="llama-cpp", nodes=["remembered"]))["operation"]["id"]
        await until_status(pair.here, op, "succeeded")
    assert op in await past(pair.there)
    assert await past(pair.here) == await past(pair.there)
    await pair.there.admin.delete("/api/operations/history")
    assert await past(pair.here) == []

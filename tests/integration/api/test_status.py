"""A node's status is the truth as far as this frontend could hear it, and never more than that."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from remuda.host.folder import DataFolder
from remuda.host.ports import free_port
from tests.support.clocks import AheadClock
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.nats_servers import HOST, plain_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

UNHEALTHY_AFTER = timedelta(milliseconds=400)
OFFLINE_AFTER = timedelta(seconds=2)


@pytest.fixture(scope="module", params=[True, False], ids=["approved", "pending"])
async def quick_frontend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LiveFrontend]:
    async with live_frontend(
        tmp_path_factory.mktemp("quick"),
        auto_approve=request.param,
        node_unhealthy_after=UNHEALTHY_AFTER,
        node_offline_after=OFFLINE_AFTER,
    ) as live:
        yield live


@pytest.mark.parametrize("quick_frontend", [True], indirect=True)
async def test_silence_turns_into_unhealthy_then_offline_until_the_node_is_heard(
    quick_frontend: LiveFrontend,
) -> None:
    node = await quick_frontend.register()
    seen = [node["status"]]

    async def offline() -> bool:
        status = await quick_frontend.status(node["id"])
        seen.extend([status] if status != seen[-1] else [])
        return status == "offline"

    await wait_until(offline)
    assert seen == ["healthy", "unhealthy", "offline"]
    shown = await quick_frontend.node(node["id"])
    assert (shown["remuda"]["reachability"], "no heartbeat for" in shown["remuda"]["reasons"][0]) == (
        "gone",
        True,
    )
    await quick_frontend.heartbeat(node["id"])
    assert await quick_frontend.status(node["id"]) == "healthy"


@pytest.mark.parametrize("quick_frontend", [False], indirect=True)
async def test_a_pending_node_that_was_silent_is_still_pending_when_it_returns(
    quick_frontend: LiveFrontend,
) -> None:
    node = await quick_frontend.register()

    async def gone() -> bool:
        shown = await quick_frontend.node(node["id"])
        assert shown["status"] == "pending"
        return bool(shown["remuda"]["reachability"] == "gone")

    await wait_until(gone)
    await quick_frontend.heartbeat(node["id"])
    assert await quick_frontend.status(node["id"]) == "pending"
    again = await quick_frontend.register(node["name"])
    assert (again["status"], "nats_jwt" in again) == ("pending", False)


async def test_a_frontend_without_its_bus_judges_nobody(tmp_path: Path) -> None:
    clock, port = AheadClock(), free_port(HOST)
    async with (
        plain_server(tmp_path, port=port) as bus,
        live_frontend(tmp_path, clock=clock, nats_url=bus.url) as frontend,
    ):
        node = await frontend.register()
        bus.kill()
        await wait_until(lambda: unready(frontend), within=30)
        clock.ahead = timedelta(hours=1)
        assert await frontend.status(node["id"]) == "healthy"
        async with plain_server(tmp_path, port=port):
            await wait_until(lambda: ready(frontend), within=30)
            assert await frontend.status(node["id"]) == "healthy"
            await frontend.heartbeat(node["id"])
            assert await frontend.status(node["id"]) == "healthy"


async def test_a_frontend_that_cannot_write_to_its_database_judges_nobody(tmp_path: Path) -> None:
    clock = AheadClock()
    async with live_frontend(tmp_path, clock=clock) as frontend:
        node = await frontend.register()
        with closing(sqlite3.connect(DataFolder(tmp_path).database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            clock.ahead = timedelta(hours=1)
            assert await frontend.status(node["id"]) == "healthy"
        await frontend.register()
        assert await frontend.status(node["id"]) == "healthy"


async def test_time_in_which_no_frontend_ran_is_nobodys_silence(tmp_path: Path) -> None:
    clock = AheadClock()
    async with live_frontend(tmp_path, clock=clock) as before:
        node = await before.register()
    clock.ahead = timedelta(days=1)
    async with live_frontend(tmp_path, clock=clock) as after:
        assert await after.status(node["id"]) == "healthy"


async def ready(frontend: LiveFrontend) -> bool:
    return (await frontend.anyone.get("/readyz")).status_code == 200


async def unready(frontend: LiveFrontend) -> bool:
    return (await frontend.anyone.get("/readyz")).status_code == 503

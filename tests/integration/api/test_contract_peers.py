"""Workers that know only LocalAI's contract, on the shared token: who they are after a restart, a credential
refresh and a move, and what others under their name get. Real sockets, a real database, a real bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest
from pydantic import SecretStr

from remuda.bus.auth import UserJwt, fixed
from tests.integration.api.test_identity import events, registering
from tests.peers.localai_worker import LocalAiWorker, WorkerOptions
from tests.support.frontends import Json, LiveFrontend, live_frontend
from tests.support.nats_servers import CLOCK, connected, connecting, until_down, until_shut_out
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

BRIEF = timedelta(seconds=6)  # To register and connect takes seconds on a busy machine.
HOME, ELSEWHERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
async def brief(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    """It gives out bus credentials that are soon over."""
    async with live_frontend(tmp_path_factory.mktemp("brief"), nats_worker_jwt_ttl=BRIEF) as live:
        yield live


async def bus_of(frontend: LiveFrontend) -> str:
    """Where the bus is: peers are told by their settings."""
    return str((await frontend.register())["nats_url"])


@asynccontextmanager
async def peer(
    frontend: LiveFrontend, name: str, *, available_ram: int = 8 << 30
) -> AsyncIterator[LocalAiWorker]:
    """One that is in, and dies without a farewell when the block ends."""
    started = LocalAiWorker(await options_of(frontend, name, available_ram=available_ram))
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(30):
            await tasks.start(started.run)
        yield started
        tasks.cancel_scope.cancel()


async def options_of(
    frontend: LiveFrontend, name: str, source: str = HOME, *, available_ram: int = 8 << 30
) -> WorkerOptions:
    return WorkerOptions(
        frontend.url,
        await bus_of(frontend),
        name,
        token=frontend.token,
        address=f"{source}:50051",
        http_address=f"{source}:50050",
        source=source,
        require_auth=True,
        first_retry_s=0.1,
        available_ram=available_ram,
    )


async def assert_commanded(frontend: LiveFrontend, worker: LocalAiWorker) -> None:
    """What the frontend sends to the node, here that it is removed, reaches this worker."""
    assert (await frontend.admin.delete(f"/api/nodes/{worker.id}")).status_code == 200
    await wait_until(lambda: "stop" in dict(worker.received), what=f"{worker.id} to be told to stop")


async def identity(frontend: LiveFrontend, node_id: str) -> Json:
    shown = await frontend.node(node_id)
    return {
        **{key: shown[key] for key in ("id", "name", "address", "http_address", "labels", "created_at")},
        **{key: shown["remuda"][key] for key in ("boot_id", "source", "identified_by")},
    }


async def test_a_restart_keeps_the_node(frontend: LiveFrontend) -> None:
    async with peer(frontend, "restarted") as first:
        before = await identity(frontend, first.id)
    async with peer(frontend, "restarted", available_ram=7 << 30) as again:
        after = await identity(frontend, again.id)
        await assert_commanded(frontend, again)
    assert after.pop("boot_id") != before.pop("boot_id")
    assert after == before
    assert await events(frontend, "restarted") == ["removed", "restarted", "registered"]


async def test_a_refresh_of_its_credentials_outlives_them_and_is_no_restart(brief: LiveFrontend) -> None:
    async with peer(brief, "refreshed") as worker:
        before = await identity(brief, worker.id)
        expired = CLOCK.now() + BRIEF
        await wait_until(lambda: worker.subscribed >= 2 and CLOCK.now() > expired, within=20)
        assert await identity(brief, worker.id) == before
        await assert_commanded(brief, worker)
    assert await events(brief, "refreshed") == ["removed", "registered"]


async def test_an_attack_from_another_address_on_a_living_node_changes_nothing(
    frontend: LiveFrontend,
) -> None:
    async with peer(frontend, "alive") as holder:
        before = await identity(frontend, holder.id)
        attacker = LocalAiWorker(await options_of(frontend, "alive", ELSEWHERE))
        body = frontend.registration("alive", address=f"{ELSEWHERE}:50051")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attacker.run)  # It asks again and again.
            for _ in range(3):
                refused = await registering(frontend, body, source=ELSEWHERE)
                assert (refused.status_code, "nats_jwt" in refused.text) == (409, False)
            tasks.cancel_scope.cancel()
        assert attacker.registrations == 0
        assert await identity(frontend, holder.id) == before
        assert (await events(frontend, "alive")).count("name_contested") == 1
        await assert_commanded(frontend, holder)


async def test_a_move_to_another_address_needs_a_person_and_ends_the_former_node(
    frontend: LiveFrontend,
) -> None:
    """The same for an attack once the holder is gone: the frontend cannot tell them apart, a person can."""
    former = (await registering(frontend, frontend.registration("moved"))).json()
    await frontend.admin.patch(f"/api/nodes/{former['id']}/labels", json={"room": "attic"})
    login = fixed(UserJwt(former["nats_jwt"], SecretStr(former["nats_user_seed"])))
    async with connected(former["nats_url"], login) as former_bus:
        assert (await frontend.worker.post(f"/api/node/{former['id']}/deregister")).status_code == 200
        moved = LocalAiWorker(await options_of(frontend, "moved", ELSEWHERE))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(moved.run)
            await wait_until(lambda: moved.registrations)
            assert moved.id == "", "it has no credentials yet"
            claim = (await frontend.node(former["id"]))["remuda"]["claim"]
            assert claim["source"] == ELSEWHERE
            approved = await frontend.admin.post(f"/api/nodes/{claim['id']}/approve")
            assert approved.status_code == 200
            await until_shut_out(former_bus)
            await wait_until(lambda: moved.subscribed)
            assert moved.id == claim["id"] != former["id"]
            assert (await frontend.node(moved.id))["labels"]["room"] == "attic"
            await assert_commanded(frontend, moved)
            tasks.cancel_scope.cancel()
    assert (await frontend.admin.get(f"/api/nodes/{former['id']}")).status_code == 404
    async with connecting(former["nats_url"], login) as bus:
        assert "does not accept our credentials" in await until_down(bus)

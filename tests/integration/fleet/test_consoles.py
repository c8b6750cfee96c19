"""Consoles on two frontends of one fleet, on PostgreSQL and NATS: they show the same, and one whose frontend
dies is right again at the other."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import psycopg
import pytest
from anyio import to_thread

from tests.integration.fleet.services import served
from tests.support.event_streams import Console, Json, console
from tests.support.nats_servers import plain_server
from tests.support.plain_http import PLAIN
from tests.support.postgres import postgres_server
from tests.support.processes import Frontend, Ranch, ranch
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.anyio
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Two:
    a: Frontend
    b: Frontend
    token: str
    place: Ranch
    services: dict[str, str]


@pytest.fixture
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    with (
        ranch(folder / "ranch") as place,
        postgres_server() as postgres,
        served(plain_server(folder)) as bus,
    ):
        url = postgres.new_database()
        services = {"REMUDA_DATABASE_URL": url, "REMUDA_NATS_URL": bus.url, "REMUDA_REGISTRATION_TOKEN": ""}
        a, b = (place.frontend(name, **services) for name in ("a", "b"))
        with psycopg.connect(url) as database:
            (found,) = database.execute("SELECT value FROM secrets WHERE name = 'registration_token'")
        yield Two(a, b, str(found[0]), place, services)


@asynccontextmanager
async def client(frontend: Frontend) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=frontend.url, trust_env=False, verify=PLAIN) as made:
        yield made


async def test_both_show_the_same_and_one_that_is_cut_off_is_right_again_at_the_other(two: Two) -> None:
    async with client(two.a) as of_a, client(two.b) as of_b, console(of_b) as at_b:
        async with console(of_a) as at_a:
            for shown in (at_a, at_b):
                await shown.until(lambda one: one.events)
            node_id = with_memory(two, "seen")
            for shown in (at_a, at_b):
                await shown.until(lambda one: "seen" in one.named("nodes"))
            two.b.ask("PATCH", f"/api/nodes/{node_id}/labels", {"rack": "7"}).raise_for_status()
            for shown in (at_a, at_b):
                await shown.until(labelled)
            assert at_a.shown == at_b.shown
            both = await to_thread.run_sync(
                lambda: wait_until_blocking(lambda: agreed(two, node_id), within=40)
            )
            assert both["series"]["used_ram"][-1] == 3 * GIB
            assert both["limits"]["used_ram"][-1] == 16 * GIB
            assert both["series"]["in_flight"][-1] == 0
            assert two.b.get("/api/series")["series"]["used_ram"][-1] == 3 * GIB
            two.a.kill()
            await at_a.until(lambda one: one.ended)
        two.b.register("meanwhile", two.token)
        await at_b.until(lambda one: "meanwhile" in one.named("nodes"))
        before = len(at_a.events)
        async with console(of_b, known=at_a):
            await at_a.until(lambda one: len(one.events) > before)
        assert at_a.names[before] == "snapshot"
        assert at_a.shown["nodes"] == at_b.shown["nodes"]


def labelled(shown: Console) -> bool:
    node = shown.named("nodes").get("seen", {})
    return node.get("status") == "healthy" and "rack" in node.get("labels", {})


@pytest.mark.long
def test_one_that_starts_later_has_the_last_hour_of_the_others(two: Two) -> None:
    node_id = with_memory(two, "sized")
    before = wait_until_blocking(lambda: agreed(two, node_id), within=40)
    late = two.place.frontend("late", **two.services)
    path = f"/api/nodes/{node_id}/series"
    wait_until_blocking(lambda: before["times"][0] in late.get(path)["times"], within=60)
    assert late.get(path)["times"][0] <= before["times"][0]
    assert late.get(path)["series"]["used_ram"][0] == 3 * GIB


def with_memory(two: Two, name: str) -> str:
    sizes = {"total_ram": 16 * GIB, "available_ram": 13 * GIB}
    body = {"name": name, "address": "127.0.0.1:50051", "token": two.token, **sizes}
    reply = two.a.ask("POST", "/api/node/register", body, key=two.token).raise_for_status()
    two.b.ask("POST", f"/api/nodes/{reply.json()['id']}/approve").raise_for_status()
    return str(reply.json()["id"])


def agreed(two: Two, node_id: str) -> Json | None:
    """What both show, as soon as it is something, and the same."""
    a, b = (frontend.get(f"/api/nodes/{node_id}/series") for frontend in (two.a, two.b))
    return a if a["times"] and a == b else None

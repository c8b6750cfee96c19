"""A worker that knows only LocalAI's contract is a node like any other."""

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from remuda.bus.auth import UserJwt, fixed
from tests.support.nats_servers import connected, connecting, until_down, until_shut_out
from tests.support.processes import TOKEN, Frontend, Process, Ranch, ranch
from tests.support.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranch]:
    with ranch(tmp_path_factory.mktemp("localai") / "ranch") as started:
        yield started


@pytest.fixture(scope="module")
def quick(place: Ranch) -> Frontend:
    """Quick to judge."""
    return place.up("quick", "--node-unhealthy-after", "2s", "--node-offline-after", "4s")


def start_worker(place: Ranch, up: Frontend, name: str) -> Process:
    bus = f"nats://127.0.0.1:{up.bus_port}"
    return place.program(
        "tests.peers.localai_worker",
        *("--register-to", up.url, "--nats-url", bus, "--name", name),
        *("--require-auth", "--heartbeat-s", "0.5"),
        LOCALAI_REGISTRATION_TOKEN=TOKEN,
    )


def test_it_is_healthy_without_reports_and_offline_once_killed(quick: Frontend, place: Ranch) -> None:
    worker = start_worker(place, quick, "peer")
    node = quick.wait_for("peer")
    assert node["remuda"]["version"] == ""
    registered = node["last_heartbeat"]
    wait_until_blocking(lambda: quick.nodes()["peer"]["last_heartbeat"] > registered)
    worker.kill()
    quick.wait_for("peer", "unhealthy")
    assert "no heartbeat for" in quick.nodes()["peer"]["remuda"]["reasons"][0]
    quick.wait_for("peer", "offline")
    assert quick.statuses()["quick"] == "healthy"


def test_removing_it_stops_it(quick: Frontend, place: Ranch) -> None:
    worker = start_worker(place, quick, "removed")
    node = quick.wait_for("removed")
    quick.ask("DELETE", f"/api/nodes/{node['id']}").raise_for_status()
    assert worker.wait() == 0
    assert "removed" not in quick.nodes()
    assert quick.history("removed")[-1] == "removed"


@pytest.mark.anyio
async def test_removing_a_node_shuts_its_bus_credentials_out(quick: Frontend) -> None:
    reply = quick.register("shut-out")
    url = f"nats://127.0.0.1:{quick.bus_port}"
    login = fixed(UserJwt(reply["nats_jwt"], SecretStr(reply["nats_user_seed"])))
    async with connected(url, login) as bus:
        quick.ask("DELETE", f"/api/nodes/{reply['id']}").raise_for_status()
        await until_shut_out(bus)
    async with connecting(url, login) as bus:
        assert "does not accept our credentials" in await until_down(bus)

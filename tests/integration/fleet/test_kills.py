"""kill -9 of any part, at any moment: the fleet converges by itself, and everybody is who they were."""

import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import islice

import httpx
import psutil
import pytest

from remuda.core.errors import Misconfigured
from remuda.host.ports import listen
from tests.integration.fleet.chaos import Herd, rampage
from tests.support.processes import Frontend, Ranch, ranch
from tests.support.waiting import wait_until_blocking


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def register(frontend: Frontend, name: str) -> tuple[str, str]:
    """The name and the id it was given; an empty one where no answer came."""
    try:
        return name, frontend.register(name)["id"]
    except httpx.TransportError:
        return name, ""


@pytest.fixture(scope="module")
def herd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Herd]:
    """Hurt by every test, and whole again before the next."""
    with ranch(tmp_path_factory.mktemp("kills") / "ranch") as place:
        yield Herd(place)


def test_killed_worker_is_started_again_as_the_same_node(herd: Herd) -> None:
    before = herd.up.nodes()["up"]
    herd.up.ask("POST", f"/api/nodes/{before['id']}/drain").raise_for_status()
    herd.up.child("worker").kill()

    def restarted() -> bool:
        boot: str = herd.up.nodes()["up"]["remuda"]["boot_id"]
        return boot != str(before["remuda"]["boot_id"])

    wait_until_blocking(restarted, within=30)
    after = herd.up.nodes()["up"]
    assert after["id"] == before["id"]
    assert after["remuda"]["approved"]
    assert after["labels"]["brand"] == "up"
    assert after["status"] == "draining"
    herd.up.ask("POST", f"/api/nodes/{before['id']}/resume").raise_for_status()
    herd.settle()


def test_killed_bus_comes_back_and_nobody_is_thought_ill_of(herd: Herd) -> None:
    before = len(herd.troubles())
    for _ in range(2):
        herd.strikes["the bus"]()
        herd.settle()
    assert herd.troubles()[before:] == []


def test_killed_up_takes_its_children_along_and_returns_as_it_was(herd: Herd) -> None:
    before = len(herd.troubles())
    up, bus_port = herd.up, herd.up.bus_port
    children = [up.child("nats-server"), up.child("worker")]
    up.kill()
    wait_until_blocking(lambda: not any(alive(child) for child in children))
    herd.restart_up()
    herd.settle()
    assert herd.up.bus_port == bus_port
    assert herd.troubles()[before:] == []


def test_killed_at_any_stage_of_its_first_start_it_starts_well_afterwards(place: Ranch) -> None:
    def reached(up: Frontend, stage: str) -> bool:
        return (up.data_dir / stage).exists() or bool(up.events(stage))

    for stage in ("remuda.db", "nats/server.json", "node_registered"):
        up = place.begin_up()
        wait_until_blocking(partial(reached, up, stage), within=30)
        up.kill()
    up = place.up()
    assert "This node   up: healthy" in up.shown
    assert list(up.nodes()) == ["up"]


def test_workers_follow_a_bus_that_had_to_move(herd: Herd) -> None:
    port, bus = herd.up.bus_port, herd.up.child("nats-server")
    herd.up.kill()
    wait_until_blocking(lambda: not alive(bus))
    with wait_until_blocking(partial(listener, port), what=f"port {port} to be free"):
        herd.restart_up()
    herd.settle()
    assert herd.up.bus_port != port
    assert herd.joined.events("bus_connected")[-1]["servers"].endswith(f":{herd.up.bus_port}")


def listener(port: int) -> socket.socket | None:
    """None while a connection of another process happens to have the port."""
    with suppress(Misconfigured):
        return listen("127.0.0.1", port)
    return None


def test_frontend_killed_amid_registrations_has_each_node_once(place: Ranch) -> None:
    frontend = place.frontend("frontend")
    names = [f"node-{number}" for number in range(15)]  # One address may have 16 that wait.
    with ThreadPoolExecutor(len(names)) as storm:
        answers = [storm.submit(register, frontend, name) for name in names * 4]
        wait_until_blocking(lambda: any(answer.done() for answer in answers), within=30)
        frontend.kill()
    told = [answer.result() for answer in answers]
    ids = {name: node_id for name, node_id in told if node_id}
    assert all(node_id in (ids[name], "") for name, node_id in told if name in ids)
    again = place.frontend("frontend")
    for name in names:
        _, node_id = register(again, name)
        assert node_id == ids.setdefault(name, node_id)
    with closing(sqlite3.connect(frontend.data_dir / "remuda.db")) as database:
        assert dict(database.execute("SELECT name, id FROM nodes")) == ids


@pytest.mark.long
def test_any_order_of_kills_ends_well(herd: Herd) -> None:
    before = len(herd.troubles())
    struck = list(islice(rampage(herd, seed=7), 7))
    herd.settle()
    assert set(struck) == set(herd.strikes)
    assert herd.troubles()[before:] == []

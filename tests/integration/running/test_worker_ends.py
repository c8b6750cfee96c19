"""The worker itself ends, as it should or not at all as it should: what it started does not outlive it."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from remuda.host import descendants
from remuda.host.ports import listen
from tests.integration.running.light_backend import write_light_backend
from tests.integration.running.rig import HOST, NAME, TOKEN, Desk, alive, base_port
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.bad_backends import Bad, grandchildren, write_bad_backend
from tests.support.nats_servers import PlainServer, connected
from tests.support.processes import Ranch, Worker, ranch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

DATA = "worker"


@dataclass
class Remote(Desk):
    """A worker in a process of its own, which can be started again in the same folder."""

    place: Ranch
    port: int

    def backend(self, name: str) -> Path:
        return self.place.folder / DATA / "worker" / "backends" / name

    @property
    def owner(self) -> str:
        return str(self.frontend.node(NAME).registrations[-1]["machine_id"])

    def left(self) -> list[descendants.Seen]:
        return alive(self.owner) if self.frontend.nodes else []

    async def start(self) -> Worker:
        """Until it has told of itself; what comes late of its former life does not count."""
        former = set(self._boots("register"))
        worker = self.place.worker(
            DATA,
            REMUDA_REGISTER_TO=self.frontend.url,
            REMUDA_NODE_NAME=NAME,
            REMUDA_ADDR=f"{HOST}:{self.port}",
        )
        await wait_until(lambda: set(self._boots("heartbeat")) - former or not worker.running, within=30)
        assert worker.running, worker.log
        return worker

    def _boots(self, action: str) -> Iterator[str]:
        """The lives of the worker that called so."""
        for call in self.frontend.of(action):
            body: Any = call.body
            yield body["remuda" if action == "register" else "report"]["boot_id"]


@asynccontextmanager
async def remote(place: Ranch, nats: PlainServer) -> AsyncIterator[Remote]:
    async with LocalAiFrontend(token=TOKEN) as frontend, connected(nats.url) as bus:
        frontend.extra_reply = {"nats_url": nats.url}
        yield Remote(frontend, bus, place, base_port())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Ranch]:
    with ranch(tmp_path / "ranch") as started:
        yield started


@pytest.fixture
async def far(place: Ranch, nats: PlainServer) -> AsyncIterator[Remote]:
    async with remote(place, nats) as made:
        write_light_backend(made.backend("light"))
        yield made
        for seen in made.left():
            os.kill(seen.pid, signal.SIGKILL)


def reaper_of(worker: Worker) -> psutil.Process:
    children = psutil.Process(worker.pid).children()
    return next(child for child in children if descendants.__file__ in child.cmdline())


async def assert_everything_is_free_again(far: Remote) -> None:
    """In a new life: the key, the port, and the backend."""
    assert (await far.ask("models.running"))["models"] == []
    for replica in range(2):
        await far.installed("light", model_id="m", replica_index=replica)
    assert len(far.left()) == 2


async def test_a_killed_worker_takes_its_backends_with_it_and_starts_anew(far: Remote) -> None:
    for kind in (Bad.FORKS, Bad.STARTS_SLOWLY):
        write_bad_backend(far.backend(kind), kind)
    worker = await far.start()
    first = await far.installed("light", model_id="m")
    await far.installed(Bad.FORKS, model_id="f")
    await far.tell("backend.install", backend=Bad.STARTS_SLOWLY, model_id="s")
    await wait_until(lambda: len(far.left()) == 5)

    worker.kill()
    await wait_until(lambda: not far.left(), within=20, what="an end of all it started")
    listen(HOST, int(first["address"].rpartition(":")[2])).close()

    await far.start()
    await assert_everything_is_free_again(far)


async def test_a_worker_and_its_backend_killed_together_start_anew(far: Remote) -> None:
    worker = await far.start()
    await far.installed("light", model_id="m")
    for seen in far.left():
        os.kill(seen.pid, signal.SIGKILL)
    worker.kill()
    await wait_until(lambda: not far.left(), within=20)

    await far.start()
    await assert_everything_is_free_again(far)


async def test_what_outlived_worker_and_reaper_is_ended_by_the_next_life(far: Remote) -> None:
    folder = write_bad_backend(far.backend(Bad.FORKS), Bad.FORKS).parent
    worker = await far.start()
    await far.installed(Bad.FORKS, model_id="f")
    runaway = grandchildren(folder)[1]
    reaper = reaper_of(worker)
    worker.send(signal.SIGSTOP)  # So that it starts no other reaper.
    reaper.kill()
    worker.kill()
    assert runaway in {seen.pid for seen in far.left()}

    again = await far.start()

    assert not psutil.pid_exists(runaway) or psutil.Process(runaway).status() == psutil.STATUS_ZOMBIE
    assert runaway in {event["pid"] for event in again.events("survivor_found")}
    await assert_everything_is_free_again(far)


async def test_an_orderly_stop_leaves_nothing(far: Remote) -> None:
    write_bad_backend(far.backend(Bad.FORKS), Bad.FORKS)
    worker = await far.start()
    for backend, model in (("light", "m"), ("echo", "e"), (Bad.FORKS, "f")):
        await far.installed(backend, model_id=model)
    reaper = reaper_of(worker)

    worker.send(signal.SIGTERM)
    await wait_until(lambda: not worker.running, within=60, what="the end of the worker")

    assert worker.wait() == 0
    assert far.left() == []
    assert not reaper.is_running()
    assert far.place.processes(DATA) == []
    assert far.frontend.actions[-1] == "deregister"
    assert worker.events("backend_left_behind") == []


async def test_a_worker_says_nothing_on_stderr_but_its_log(far: Remote) -> None:
    worker = await far.start()
    async with anyio.create_task_group() as tasks:
        for model in range(8):
            tasks.start_soon(partial(far.installed, "light", model_id=f"m{model}"))
    assert [line for line in worker.log.splitlines() if not line.startswith("{")] == []

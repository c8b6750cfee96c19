"""A worker that runs real processes, and the commands of a frontend that knows nothing but the contract."""

import ctypes
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
from pydantic import SecretStr

from remuda.bus.client import DEFAULT_TIMEOUTS as BUS_TIMEOUTS
from remuda.bus.client import Bus
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import Misconfigured
from remuda.core.ids import BootId, MachineId
from remuda.gallery.fetch import Fetcher, open_fetcher
from remuda.gallery.model import Gallery, MachineProfile
from remuda.gallery.sources import REMUDA, Cache, Sources
from remuda.host.descendants import Seen, everyone
from remuda.host.ports import listen
from remuda.host.restarts import RestartPolicy
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.model import Platform
from remuda.wire.nodes import Report
from remuda.worker.addresses import AddressSettings
from remuda.worker.backend_runtime import BackendRuntime, RuntimeSettings
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.layout import DepotLayout
from remuda.worker.depot.versions import try_lock
from remuda.worker.enrolment import WorkerPhase
from remuda.worker.identity import Introduction
from remuda.worker.processes.model import BackendTimeouts
from remuda.worker.service import MakeRoom, Site, Worker, WorkerConfig
from tests.integration.worker.rig import FixedHardware, Impatient, opening_bus, wait_for_phase
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.forked_tests import PROCESS, PROCESSES
from tests.support.nats_servers import PlainServer, connected
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until

TOKEN = "token-of-the-whole-fleet"
NAME = "gpu-1"
ASK_S = timedelta(seconds=60)
HOST = "127.0.0.1"
_PR_SET_CHILD_SUBREAPER = 36
_PORTS_TAKEN_MOST = 8  # By most tests.
_FIRST_PORT, _PORTS_EACH, _PLACES = 10_001, 100, 216
_TURNS = count(int(1000 * SystemEntropy().fraction()))
CLOCK = SystemClock()

# Real programs start with what is left of two cores; everything else is quick.
QUICK = BackendTimeouts(
    start=timedelta(seconds=30),
    call=timedelta(seconds=1),
    watch=timedelta(milliseconds=200),
    free=timedelta(milliseconds=500),
    grace=timedelta(seconds=1),
    restarts=RestartPolicy(
        first=timedelta(milliseconds=100),
        most=timedelta(seconds=1),
        healthy_after=timedelta(minutes=1),
        give_up_after=4,
    ),
)


def alive(owner: str) -> list[Seen]:
    """Every process that has not ended of those which this worker, in any of its lives, or they started."""
    return [seen for seen in everyone() if seen.mark and seen.mark.owner == owner and not seen.zombie]


@dataclass
class Yard:
    """Where a worker keeps its things, and how it differs from others."""

    folder: Path
    timeouts: BackendTimeouts = QUICK
    ports_count: int = 60
    owner: MachineId = field(default_factory=lambda: MachineId(SystemEntropy().uuid()))
    boot: BootId = field(default_factory=lambda: BootId(SystemEntropy().uuid()))
    offered: dict[str, Path | str] = field(default_factory=dict)

    @property
    def places(self) -> DepotLayout:
        return DepotLayout(self.folder / "backends", self.folder / "system", self.folder / "blobs")

    def backend(self, name: str) -> Path:
        """The folder of an installed backend."""
        return self.places.installed(name)

    def offer(self, **uris: Path | str) -> None:
        """Put backends into the machine's own gallery."""
        self.offered |= uris
        entries = (f"- name: {name}\n  uri: {uri}\n" for name, uri in self.offered.items())
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "gallery.yaml").write_text("".join(entries) or "[]\n")

    def alive(self) -> list[Seen]:
        return alive(self.owner)

    def assert_tidy(self) -> None:
        """No process, no file that was on its way, and nobody holds a lock."""
        assert self.alive() == []
        places = self.places
        assert {kind: places.names_in(kind) for kind in ("staging", "ready", "trash")} == {
            "staging": [],
            "ready": [],
            "trash": [],
        }
        for name in places.names_in("locks"):
            with try_lock(places.lock(name)) as ours:
                assert ours, f"somebody holds the lock of {name}"


@dataclass
class Desk:
    """What a frontend says to the worker called NAME, and hears of it."""

    frontend: LocalAiFrontend
    bus: Bus

    @property
    def node(self) -> str:
        return self.frontend.node(NAME).id

    async def ask(self, word: str, **document: object) -> Any:
        """A command and its reply, such as `ask("backend.install", backend="echo")`."""
        payload = json.dumps(document).encode()
        return json.loads(await self.bus.request(f"nodes.{self.node}.{word}", payload, ASK_S))

    async def tell(self, word: str, **document: object) -> None:
        """A command that nobody answers."""
        await self.bus.publish(f"nodes.{self.node}.{word}", json.dumps(document).encode())

    async def install(self, backend: str, **more: object) -> Any:
        return await self.ask("backend.install", backend=backend, **more)

    async def installed(self, backend: str, **more: object) -> Any:
        """The reply of an install that has to succeed."""
        reply = await self.install(backend, **more)
        assert reply["success"], reply["error"]
        return reply

    def replica(self, model: str) -> Any:
        """As the newest heartbeat has it; None where it has not."""
        rows = self.report()["replicas"]
        return next((row for row in rows if row["model_id"] == model), None)

    def report(self) -> Any:
        """The newest one."""
        heartbeats: Any = self.frontend.node(NAME).heartbeats
        empty: dict[str, Any] = {"installed": [], "replicas": [], "work": []}
        return empty | (heartbeats[-1]["report"] if heartbeats else {})

    async def until_replica(self, model: str, fits: Callable[[Any], bool], *, within: float = 20.0) -> Any:
        """The replica in the first report in which it is as wanted."""

        def told() -> Any:
            row = self.replica(model)
            return row if row is not None and fits(row) else None

        return await wait_until(told, within=within, what=f"a report about {model}")

    async def until_ready(self, model: str, *, restarts: int = 0) -> Any:
        return await self.until_replica(
            model, lambda row: row["state"] == "ready" and row.get("restarts", 0) == restarts
        )


@dataclass
class Rig(Desk):
    """A worker at work. `accounts` are what it had to tell, each time something had changed."""

    yard: Yard
    worker: Worker
    room: BackendRuntime
    http: httpx.AsyncClient  # To the worker's own server; brings nothing.
    accounts: list[Report]

    async def refused(self, backend: str, **more: object) -> str:
        """The reason for which an install fails, after which nothing of it is left."""
        reply = await self.install(backend, **more)
        assert not reply["success"]
        assert self.yard.alive() == []
        assert (await self.ask("models.running"))["models"] == []
        return str(reply["error"])

    def process(self, model: str) -> psutil.Process:
        """What was started for the model, by the instance that the newest account tells."""
        [instance] = [row.instance for row in self.room.report().replicas if row.model_id == model]
        leaders = [seen for seen in self.yard.alive() if seen.mark and seen.mark.instance == instance]
        [leader] = [seen for seen in leaders if seen.session == seen.pid and seen.parent == os.getpid()]
        return psutil.Process(leader.pid)


@asynccontextmanager
async def working(yard: Yard, nats: PlainServer) -> AsyncIterator[Rig]:
    """A worker that takes commands. When the block ends it stops in good order and leaves nothing."""
    yard.offer()
    try:
        async with (
            LocalAiFrontend(token=TOKEN) as frontend,
            open_client(CLOCK, SystemEntropy()) as client,
            open_fetcher() as fetcher,
            connected(nats.url) as bus,
            anyio.create_task_group() as tasks,
        ):
            frontend.extra_reply = {"nats_url": nats.url}
            rooms: list[BackendRuntime] = []
            accounts: list[Report] = []

            def make_room(site: Site) -> BackendRuntime:
                def changed() -> None:
                    accounts.append(rooms[0].report())
                    site.changed()

                rooms.append(_room(yard, replace(site, changed=changed), client, fetcher))
                return rooms[0]

            worker = _worker(yard, frontend.url, make_room)
            await tasks.start(worker.run)
            await wait_for_phase(worker, WorkerPhase.READY)
            server = frontend.node(NAME).registrations[0]["http_address"]
            async with httpx.AsyncClient(
                base_url=f"http://{server}", trust_env=False, timeout=30, verify=PLAIN
            ) as http:
                yield Rig(frontend, bus, yard, worker, rooms[0], http, accounts)
            worker.stop("the test is over")
    finally:
        _no_longer_adopt()
    yard.assert_tidy()


def base_port() -> int:
    """The first of a hundred ports that no system hands out to whoever asks for any, nor another process of
    tests that runs beside this one. Those that a worker takes first are not closing connections of an earlier
    test either: such a port can be listened on, and yet not be bound by a program that does not insist."""
    process = int(os.environ.get(PROCESS, "0"))
    places = _PLACES // int(os.environ.get(PROCESSES, "1"))
    for turn in _TURNS:  # Those that were in use longest ago come first: a connection closes for a minute.
        base = _FIRST_PORT + _PORTS_EACH * (places * process + turn % places)
        with suppress(Misconfigured):
            listen(HOST, base - 1).close()
            if all(_untouched(port) for port in range(base, base + _PORTS_TAKEN_MOST)):
                return base
    raise AssertionError("turns do not end")


def _untouched(port: int) -> bool:
    with socket.socket() as probe:  # Without SO_REUSEADDR, which our servers set.
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _worker(yard: Yard, frontend_url: str, make_room: MakeRoom) -> Worker:
    introduction = Introduction(name=NAME, machine_id=yard.owner, boot_id=yard.boot, version="0.1.0")
    config = WorkerConfig(
        frontend_url=frontend_url,
        token=SecretStr(TOKEN),
        introduction=introduction,
        heartbeat_interval=timedelta(hours=1),  # Those that come have a reason.
        addresses=AddressSettings(addr=f"{HOST}:{base_port()}"),
    )
    return Worker(
        config,
        opening_bus(BUS_TIMEOUTS),
        FixedHardware(),
        clock=CLOCK,
        entropy=Impatient(),
        make_room=make_room,
    )


def _room(yard: Yard, site: Site, client: RegistryClient, fetcher: Fetcher) -> BackendRuntime:
    own = Gallery(name="own", url=f"file://{yard.folder / 'gallery.yaml'}")

    def sources(galleries: tuple[Gallery, ...]) -> Sources:
        return Sources(galleries, fetcher=fetcher, cache=Cache(yard.folder / "cache"), clock=CLOCK)

    async def machine() -> MachineProfile:
        return MachineProfile("linux", "amd64", "default", "", 0)

    first = site.listening.base_port
    settings = RuntimeSettings(
        owner=yard.owner,
        boot=yard.boot,
        tokens=site.tokens,
        models=yard.folder / "models",
        logs=yard.folder / "logs",
        ports=range(first, first + yard.ports_count),
        bind=HOST,
        environ=os.environ,
        secrets=(TOKEN,),
        timeouts=yard.timeouts,
    )
    return BackendRuntime(
        settings,
        Depot(yard.places, CLOCK, client, Platform("linux", "amd64")),
        sources((REMUDA, own)),
        sources,
        machine,
        reached_at=site.reached_at,
        changed=site.changed,
        deliver=site.deliver,
        clock=CLOCK,
        entropy=SystemEntropy(),
    )


def _no_longer_adopt() -> None:
    """A worker's process takes in orphans; the tests that follow in this one should not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

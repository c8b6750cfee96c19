"""Two frontends, PostgreSQL, a bus, a registry and workers: real processes, each behind links that fail."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import anyio
import httpx
import psutil
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from remuda.host.folder import DataFolder
from remuda.host.ports import free_port
from tests.integration.chaos.services import HOST, nats_program, registry_program, web_server
from tests.integration.chaos.wares import Wares
from tests.support import hasty
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.images import Pusher
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.processes import Frontend, Json, Process, Ranch, Worker
from tests.support.waiting import wait_until_blocking

T = TypeVar("T")
BACKENDS: Final = ("alpha", "beta")
FINAL: Final = frozenset({"succeeded", "failed", "skipped", "cancelled"})
OFFLINE_AFTER: Final = "8s"
_READY_S: Final = 90.0


class Link:
    """A way between two of them that can be cut. Its proxy runs in a thread that all links share."""

    def __init__(self, portal: BlockingPortal, proxy: FaultProxy) -> None:
        self._portal, self._proxy = portal, proxy

    @property
    def port(self) -> int:
        return self._proxy.port

    def cut(self) -> None:
        """Nothing arrives any more, while connections stay open."""
        self._portal.call(self._proxy.stall)

    def mend(self) -> None:
        """What was held back arrives."""
        self._portal.call(self._proxy.resume)

    def renew(self) -> None:
        """What was held back is lost with its connections; new ones are taken."""
        self._portal.call(self._proxy.reset)
        self._portal.call(self._proxy.resume)

    def thin(self, bytes_per_s: float) -> None:
        self._portal.call(self._proxy.slow, 0.0, bytes_per_s)


class Breakable(Protocol):
    """Whatever runs, and can be hurt. Started again it is as before, less what it had not written down."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


@dataclass
class Machine:
    """Where a frontend or a worker runs, with its links. It may live several lives."""

    name: str
    links: dict[str, Link]
    begin: Callable[["Machine"], Process]
    port: int = 0
    lives: list[Process] = field(default_factory=list)

    @property
    def process(self) -> Process:
        return self.lives[-1]

    def start(self) -> None:
        self.lives.append(self.begin(self))

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send(signal.SIGCONT)


class Corral:
    def __init__(
        self,
        place: Ranch,
        services: Path,
        stack: ExitStack,
        workers: int,
        galleries: Sequence[Json] = (),
        offline_after: str = OFFLINE_AFTER,
    ) -> None:
        self.place = place
        self._offline_after = offline_after
        self._galleries = galleries
        self._stack = stack
        self._portal = stack.enter_context(start_blocking_portal("asyncio"))
        (services / "web").mkdir(parents=True)
        self.postgres: PostgresServer = self._open(postgres_server())
        self.database = self.postgres.new_database()
        self.bus, self._bus_port = self._open(nats_program(services))
        self.registry, registry_port = self._open(registry_program(services))
        self.registry_link = self._link(registry_port)
        pusher = Pusher(f"http://{HOST}:{registry_port}")
        self.wares = Wares(pusher, f"{HOST}:{self.registry_link.port}")
        (services / "web/index.yaml").write_text(self.wares.gallery(BACKENDS))
        self._gallery = f"{self._open(web_server(services / 'web'))}/index.yaml"
        self.frontends = [self._frontend_machine(name) for name in ("a", "b")]
        self.workers = [self._worker_machine(number) for number in range(workers)]
        for machine in self.frontends:
            machine.start()
        self._wait_for_frontends()
        for machine in self.workers:
            machine.start()
        self.wait_until_well()

    @property
    def machines(self) -> list[Machine]:
        return [*self.frontends, *self.workers]

    @property
    def services(self) -> list[tuple[str, Breakable, list[Link]]]:
        """What the machines depend on, with all ways to it."""
        return [
            ("bus", self.bus, [machine.links["bus"] for machine in self.machines]),
            ("database", self.postgres, [machine.links["database"] for machine in self.frontends]),
            ("registry", self.registry, [self.registry_link]),
        ]

    @property
    def frontend(self) -> Frontend:
        return self.frontend_of(self.frontends[0])

    @property
    def other(self) -> Frontend:
        return self.frontend_of(self.frontends[1])

    def frontend_of(self, machine: Machine) -> Frontend:
        process = machine.process
        assert isinstance(process, Frontend)
        return process

    def answering(self) -> list[Frontend]:
        """The frontends that run and have said where they answer, whether or not they do."""
        found = []
        for frontend in map(self.frontend_of, self.frontends):
            with suppress(OSError):
                told = json.loads(DataFolder(frontend.data_dir).endpoint.read_text())
                if told["pid"] == frontend.pid and frontend.running:
                    frontend.url, frontend.api_key = told["url"], told["api_key"]
                    found.append(frontend)
        return found

    # Starting, once or again.

    def wait_until_well(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Every frontend answers, and every node is healthy."""
        self._wait_for_frontends(meanwhile)

        def well() -> bool:
            meanwhile()
            ended = [machine.process.log for machine in self.workers if not machine.process.running]
            assert not ended, f"a worker ended:\n{ended[0]}"
            with suppress(httpx.HTTPError):
                statuses = self.frontend.statuses()
                return all(statuses.get(machine.name) == "healthy" for machine in self.workers)
            return False

        wait_until_blocking(well, within=_READY_S, what="nodes that are all healthy")

    def _wait_for_frontends(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        def all_answer() -> bool:
            meanwhile()
            return len(self.answering()) == len(self.frontends)

        wait_until_blocking(all_answer, within=_READY_S, what="frontends that all answer")

    def _begin_frontend(self, machine: Machine) -> Frontend:
        galleries = [{"name": "chaos", "url": self._gallery}, *self._galleries]
        database = self.database.replace(f":{self.postgres.port}/", f":{machine.links['database'].port}/")
        return self.place.begin_frontend(
            machine.name,
            *("--port", str(machine.port), "--auto-approve"),
            *("--node-unhealthy-after", "4s", "--node-offline-after", self._offline_after),
            program=hasty.__name__,
            REMUDA_NATS_URL=f"nats://{HOST}:{machine.links['bus'].port}",
            REMUDA_DATABASE_URL=database,
            REMUDA_BACKEND_GALLERIES=json.dumps(galleries),
        )

    def _begin_worker(self, machine: Machine) -> Worker:
        return self.place.worker(
            machine.name,
            *("--name", machine.name, "--heartbeat-interval", "500ms"),
            *("--register-to", f"http://{HOST}:{machine.links['frontend'].port}"),
            REMUDA_NATS_URL=f"nats://{HOST}:{machine.links['bus'].port}",
        )

    # What is true, and what is shown.

    def on_disk(self, machine: Machine) -> dict[str, str]:
        """Every installed build's digest, as its folder tells. A meta backend's own only points to one."""
        folder = machine.process.data_dir / "worker/backends"
        told = {file.parent.name: json.loads(file.read_text()) for file in folder.glob("[!.]*/metadata.json")}
        return {name: one.get("digest", "") for name, one in told.items() if "meta_backend_for" not in one}

    def shown(self, frontend: Frontend, machine: Machine) -> dict[str, str]:
        """The same, as an admin sees it."""
        node = frontend.nodes()[machine.name]
        return {one["name"]: one["digest"] for one in frontend.get(f"/api/nodes/{node['id']}/backends") or ()}

    def backend_processes(self) -> list[psutil.Process]:
        """Whatever runs from a folder of installed backends, no matter in which of a worker's lives."""
        found: list[psutil.Process] = []
        for process in self.place.processes():
            with suppress(psutil.Error):
                found += [process] if any("/worker/backends/" in word for word in process.cmdline()) else []
        return found

    # Operations.

    def ask(self, kind: str, backend: str, frontend: Frontend | None = None, **more: Any) -> str:
        """The id of the operation that was begun."""
        body = {"kind": kind, "backend": backend, **more}
        answer = (frontend or self.frontend).ask("POST", "/api/ops", body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["operation"]["id"])

    def operation(self, op: str, frontend: Frontend | None = None) -> Json:
        shown: Json = (frontend or self.frontend).get(f"/api/ops/{op}")
        return shown

    def steps(self, op: str, frontend: Frontend | None = None) -> dict[str, Json]:
        return {step["node_name"]: step for step in self.operation(op, frontend)["steps"]}

    def until_over(self, op: str, within: float = 60.0) -> dict[str, Json]:
        """Its steps, once each has ended."""

        def over() -> dict[str, Json] | None:
            with suppress(httpx.HTTPError):
                steps = self.steps(op)
                return steps if all(step["state"] in FINAL for step in steps.values()) else None
            return None

        try:
            return wait_until_blocking(over, within=within)
        except AssertionError:
            raise AssertionError(f"not over after {within} s: {self.operation(op)}") from None

    # Making.

    def _frontend_machine(self, name: str) -> Machine:
        links = {"bus": self._link(self._bus_port), "database": self._link(self.postgres.port)}
        return Machine(name, links, self._begin_frontend, free_port(HOST))

    def _worker_machine(self, number: int) -> Machine:
        """Every second one knows the second frontend only."""
        frontend = self.frontends[number % len(self.frontends)]
        links = {"bus": self._link(self._bus_port), "frontend": self._link(frontend.port)}
        return Machine(f"node-{number + 1}", links, self._begin_worker)

    def _link(self, port: int) -> Link:
        serving, proxy = self._portal.start_task(_proxy_to, port)
        self._stack.callback(serving.cancel)
        return Link(self._portal, proxy)

    def _open(self, service: AbstractContextManager[T]) -> T:
        return self._stack.enter_context(service)


async def _proxy_to(port: int, *, task_status: TaskStatus[FaultProxy]) -> None:
    """In a task of its own, which wraps no failure but its own."""
    async with fault_proxy(port) as proxy:
        task_status.started(proxy)
        await anyio.sleep_forever()


@contextmanager
def corral(
    folder: Path, workers: int = 2, galleries: Sequence[Json] = (), offline_after: str = OFFLINE_AFTER
) -> Iterator[Corral]:
    """All at work when the block begins; none of it outlives the block."""
    place = Ranch(folder / "ranch")
    with ExitStack() as stack, _cleared(place):
        yield Corral(place, folder / "services", stack, workers, galleries, offline_after)


@contextmanager
def _cleared(place: Ranch) -> Iterator[None]:
    try:
        yield
    finally:
        place.clear()

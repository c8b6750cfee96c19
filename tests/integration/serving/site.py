"""Two frontends on one PostgreSQL and one NATS server, and two workers, each with a folder of its own."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psycopg

from remuda.host.ports import free_port
from tests.integration.fleet.services import served
from tests.integration.serving.asking import replicas, said
from tests.support import hasty
from tests.support.nats_servers import PlainServer, plain_server
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.processes import Frontend, Json, Ranch, Worker, ranch
from tests.support.waiting import wait_until_blocking

HOST = "127.0.0.1"


class Site:
    """Workers `left` and `right` have a label `side` of that value. Whatever dies can be started again."""

    def __init__(
        self,
        place: Ranch,
        postgres: PostgresServer,
        folder: Path,
        stack: ExitStack,
        workers: Mapping[str, tuple[str, ...]] | None = None,
        **environ: str,
    ) -> None:
        self.place, self.postgres = place, postgres
        self._environ = environ  # Of both frontends.
        self._words = workers or {}  # Of workers, more that they are started with.
        self._folder, self._stack = folder, stack
        self._ports = {name: free_port(HOST) for name in ("bus", "a", "b", "c")}
        self.database_url = postgres.new_database()
        self.bus = self.start_bus()
        self.a, self.b = self.start_frontend("a"), self.start_frontend("b")
        self.workers = {side: self.start_worker(side) for side in ("left", "right")}
        for side, worker in self.workers.items():
            worker.wait_for("ready")
            self.b.wait_for(side)

    @property
    def frontends(self) -> tuple[Frontend, Frontend]:
        return self.a, self.b

    def start_bus(self) -> PlainServer:
        return self._stack.enter_context(served(plain_server(self._folder, port=self._ports["bus"])))

    def start_frontend(self, name: str, database_url: str = "") -> Frontend:
        """Where it was before, so that workers find it again."""
        words = ("--port", str(self._ports[name]), "--auto-approve", "--expose-node-header")
        services = {
            "REMUDA_NATS_URL": f"nats://{HOST}:{self._ports['bus']}",
            "REMUDA_DATABASE_URL": database_url or self.database_url,
            **self._environ,
        }
        return self.place.frontend(name, *words, program=hasty.__name__, **services)

    def start_worker(self, side: str) -> Worker:
        """Its backends have ports of their own: usually no other worker is on the machine."""
        ports = ("--addr", f"{HOST}:{free_port(HOST)}", "--http-addr", f"{HOST}:{free_port(HOST)}")
        return self.place.join(
            self.b.url, side, "--labels", f"side={side}", *ports, *self._words.get(side, ())
        )

    def revive(self, side: str) -> None:
        self.workers[side] = self.start_worker(side)
        self.workers[side].wait_for("ready")
        self.b.wait_for(side)

    def frontend_called(self, id: str) -> str:
        """Which of `a` and `b` has this id."""
        ids = {name: (self.place.folder / name / "frontend-id").read_text().strip() for name in ("a", "b")}
        return next(name for name, found in ids.items() if found == id)

    def query(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as database:
            done = database.execute(statement, values)
            return done.fetchall() if done.description else []

    def loads_of(self, model: str) -> list[Json]:
        found: list[Json] = self.a.get("/api/ops?limit=200&dismissed=true")["operations"]
        return [op for op in found if op["kind"] == "load" and op.get("model") == model]

    def works_for(self, op_id: str) -> list[str]:
        """The workers that were told to do something for this operation, once for each time."""
        return [
            side
            for side, worker in self.workers.items()
            for event in worker.events("work_begun")
            if event["op"] == op_id
        ]


@contextmanager
def site(
    folder: Path, workers: Mapping[str, tuple[str, ...]] | None = None, **environ: str
) -> Iterator[Site]:
    with ranch(folder / "ranch") as place, postgres_server() as postgres, ExitStack() as stack:
        yield Site(place, postgres, folder, stack, workers, **environ)


@contextmanager
def at_once(count: int) -> Iterator[ThreadPoolExecutor]:
    """So many callers side by side."""
    with ThreadPoolExecutor(count) as callers:
        yield callers


def add_model(frontend: Frontend, name: str, backend: str, file: str = "", **keys: object) -> None:
    """A model of any backend; without a file the backend finds it by itself."""
    config = {"name": name, "backend": backend, "parameters": {"model": file or name}, **keys}
    answer = frontend.ask("POST", "/api/models", {"config": json.dumps(config)})
    assert answer.status_code == 201, answer.text


def answered(answer: httpx.Response) -> str:
    """What it says; a failure shows what was said instead."""
    assert answer.status_code == 200, answer.text
    return said(answer)


def of_model(frontend: Frontend, model: str) -> list[Json]:
    return [one for one in replicas(frontend) if one["model"] == model]


def wait_for_replicas(frontend: Frontend, model: str, count: int) -> list[Json]:
    """All its replicas, once there are so many and they are loaded."""

    def loaded() -> list[Json] | None:
        found = of_model(frontend, model)
        return found if len(found) == count and all(one["state"] == "loaded" for one in found) else None

    return wait_until_blocking(loaded, within=30, what=f"{count} replicas of {model}")


def wait_until_unloaded(frontend: Frontend, model: str, within: float = 30) -> None:
    wait_until_blocking(lambda: not of_model(frontend, model), within=within, what=f"{model} to be unloaded")

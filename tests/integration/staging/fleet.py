"""A frontend that has files of models, and workers that have none, in processes and folders of their own."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from remuda.host.ports import free_port
from tests.support import hasty
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend, Json, Ranch, Worker, ranch

HOST = "127.0.0.1"


class Fleet:
    """Whatever dies can be started again, where it was."""

    def __init__(self, place: Ranch, **environ: str) -> None:
        """`environ`: of the frontend."""
        self.place = place
        self._environ = environ
        self.port = free_port(HOST)
        self._http_ports: dict[str, int] = {}
        self.other_ports: dict[int, str] = {}  # At which they are reached, too.
        self.frontend = self.start_frontend()
        self.workers: dict[str, Worker] = {}

    @property
    def models(self) -> Path:
        return self.place.folder / "frontend" / "models"

    def start_frontend(self) -> Frontend:
        words = ("--port", str(self.port), "--auto-approve", "--no-distributed-disk-headroom-check")
        self.frontend = self.place.frontend("frontend", *words, program=hasty.__name__, **self._environ)
        return self.frontend

    def start_worker(self, name: str, frontend_url: str = "", reached_at: int = 0) -> None:
        """`reached_at`: the port at which others reach its HTTP server."""
        http = self.http_port(name)
        ports = ("--addr", f"{HOST}:{free_port(HOST)}", "--http-addr", f"{HOST}:{http}")
        told = ("--advertise-http-addr", f"{HOST}:{reached_at}") if reached_at else ()
        words = ("--labels", f"called={name}", *ports, *told)
        self.workers[name] = self.place.join(frontend_url or self.frontend.url, name, *words)

    def http_port(self, worker: str) -> int:
        return self._http_ports.setdefault(worker, free_port(HOST))

    def partial_bytes(self, worker: str) -> int:
        """How much of a file is on its way to it."""
        found = (self.place.folder / worker / "model-downloads" / "partial").glob("*")
        return max((path.stat().st_size for path in found), default=0)

    def wait_for_workers(self) -> None:
        for name, worker in self.workers.items():
            worker.wait_for("ready")
            self.frontend.wait_for(name)

    def put(self, path: str, size: int) -> bytes:
        """A file in the frontend's folder of models."""
        content = hashlib.shake_256(path.encode()).digest(size)
        self.models.mkdir(parents=True, exist_ok=True)
        (self.models / path).write_bytes(content)
        return content

    def add(self, name: str, file: str, worker: str = "", **keys: object) -> None:
        """With a worker: for that one alone."""
        selector = {"selector": {"called": worker}} if worker else {}
        config = {"name": name, "backend": "echo", "parameters": {"model": file}, **selector, **keys}
        answer = self.frontend.ask("POST", "/api/models", {"config": json.dumps(config)})
        assert answer.status_code == 201, answer.text

    def ask_chat(self, model: str) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "one two three"}]}
        url = f"{self.frontend.url}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=120, trust_env=False, verify=PLAIN)

    def chat(self, model: str) -> str:
        answer = self.ask_chat(model)
        assert answer.status_code == 200, answer.text
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content

    def load(self, model: str) -> None:
        self.frontend.ask("POST", f"/api/models/{model}/load").raise_for_status()

    def replicas(self, model: str) -> list[Json]:
        found: list[Json] = self.frontend.get("/api/replicas")["replicas"]
        return [one for one in found if one["model"] == model]

    def loaded(self, model: str) -> list[Json]:
        return [one for one in self.replicas(model) if one["state"] == "loaded"]

    def file(self, worker: str, path: str) -> Path:
        return self.place.folder / worker / "models" / path

    def having(self, path: str) -> list[str]:
        return [name for name in self.workers if self.file(name, path).exists()]

    def sources_of(self, worker: str) -> list[str]:
        """Where it has fetched from, in order: names of workers, or `frontend`."""
        names = {port: name for name, port in self._http_ports.items()} | {self.port: "frontend"}
        names |= self.other_ports
        found = self.workers[worker].events("model_file_fetched_from")
        return [names[int(event["source"].rpartition(":")[2])] for event in found]


@contextmanager
def fleet(folder: Path, workers: Sequence[str], **environ: str) -> Iterator[Fleet]:
    with ranch(folder / "ranch") as place:
        started = Fleet(place, **environ)
        for name in workers:
            started.start_worker(name)
        started.wait_for_workers()
        yield started

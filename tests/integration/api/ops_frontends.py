"""A frontend with a gallery of its own, and nodes that do what the test says."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.peers.localai_worker import JSON, LocalAiWorker, WorkerOptions
from tests.support.frontends import Json, LiveFrontend, live_frontend
from tests.support.waiting import wait_until

INDEX = """
- name: llama-cpp
  alias: llama-cpp
  description: Inference in C and C++
  license: mit
  tags: [text-to-text, LLM]
  capabilities: {default: cpu-llama-cpp, nvidia: cuda12-llama-cpp}
- name: cpu-llama-cpp
  alias: llama-cpp
  uri: 127.0.0.1:1/backends:cpu-llama-cpp
- name: cuda12-llama-cpp
  alias: llama-cpp
  uri: 127.0.0.1:1/backends:cuda12-llama-cpp
- name: vllm
  capabilities: {nvidia: cuda12-vllm}
- name: cuda12-vllm
  uri: 127.0.0.1:1/backends:cuda12-vllm
- name: versioned
  uri: 127.0.0.1:1/backends:versioned
  version: "2.0"
"""


@asynccontextmanager
async def ops_frontend(folder: Path, **settings: Any) -> AsyncIterator[LiveFrontend]:
    index = folder / "index.yaml"
    index.write_text(INDEX)
    galleries = [
        {"name": "mine", "url": index.as_uri()},
        {"name": "remuda", "url": "builtin:gallery"},
    ]
    async with live_frontend(folder / "data", backend_galleries=galleries, **settings) as live:
        yield live


async def our_node(frontend: LiveFrontend, name: str = "", *has: Json, **facts: Any) -> Json:
    """A node of ours that reports what it has, and hears nothing."""
    identity = {"version": "0.1.0", "boot_id": "boot-1"}
    node = await frontend.register(name, remuda=identity, **facts)
    report = {"boot_id": "boot-1", "sequence": 1, "installed": list(has)}
    await frontend.heartbeat(node["id"], report=report)
    return node


class Worker(LocalAiWorker):
    """One of LocalAI's, that lists what the test says it has."""

    def __init__(self, options: WorkerOptions, backends: list[Json]) -> None:
        super().__init__(options)
        self.backends = backends
        self.may_finish = anyio.Event()  # Its installs.
        self.may_finish.set()

    async def _install(self, bus: Client, done: JSON, message: Msg, body: JSON) -> None:
        await self.may_finish.wait()
        await super()._install(bus, done, message, body)

    async def _on(self, bus: Client, verb: str, handle: Any) -> None:
        await super()._on(bus, verb, self._list if verb == "backend.list" else handle)

    async def _list(self, message: Msg, body: JSON) -> None:
        await message.respond(json.dumps({"backends": self.backends}).encode())

    def heard(self, verb: str) -> list[Json]:
        return [body for said, body in self.received if said == verb and isinstance(body, dict)]


@asynccontextmanager
async def localai_worker(
    frontend: LiveFrontend, name: str, *has: Json, install_s: float = 0.0
) -> AsyncIterator[Worker]:
    bus_url = (await frontend.register(name))["nats_url"]
    options = WorkerOptions(
        frontend.url, bus_url, name, token=frontend.token, heartbeat_s=1.0, install_s=install_s
    )
    worker = Worker(options, list(has))
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        yield worker
        tasks.cancel_scope.cancel()


@dataclass
class Stream:
    """Server-sent events as they come in."""

    events: list[Json] = field(default_factory=list)
    comments: int = 0

    async def follow(self, client: httpx.AsyncClient, path: str, place: str = "") -> None:
        headers = {"Last-Event-ID": place} if place else {}
        async with client.stream("GET", path, headers=headers) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            found: Json = {}
            async for line in reply.aiter_lines():
                key, colon, value = line.partition(": ")
                if not line and found:
                    self.events.append(found)
                    found = {}
                elif line.startswith(":"):
                    self.comments += 1
                elif colon:
                    found[key] = json.loads(value) if key == "data" else value

    @property
    def place(self) -> str:
        return next((event["id"] for event in reversed(self.events) if "id" in event), "")

    def ops(self) -> list[Json]:
        return [event["data"] for event in self.events if event["event"] == "op"]


async def now_there(client: httpx.AsyncClient, path: str, place: str = "") -> Stream:
    stream = Stream()
    await stream.follow(client, f"{path}?wait_s=0", place)
    return stream


async def submit(frontend: LiveFrontend, **body: Any) -> Json:
    reply = await frontend.admin.post("/api/ops", json={"kind": "install", **body})
    assert reply.status_code == 202, reply.text
    answered: Json = reply.json()
    return answered


async def operation(frontend: LiveFrontend, op: str) -> Json:
    reply = await frontend.admin.get(f"/api/ops/{op}")
    assert reply.status_code == 200, reply.text
    shown: Json = reply.json()
    return shown


async def until_status(frontend: LiveFrontend, op: str, *statuses: str) -> Json:
    async def there() -> bool:
        return (await operation(frontend, op))["status"] in statuses

    await wait_until(there)
    return await operation(frontend, op)


async def listed(frontend: LiveFrontend, op: str) -> Json | None:
    """The operation as the contract lists it."""
    reply = await frontend.admin.get("/api/operations")
    assert reply.status_code == 200, reply.text
    return next((one for one in reply.json()["operations"] if one["jobID"] == op), None)

"""A worker whose only backend is a mock replica that runs already. It knows the contract of workers, and one
field beyond it: what its replica speaks.

    REMUDA_REGISTRATION_TOKEN=... python -m bench.gateway_worker FRONTEND_URL BUS_URL ADDRESS http|grpc
"""

import os
import sys
from collections.abc import Awaitable, Callable

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.peers.localai_worker import JSON, LocalAiWorker, WorkerOptions

from bench.mock_upstreams import MODEL

BACKEND = "mock"


class MockWorker(LocalAiWorker):
    def __init__(self, options: WorkerOptions, protocol: str) -> None:
        super().__init__(options)
        self._replica: JSON = {"address": options.address}
        if protocol != "grpc":
            self._replica["protocol"] = protocol

    async def _on(self, bus: Client, verb: str, handle: Callable[[Msg, JSON], Awaitable[None]]) -> None:
        own: dict[str, JSON] = {
            "backend.list": {"backends": [{"name": BACKEND, "is_system": True, "is_meta": False}]},
            "models.running": {"models": [{"model_id": MODEL, "replica_index": 0, **self._replica}]},
        }

        async def heard(message: Msg, body: JSON) -> None:
            answer = own.get(verb)
            await (handle(message, body) if answer is None else self._reply(lambda _: answer, message, body))

        await super()._on(bus, verb, heard)

    async def _install(self, bus: Client, done: JSON, message: Msg, body: JSON) -> None:
        await self._reply(lambda _: done | self._replica, message, body)


async def run(*arguments: str) -> None:
    frontend_url, bus_url, address, protocol = arguments
    token = os.environ["REMUDA_REGISTRATION_TOKEN"]
    options = WorkerOptions(frontend_url, bus_url, "mock", token=token, address=address, require_auth=True)
    async with anyio.create_task_group() as tasks:
        await tasks.start(MockWorker(options, protocol).run)
        print("ready", flush=True)


if __name__ == "__main__":
    anyio.run(run, *sys.argv[1:])

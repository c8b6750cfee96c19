"""Real frontends inside a test: real sockets, a real nats-server, a real database; up in a fraction of a
second."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from remuda.assembly.frontend import RunningFrontend, running_frontend
from remuda.assembly.settings import FrontendSettings
from remuda.core.clock import Clock
from remuda.core.entropy import SystemEntropy
from remuda.fleet.admission import AdmissionPolicy
from tests.support.plain_http import PLAIN

Json = dict[str, Any]
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveFrontend:
    """A frontend and its three kinds of callers."""

    running: RunningFrontend
    data_dir: Path
    anyone: httpx.AsyncClient  # Brings nothing.
    worker: httpx.AsyncClient  # Brings the registration token.
    admin: httpx.AsyncClient  # Brings an admin key, where there are keys.

    @property
    def url(self) -> str:
        return self.running.local_url

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 80

    @property
    def token(self) -> str:
        token = self.running.token
        return "" if token is None else token.get_secret_value()

    def registration(self, name: str = "", **facts: Any) -> Json:
        """The body of a registration as a LocalAI worker sends it; without a name, one not used before."""
        fresh = f"node-{SystemEntropy().token(6)}"
        return {"name": name or fresh, "address": "127.0.0.1:50051", "token": self.token, **facts}

    async def register(self, name: str = "", **facts: Any) -> Json:
        reply = await self.worker.post("/api/node/register", json=self.registration(name, **facts))
        assert reply.status_code == 201, reply.text
        answered: Json = reply.json()
        return answered

    async def heartbeat(self, node_id: str, **figures: Any) -> None:
        reply = await self.worker.post(f"/api/node/{node_id}/heartbeat", json=figures)
        assert (reply.status_code, reply.json()) == (200, {"message": "heartbeat received"})

    async def node(self, node_id: str) -> Json:
        """As it is shown, but for what changes by itself."""
        reply = await self.admin.get(f"/api/nodes/{node_id}")
        assert reply.status_code == 200, reply.text
        shown: Json = reply.json()
        shown["remuda"].pop("heard_seconds_ago", None)
        return shown

    async def status(self, node_id: str) -> str:
        return str((await self.node(node_id))["status"])


@asynccontextmanager
async def live_frontend(
    data_dir: Path, *, auto_approve: bool = True, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[LiveFrontend]:
    """A frontend that answers when the block begins, with its data in that folder. Most of its nodes have no
    worker on the bus, so that is not held against them."""
    chosen = FrontendSettings.model_validate({"data_dir": data_dir, "port": 0, **settings})
    policy = AdmissionPolicy(auto_approve=auto_approve)
    async with running_frontend(chosen, policy, clock, probes_commands=False) as running:
        token = "" if running.token is None else running.token.get_secret_value()
        async with (
            _client(running) as anyone,
            _client(running, token) as worker,
            _client(running, running.first_admin_key) as admin,
        ):
            yield LiveFrontend(running, data_dir, anyone, worker, admin)


def _client(running: RunningFrontend, bearer: str = "") -> httpx.AsyncClient:
    headers = [(b"Authorization", f"Bearer {bearer}".encode())] if bearer else []
    return httpx.AsyncClient(
        base_url=running.local_url, headers=headers, timeout=PATIENCE_S, trust_env=False, verify=PLAIN
    )

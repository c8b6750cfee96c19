"""A frontend that is killed in every phase of an install: the next one goes on where it was."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from remuda.core.entropy import SeededEntropy
from tests.integration.model_installs.test_installing import padded
from tests.support.hub import HubServer, hub_server
from tests.support.processes import Frontend, Ranch, ranch
from tests.support.waiting import wait_until_blocking

MB = 1_000_000
HELD_S = 20.0  # Longer than anybody waits here: who is held is killed.


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """In a thread of its own: the frontends are processes, and tests wait for them."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(hub_server()) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Ranch]:
    with ranch(tmp_path) as place:
        yield place


@dataclass(slots=True)
class Killed:
    """One install by frontends that are killed over it. Whatever is visible is whole, at any moment."""

    place: Ranch
    hub: HubServer
    content: bytes
    kills: Counter[str] = field(default_factory=Counter)
    op: str = ""

    def begin(self) -> Frontend:
        frontend = self.place.frontend("killed")
        if not self.op:
            body = {"model": f"{self.hub.url}/m.gguf"}
            reply = frontend.ask("POST", "/api/models/install", body).raise_for_status().json()
            self.op = reply["operation"]["id"]
        return frontend

    def phase(self) -> str:
        if self.hub.bytes_sent >= len(self.content):
            return "checking"
        return "downloading" if self.hub.bytes_sent else "resolving"

    def kill(self, frontend: Frontend) -> None:
        phase = self.phase()
        frontend.kill()
        self.kills[phase] += 1
        for file in (frontend.data_dir / "models").rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(frontend.data_dir).parts)
            assert hidden or file.is_dir() or file.read_bytes() == self.content

    def finish(self) -> None:
        frontend = self.begin()

        def over() -> bool:
            status = frontend.get(f"/api/ops/{self.op}")["status"]
            assert status not in ("failed", "cancelled"), frontend.get(f"/api/ops/{self.op}")
            return bool(status == "succeeded")

        wait_until_blocking(over, within=60, what="the install to be done")
        (model,) = frontend.get("/api/models")["models"]
        file = frontend.data_dir / "models" / model["file"]
        assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(self.content).digest()
        assert self.hub.bytes_sent < 1.15 * len(self.content)


def test_an_install_survives_a_kill_in_every_phase(place: Ranch, hub: HubServer) -> None:
    content = padded(24 * MB)
    hub.add("/m.gguf", content)
    hub.before = _hold
    killed = Killed(place, hub, content)
    first = killed.begin()
    wait_until_blocking(lambda: hub.requests, what="the source to be asked")
    killed.kill(first)

    hub.before, hub.bytes_per_s = None, 12 * MB
    second = killed.begin()
    wait_until_blocking(lambda: hub.bytes_sent > len(content) // 2, within=20)
    killed.kill(second)

    third = killed.begin()
    wait_until_blocking(lambda: hub.bytes_sent >= len(content), within=20)
    killed.kill(third)

    assert killed.kills == {"resolving": 1, "downloading": 1, "checking": 1}
    killed.finish()


async def _hold(request: web.Request) -> None:
    await anyio.sleep(HELD_S)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_install_survives_twenty_kills_at_any_moment(place: Ranch, hub: HubServer) -> None:
    content = padded(300 * MB)
    hub.add("/m.gguf", content)
    hub.bytes_per_s = 15 * MB
    killed, chance = Killed(place, hub, content), SeededEntropy(7)
    for number in range(20):
        frontend = killed.begin()
        reached = len(content) * min(number + chance.fraction(), 19.99) / 20
        wait_until_blocking(lambda reached=reached: hub.bytes_sent > reached, within=60)  # type: ignore[misc]
        killed.kill(frontend)
    assert killed.kills.total() == 20
    killed.finish()
    print(f"kills {dict(killed.kills)}, {hub.bytes_sent / len(content):.3f} times the file")

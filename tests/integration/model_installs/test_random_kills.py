"""A frontend that is killed at twenty random moments of an install: the next one goes on with it, and hardly
a byte comes twice. Moments are counted in bytes, which a slow machine has as well.
"""

import hashlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from remuda.core.entropy import SeededEntropy
from tests.integration.model_installs.test_installing import padded
from tests.support import installing_model_child
from tests.support.fork_server import FORK_SERVER
from tests.support.forked_child import ForkedChild
from tests.support.hub import HubServer
from tests.support.installing_model_child import DONE
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MB = 1_000_000
KILLS = 20
PORTION = 64 << 10  # What the link passes at once: it pauses so much earlier.
HEADERS = 16 << 10  # Of one life's answers: bytes that are counted, and are not the file's.
STEP_S = 60.0


@dataclass(slots=True)
class Install:
    root: Path
    link: Relay
    source: str
    content: bytes
    kills: int = 0

    @property
    def arrived(self) -> int:
        found = (self.root / "model-store" / "partial").glob("*")
        return max((path.stat().st_size for path in found), default=0)

    def visible(self) -> list[Path]:
        """What a backend may find."""
        models = self.root / "models"
        found = (path for path in models.rglob("*") if path.is_file())
        return [
            path for path in found if not any(part.startswith(".") for part in path.relative_to(models).parts)
        ]

    @asynccontextmanager
    async def life(self) -> AsyncIterator[ForkedChild]:
        words = (installing_model_child.__name__, str(self.root), self.source)
        child = ForkedChild(words, self.root / "child.log")
        try:
            yield child
        finally:
            await run_sync(child.kill)

    async def killed_at(self, goal: int) -> None:
        """Once so many bytes were sent and all were written: what waits in the kernel goes with a process."""
        sent_before, here_before = self.link.bytes_back, self.arrived
        self.link.pause_at(max(goal, sent_before + HEADERS + PORTION))

        def sent() -> bool:
            return self.link.bytes_back >= goal - PORTION

        def written() -> bool:
            return self.arrived - here_before >= self.link.bytes_back - sent_before - HEADERS

        async with self.life() as child:
            await wait_until(lambda: (sent() and written()) or not child.running, within=STEP_S)
            assert child.running, child.lines
        # What is on its way to the killed one would be counted as sent to the next one.
        await wait_until(lambda: self.link.connections == 0, within=STEP_S)
        self.kills += 1
        assert self.visible() == [], "something could be seen before it was whole"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [24 * MB, pytest.param(300 * MB, marks=pytest.mark.long)])
async def test_an_install_survives_twenty_kills_at_random_moments(
    tmp_path: Path, hub: HubServer, size: int
) -> None:
    FORK_SERVER.prepare()
    content, chance = padded(size), SeededEntropy(7)
    hub.add("/m.gguf", content)
    async with relay(hub.port) as link:
        install = Install(tmp_path, link, f"http://127.0.0.1:{link.port}/m.gguf", content)
        for number in range(KILLS):
            await install.killed_at(int(size * (number + chance.fraction()) / (KILLS + 1)))
        link.pause_at(math.inf)
        async with install.life() as child:
            await wait_until(
                lambda: child.has_said(DONE) or not child.running,
                within=STEP_S,
                what="the install to be done",
            )
            assert child.has_said(DONE), child.lines
        print(f"kills: {install.kills}; {link.bytes_back / size:.3f} of the file was sent")
        assert link.bytes_back < 1.15 * size
    (file,) = install.visible()
    assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(content).digest()

"""A worker that fetches, a worker that gives and a frontend that gives, killed at random moments: each is
started again, the file arrives whole, and hardly a byte comes twice.

Moments are counted in bytes at the receiver, so that a slow machine has the same ones.
"""

import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from remuda.core.ids import NodeId
from remuda.host.ports import free_port
from remuda.wire.model_file_urls import FRONTEND_PATH, WORKER_PATH, FileGrant, signed_path
from tests.integration.staging.receiving import BUFFER, FILE, MB, Receiving, moments
from tests.support import fetching_child, giving_child
from tests.support.fork_server import FORK_SERVER
from tests.support.forked_child import ForkedChild
from tests.support.giving_child import FRONTEND, HOST, KEY, LISTENING
from tests.support.trickle import relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

NODE, RECEIVER = "node", "receiver"
PORTION = 64 << 10  # What a link passes at once: it pauses so much earlier.
HEADERS = 16 << 10  # Of one life's answers: bytes that are counted, and are not the file's.
STEP_S = 60.0


@dataclass
class Scene(Receiving):
    """Two that have the file, behind links that are counted, and one that is to have it."""

    folder: Path
    content: bytes
    ports: dict[str, int]
    sources: tuple[str, ...]
    living: dict[str, ForkedChild] = field(default_factory=dict)
    lives: int = 0
    life_began: tuple[int, int] = (0, 0)  # Bytes that were sent, and that were here, when the receiver began.

    async def start(self, who: str) -> None:
        self.lives += 1
        output = self.folder / f"{self.lives}-{who}.log"
        if who == RECEIVER:
            self.life_began = self.fetched, self.arrived
            sha256 = hashlib.sha256(self.content).hexdigest()
            words = (str(self.models), FILE, str(len(self.content)), sha256, "", *self.sources)
            self.living[who] = ForkedChild((fetching_child.__name__, *words), output)
            return
        words = (who, str(self.ports[who]), str(self.folder / "giver"))
        child = self.living[who] = ForkedChild((giving_child.__name__, *words), output)
        await wait_until(lambda: child.has_said(LISTENING), within=STEP_S, what=f"{who} to listen")

    async def kill(self, who: str) -> None:
        """What the kernel holds for a receiver goes with it: nothing is on its way to it then."""
        if who == RECEIVER:
            await wait_until(self._all_written, within=STEP_S, what="what was sent to be written")
        assert self.living[who].running, f"{who} had ended: {self.living[who].lines}"
        await run_sync(self.living[who].kill)
        if who == RECEIVER:
            # What is on its way to the killed one would be counted as sent to the next one.
            await wait_until(lambda: not any(link.connections for link in self.links.values()), within=STEP_S)
        self.kills[who] += 1

    def _all_written(self) -> bool:
        sent, here = self.life_began
        return self.arrived - here >= self.fetched - sent - HEADERS

    async def pass_until(self, fetched: int) -> None:
        """Returns when so many bytes were sent in all, and no more are."""
        for link in self.links.values():
            link.pause_at(link.bytes_back + max(fetched - self.fetched, 0))
        receiver = self.living[RECEIVER]
        await wait_until(lambda: self.fetched >= fetched - PORTION or not receiver.running, within=STEP_S)
        assert receiver.running, receiver.lines

    async def finish(self) -> None:
        for link in self.links.values():
            link.pause_at(math.inf)
        assert await run_sync(self.living[RECEIVER].wait) == 0, self.living[RECEIVER].lines


@asynccontextmanager
async def scene(folder: Path, size: int) -> AsyncIterator[Scene]:
    FORK_SERVER.prepare()
    content = hashlib.shake_256(b"kept").digest(size)
    (folder / "giver").mkdir()
    (folder / "giver" / FILE).write_bytes(content)
    (folder / RECEIVER / "models").mkdir(parents=True)
    grant = FileGrant(FILE, size, hashlib.sha256(content).hexdigest(), NodeId(RECEIVER), 10**10)
    ports = {NODE: free_port(HOST), FRONTEND: free_port(HOST)}
    async with relay(ports[NODE], BUFFER) as to_node, relay(ports[FRONTEND], BUFFER) as to_frontend:
        sources = (
            f"http://{HOST}:{to_node.port}{signed_path(WORKER_PATH, KEY, grant)}",
            f"http://{HOST}:{to_frontend.port}{signed_path(FRONTEND_PATH, KEY, grant)}",
        )
        links = {NODE: to_node, FRONTEND: to_frontend}
        one = Scene(folder / RECEIVER / "models", links, folder, content, ports, sources)
        try:
            yield one
        finally:
            for child in one.living.values():
                child.kill()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("size", "count"), [(24 * MB, 8), pytest.param(300 * MB, 60, marks=pytest.mark.long)]
)
async def test_a_fetch_survives_kills_of_all_who_take_part_at_random_moments(
    tmp_path: Path, size: int, count: int, record_property: Callable[[str, object], None]
) -> None:
    planned = moments((NODE, FRONTEND, RECEIVER), size, count)
    async with scene(tmp_path, size) as one, anyio.create_task_group() as tasks:
        tasks.start_soon(one.watch)
        for who in (NODE, FRONTEND, RECEIVER):
            await one.start(who)
        for who, goal in planned:
            await one.pass_until(goal)
            await one.kill(who)
            assert one.seen_sizes == set(), "something could be seen before it was whole"
            await one.start(who)
        await one.finish()
        await wait_until(lambda: one.seen_sizes)
        tasks.cancel_scope.cancel()
    print(f"kills: {dict(one.kills)}; {one.fetched / size:.3f} of the file was sent")
    record_property("kills", dict(one.kills))
    assert one.kills == Counter(who for who, _ in planned)
    assert one.seen_sizes == {size}
    assert (one.models / FILE).read_bytes() == one.content
    assert one.fetched < 1.15 * size

"""A worker that is killed in every phase of fetching a model's file: what is there is gone on with, and
nothing unfinished is ever seen."""

import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.core.ids import NodeId
from remuda.s3.account import S3Account
from remuda.s3.requests import SignedRequests
from remuda.wire.model_file_urls import WORKER_PATH, FileGrant, signed_path
from remuda.worker.staging.giving import GivingPages
from tests.integration.staging.receiving import BUFFER, FILE, MB, Receiving
from tests.integration.staging.test_object_storage import BUCKET, plain
from tests.support import fetching_child
from tests.support.fetching_child import DONE, HASHING, PLACING
from tests.support.fork_server import FORK_SERVER
from tests.support.forked_child import ForkedChild
from tests.support.hub import hub_server
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, object_store
from tests.support.trickle import relay
from tests.support.waiting import wait_until
from tests.support.worker_http import listening

pytestmark = pytest.mark.anyio

ASKING, NODE, FRONTEND, STORAGE = "asking", "node", "frontend", "storage"
LINKS = (NODE, FRONTEND, STORAGE)  # In the order in which they are asked.
FINISHED_S = 60.0


@dataclass
class Scene(Receiving):
    """Three sources that have the file, behind links that are counted, and one worker's folder."""

    content: bytes
    sources: tuple[str, ...]

    def only(self, name: str) -> None:
        """Sources before this one break off at once."""
        for link in LINKS:
            broken = LINKS.index(link) < LINKS.index(name)
            self.links[link].reset_after = 0 if broken else math.inf

    async def killed_in(self, phase: str, goal: int) -> None:
        """In a transfer: once so many bytes are here."""
        self.only(phase if phase in LINKS else STORAGE)
        async with AsyncExitStack() as holds, self.child(phase) as child:
            if phase == ASKING:
                self.only(NODE)
                holds.enter_context(self.links[NODE].held())
                await wait_until(lambda: self.links[NODE].connections, within=30, what="the question")
            elif phase in LINKS:
                await wait_until(lambda: self.arrived >= goal, within=60, what=f"{goal} bytes from {phase}")
                holds.enter_context(self.links[phase].held())
                await self.at_rest()
            else:
                await wait_until(lambda: child.has_said(phase), within=60, what=phase)
        self.kills[phase] += 1

    async def at_rest(self) -> None:
        """What the kernel holds for a process goes with it: nothing is on its way then."""
        sizes = [-1]

        def rests() -> bool:
            sizes.append(self.arrived)
            return sizes[-1] == sizes[-2]

        await wait_until(rests)

    async def finish(self) -> None:
        async with self.child("") as child:
            await wait_until(lambda: child.has_said(DONE), within=FINISHED_S, what="the file")

    @asynccontextmanager
    async def child(self, linger: str) -> AsyncIterator[ForkedChild]:
        """Killed at the end of the block."""
        child = self.started(linger)
        try:
            yield child
        finally:
            child.kill()

    def started(self, linger: str = "") -> ForkedChild:
        sha256 = hashlib.sha256(self.content).hexdigest()
        words = (str(self.models), FILE, str(len(self.content)), sha256, linger, *self.sources)
        return ForkedChild((fetching_child.__name__, *words), self.models.parent / "child.log")


@asynccontextmanager
async def scene(folder: Path, size: int) -> AsyncIterator[Scene]:
    FORK_SERVER.prepare()
    content = hashlib.shake_256(b"kept").digest(size)
    giver = folder / "giver/models"
    giver.mkdir(parents=True)
    (giver / FILE).write_bytes(content)
    (folder / "receiver/models").mkdir(parents=True)
    grant = FileGrant(FILE, size, hashlib.sha256(content).hexdigest(), NodeId("receiver"), 10**10)
    with object_store(folder) as storage:
        plain(storage).put(FILE, content)
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            node = await enter(listening(GivingPages(giver, lambda: "token", SystemClock())))
            hub = await enter(hub_server())
            hub.add(f"/{FILE}", content)
            ports = {NODE: port_of(node), FRONTEND: hub.port, STORAGE: port_of(storage.endpoint)}
            links = {name: await enter(relay(port, buffer_bytes=BUFFER)) for name, port in ports.items()}
            urls = {name: f"http://127.0.0.1:{link.port}" for name, link in links.items()}
            keys = SecretStr(ACCESS_KEY), SecretStr(SECRET_KEY)
            signed = SignedRequests(S3Account(urls[STORAGE], BUCKET, "us-east-1", *keys), SystemClock().now)
            sources = (
                urls[NODE] + signed_path(WORKER_PATH, "token", grant),
                f"{urls[FRONTEND]}/{FILE}",
                signed.address(FILE, 900),
            )
            yield Scene(folder / "receiver/models", links, content, sources)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


QUICK = (ASKING, NODE, HASHING, FRONTEND, STORAGE, PLACING)
LONG = (ASKING, NODE, NODE, HASHING, FRONTEND, STORAGE, NODE, FRONTEND, STORAGE, HASHING) * 2 + (PLACING,) * 3


@pytest.mark.parametrize(
    ("size", "phases"), [(24 * MB, QUICK), pytest.param(300 * MB, LONG, marks=pytest.mark.long)]
)
async def test_fetch_survives_a_kill_in_every_phase(
    tmp_path: Path, size: int, phases: Sequence[str], record_property: Callable[[str, object], None]
) -> None:
    async with scene(tmp_path, size) as one, anyio.create_task_group() as tasks:
        tasks.start_soon(one.watch)
        transfers = sum(phase in LINKS for phase in phases)
        done = 0
        for phase in phases:
            one.throttle(math.inf if phase == PLACING else size)
            done += phase in LINKS
            await one.killed_in(phase, size * done // (transfers + 2))
            assert one.seen_sizes == set(), f"something could be seen after {phase}"
        one.throttle(math.inf)
        await one.finish()
        await wait_until(lambda: one.seen_sizes)
        tasks.cancel_scope.cancel()
    print(f"kills: {dict(one.kills)}; {one.fetched / size:.3f} of the file was sent")
    record_property("kills", dict(one.kills))
    assert one.kills == Counter(phases)
    assert one.seen_sizes == {size}
    assert (one.models / FILE).read_bytes() == one.content
    assert one.fetched < 1.15 * size
    assert sorted(path.name for path in one.models.iterdir()) == [FILE, f"{FILE}.sha256"]

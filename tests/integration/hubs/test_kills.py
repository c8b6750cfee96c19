"""A fetch that is killed again and again, in every phase."""

import hashlib
import os
from collections import Counter
from contextlib import suppress

import pytest
from anyio.to_thread import run_sync

from remuda.oci.blobs import BlobStore
from tests.integration.hubs import fetching_child
from tests.integration.hubs.wheels import serve_package
from tests.support.fork_server import FORK_SERVER
from tests.support.forked_child import ForkedChild
from tests.support.hub import HubServer
from tests.support.images import noise
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MB = 1_000_000
SMALL_ANSWERS_BYTES = 80_000  # Of one life: the list of files, the end of the wheel, headers.


class Child(ForkedChild):
    def __init__(self, link: Relay, source: str, store: BlobStore, hold_at: str = "") -> None:
        index = f"http://127.0.0.1:{link.port}/simple"
        environ = {**os.environ, "PIP_INDEX_URL": index, "HOME": str(store.root)}
        words = (fetching_child.__name__, source, str(store.root), hold_at)
        super().__init__(words, store.root.parent / "child.log", environ)

    @property
    def downloaded(self) -> int:
        told = (line.split() for line in self.lines if line.startswith("downloading"))
        return max((int(words[1]) for words in told), default=0)


def kept_bytes(store: BlobStore) -> int:
    size = 0
    for path in store.root.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    return size


async def kill_in_download(child: Child, goal: int, link: Relay, store: BlobStore) -> None:
    """When all that arrived was written: how much waits in the kernel is up to the machine's load."""
    kept_before, back_before = kept_bytes(store), link.bytes_back

    def kept_what_arrived() -> bool:
        return kept_bytes(store) - kept_before > link.bytes_back - back_before - SMALL_ANSWERS_BYTES

    await wait_until(lambda: child.downloaded > goal, within=60)
    with link.held():
        await wait_until(kept_what_arrived)
        await run_sync(child.kill)
        await wait_until(lambda: link.connections == 0)


async def kill_at(child: Child, phase: str) -> None:
    await wait_until(lambda: child.has_said(phase), within=60)
    await run_sync(child.kill)


def check_whole(store: BlobStore) -> None:
    """Nothing half-made is ever found."""
    for blob in store.listing():
        assert f"sha256:{hashlib.sha256(store.path(blob.digest).read_bytes()).hexdigest()}" == blob.digest


@pytest.mark.parametrize(
    ("size", "kills"), [(24 * MB, 2), pytest.param(300 * MB, 16, marks=pytest.mark.long)]
)
async def test_killed_in_every_phase_a_fetch_completes_and_hardly_a_byte_comes_twice(
    hub: HubServer, store: BlobStore, size: int, kills: int
) -> None:
    content = noise(size, 7)
    sha256 = hashlib.sha256(content).hexdigest()
    wheel_size = serve_package(hub, {"tiny_model/x.gguf": content})
    source = f"pypi:tiny-model==1.0!tiny_model/x.gguf#sha256={sha256}"
    FORK_SERVER.prepare()
    killed: Counter[str] = Counter()
    async with relay(hub.port) as link:
        link.bytes_per_s = 16 * MB
        phases = ["resolving", *["downloading"] * kills, "committing", "extracting"]
        for number, phase in enumerate(phases):
            if phase == "downloading":
                goal = size * number // (kills + 1)
                await kill_in_download(Child(link, source, store), goal, link, store)
            else:
                await kill_at(Child(link, source, store, phase), phase)
            killed[phase] += 1
            check_whole(store)
        assert await run_sync(Child(link, source, store).wait) == 0
        assert link.bytes_back < 1.15 * wheel_size
    assert killed == Counter(phases)
    assert [blob.digest for blob in store.listing()] == [f"sha256:{sha256}"]
    check_whole(store)


async def test_bytes_of_an_unknown_digest_are_not_fetched_again_once_they_are_whole(
    hub: HubServer, store: BlobStore
) -> None:
    """Killed when they have become a blob, before anything else has been told which."""
    content = noise(2 * MB, 8)
    hub.add("/m.gguf", content)
    FORK_SERVER.prepare()
    async with relay(hub.port) as link:
        source = f"http://127.0.0.1:{link.port}/m.gguf"
        await kill_at(Child(link, source, store, "committed"), "committed")
        assert await run_sync(Child(link, source, store).wait) == 0
    assert hub.bytes_sent == len(content)
    check_whole(store)

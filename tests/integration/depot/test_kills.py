"""Installs that are killed in every phase, and processes that share a depot."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.host.children import LaunchSpec, running
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.places import Places
from tests.integration.depot import installing_child
from tests.support.images import BuiltImage, image, layer, noise, noise_layer
from tests.support.registry import RegistryServer
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
MB = 1_000_000
# Small for every day; with 200 it takes some five minutes and tells the same.
IMAGE_BYTES = int(os.environ.get("REMUDA_TEST_KILLED_IMAGE_MB", "24")) * MB
RATE_MAX = 6 * MB  # Of a connection. What the kernel holds for a process goes with it, and grows with speed.
LOST_MAX = 1 * MB  # At a kill, however far the download was: what the kernel held, or was not yet written.


def spec(link: Relay, tag: str, root: Path, lines: list[str], name: str, dawdle_s: float) -> LaunchSpec:
    reference = f"127.0.0.1:{link.port}/{tag}"
    argv = (sys.executable, "-m", installing_child.__name__, reference, str(root), name, str(dawdle_s))
    return LaunchSpec(
        "installing child", argv, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}, cwd=ROOT, output=lines.append
    )


def percentage(lines: list[str], phase: str) -> float:
    return max((float(line.split()[1]) for line in lines if line.startswith(phase)), default=-1.0)


def beyond(lines: list[str], phase: str, goal: float) -> bool:
    return percentage(lines, phase) > goal


def moved(lines: list[str], count: int) -> bool:
    return lines.count("moving") >= count


def installed_version(root: Path) -> bytes:
    file = root / "backends/b/version"
    return file.read_bytes() if file.exists() else b""


def version_image(version: int) -> BuiltImage:
    own = layer({"run.sh": b"#!/bin/sh\n", "version": b"%d" % version})
    parts = [noise_layer(IMAGE_BYTES * share // 10, 100 * version + share) for share in (5, 2, 3)]
    return image([*parts, own])


async def check_whole(root: Path) -> None:
    """Whatever is listed is complete, also to somebody who recovers nothing."""
    for name in (path for path in (root / "backends").glob("*") if not path.name.startswith(".")):
        version = (name / "version").read_bytes()
        for share in (5, 2, 3):
            seed = 100 * int(version) + share
            assert (name / f"noise-{seed}").read_bytes() == noise(IMAGE_BYTES * share // 10, seed)
        assert (name / "run.sh").is_file()
        assert (name / "metadata.json").is_file()
    depot = Depot(Places(root / "backends", root / "system", root / "depot"), SystemClock())
    assert (await depot.installed()).problems == ()


async def test_killed_in_every_phase_an_upgrade_completes(registry: RegistryServer, tmp_path: Path) -> None:
    built = {version: version_image(version) for version in (1, 2)}
    for version, one in built.items():
        registry.pusher.push("killed/backend", f"v{version}", one)
    kills = Counter[str]()
    lines: list[str] = []

    async def kill_when(link: Relay, reached: Callable[[], bool], phase: str) -> None:
        lines.clear()
        other = 1 if installed_version(tmp_path) == b"2" else 2  # There is something to do each time.
        async with running(spec(link, f"killed/backend:v{other}", tmp_path, lines, "b", 0.05)) as process:
            await wait_until(reached, within=60)
            os.kill(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
        kills[phase] += 1
        await check_whole(tmp_path)

    async with relay(registry.port) as link:
        async with running(spec(link, "killed/backend:v1", tmp_path, [], "b", 0)) as first:
            with anyio.fail_after(120):
                assert await first.wait() == 0
        link.bytes_back = 0
        link.bytes_per_s = min(IMAGE_BYTES / 4, RATE_MAX)  # Each phase lasts.
        await kill_when(link, lambda: percentage(lines, "resolving") >= 0, "resolving")
        for goal in (2, 6, 10, 14, 18, 22, 26, 30):
            await kill_when(link, partial(beyond, lines, "downloading", goal), "downloading")
        assert installed_version(tmp_path) == b"1"
        link.bytes_per_s = float("inf")
        for goal in (50, 55, 60, 70, 80, 90):
            await kill_when(link, partial(beyond, lines, "extracting", goal), "extracting")
        assert installed_version(tmp_path) == b"1"
        for count in (1, 1, 2, 2, 3, 3):
            await kill_when(link, partial(moved, lines, count), "moving")
        async with running(spec(link, "killed/backend:v2", tmp_path, [], "b", 0)) as last:
            with anyio.fail_after(120):
                assert await last.wait() == 0

        fetched, size = link.bytes_back, built[2].size
    print(f"kills: {dict(kills)}; fetched {fetched / size:.3f} of the image")
    assert fetched - size < LOST_MAX * kills["downloading"]
    assert sum(kills.values()) >= 20
    assert installed_version(tmp_path) == b"2"
    await check_whole(tmp_path)


async def test_two_processes_on_one_depot_do_not_disturb_each_other(
    registry: RegistryServer, tmp_path: Path
) -> None:
    built = version_image(3)
    registry.pusher.push("shared/backend", "v3", built)

    async with relay(registry.port) as link:
        specs = [
            spec(link, "shared/backend:v3", tmp_path, [], name, 0) for name in ("one", "one", "two", "three")
        ]
        async with (
            running(specs[0]) as first,
            running(specs[1]) as second,
            running(specs[2]) as third,
            running(specs[3]) as fourth,
        ):
            with anyio.fail_after(120):
                assert [await child.wait() for child in (first, second, third, fourth)] == [0] * 4
        assert link.bytes_back < 1.05 * built.size

    await check_whole(tmp_path)
    assert len(list((tmp_path / "backends").glob("*/version"))) == 3

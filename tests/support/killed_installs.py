"""An upgrade that is killed again and again, in every phase, and how much was fetched for it altogether."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import file_digest, sha256
from pathlib import Path

import anyio

from remuda.core.clock import SystemClock
from remuda.host.children import LaunchSpec, running
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.layout import DepotLayout
from tests.support import installing_child
from tests.support.images import BuiltImage, image, layer, noise, noise_layer
from tests.support.registry import RegistryServer
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MB = 1_000_000
RATE_MAX = 6 * MB  # Of a connection. What the kernel holds for a process goes with it, and grows with speed.
SHARES = (5, 2, 3)  # Of the image, in tenths, by layer.
_INSTALL_S = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    kills: Counter[str]  # By phase.
    fetched: int
    size: int

    @property
    def ratio(self) -> float:
        return self.fetched / self.size


def spec(link: Relay, tag: str, root: Path, lines: list[str], name: str, dawdle_s: float) -> LaunchSpec:
    reference = f"127.0.0.1:{link.port}/{tag}"
    argv = (sys.executable, "-m", installing_child.__name__, reference, str(root), name, str(dawdle_s))
    environ = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    return LaunchSpec("installing child", argv, env=environ, cwd=ROOT, output=lines.append)


def version_image(version: int, size: int) -> BuiltImage:
    own = layer({"run.sh": b"#!/bin/sh\n", "version": b"%d" % version})
    return image([*(noise_layer(size * share // 10, 100 * version + share) for share in SHARES), own])


async def check_whole(root: Path, size: int) -> None:
    """Whatever is listed is complete, also to somebody who recovers nothing."""
    for name in (path for path in (root / "backends").glob("*") if not path.name.startswith(".")):
        version = int((name / "version").read_bytes())
        for share in SHARES:
            seed = 100 * version + share
            with (name / f"noise-{seed}").open("rb") as file:
                assert file_digest(file, "sha256").hexdigest() == _digest(size * share // 10, seed)
        assert (name / "run.sh").is_file()
        assert (name / "metadata.json").is_file()
    depot = Depot(DepotLayout(root / "backends", root / "system", root / "depot"), SystemClock())
    assert (await depot.installed()).problems == ()


@cache
def _digest(size: int, seed: int) -> str:
    return sha256(noise(size, seed)).hexdigest()


def installed_version(root: Path) -> bytes:
    file = root / "backends/b/version"
    return file.read_bytes() if file.exists() else b""


@dataclass(slots=True)
class _Killing:
    """Upgrades to whatever is not installed, so that there is something to do each time."""

    root: Path
    link: Relay
    size: int
    kills: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    async def kill_when(self, phase: str, reached: Callable[[], bool]) -> None:
        self.lines.clear()
        other = 1 if installed_version(self.root) == b"2" else 2
        tag = f"killed/backend:v{other}"
        async with running(spec(self.link, tag, self.root, self.lines, "b", 0.05)) as process:
            await wait_until(reached, within=60)
            os.kill(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
        self.kills[phase] += 1
        await check_whole(self.root, self.size)

    async def install(self, version: int) -> None:
        tag = f"killed/backend:v{version}"
        async with running(spec(self.link, tag, self.root, [], "b", 0)) as process:
            with anyio.fail_after(_INSTALL_S):
                assert await process.wait() == 0

    def beyond(self, phase: str, goal: float) -> bool:
        told = (float(line.split()[1]) for line in self.lines if line.startswith(phase))
        return max(told, default=-1.0) > goal

    def moved(self, count: int) -> bool:
        return self.lines.count("moving") >= count


async def killed_upgrade(registry: RegistryServer, root: Path, size: int, *, every: int = 1) -> Outcome:
    """From one version of an image of `size` bytes to the next; every kill leaves whole backends only. There
    are 21 of them, or with `every` fewer in each phase."""
    built = {version: version_image(version, size) for version in (1, 2)}
    for version, one in built.items():
        registry.pusher.push("killed/backend", f"v{version}", one)
    async with relay(registry.port) as link:
        killing = _Killing(root, link, size)
        await killing.install(1)
        link.bytes_back = 0
        link.bytes_per_s = min(size / 4, RATE_MAX)  # Each phase lasts.
        await killing.kill_when("resolving", partial(killing.beyond, "resolving", -0.5))
        for goal in (2, 6, 10, 14, 18, 22, 26, 30)[::every]:
            await killing.kill_when("downloading", partial(killing.beyond, "downloading", goal))
        assert installed_version(root) == b"1"
        link.bytes_per_s = float("inf")
        for goal in (50, 55, 60, 70, 80, 90)[::every]:
            await killing.kill_when("extracting", partial(killing.beyond, "extracting", goal))
        assert installed_version(root) == b"1"
        for count in (1, 1, 2, 2, 3, 3)[::every]:
            await killing.kill_when("moving", partial(killing.moved, count))
        await killing.install(2)
        outcome = Outcome(killing.kills, link.bytes_back, built[2].size)
    assert installed_version(root) == b"2"
    await check_whole(root, size)
    return outcome

"""Staging goes on to its end, whoever is killed: the one that gives, the one that receives, the frontend."""

import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.to_thread import run_sync

from tests.integration.staging.fleet import HOST, Fleet, fleet
from tests.support.processes import Json
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MB = 1_000_000
FILE = "kept.bin"
LOOK_S = 0.02
BUFFER = 64 << 10  # What a killed giver has sent, and nobody has read, is not lost: it should be little.
ARRIVES_S = 120.0


class Staging:
    """`wanted` is to be loaded at `receiver`; `giver` has its file, and so has the frontend."""

    def __init__(self, place: Fleet, to_frontend: Relay, to_giver: Relay, size: int) -> None:
        self.place, self.size = place, size
        self.links = {"frontend": to_frontend, "giver": to_giver}
        self.seen_sizes: set[int] = set()
        place.other_ports = {link.port: name for name, link in self.links.items()}

    @property
    def fetched(self) -> int:
        return sum(link.bytes_back for link in self.links.values())

    def throttle(self, bytes_per_s: float) -> None:
        for link in self.links.values():
            link.bytes_per_s = bytes_per_s

    async def start(self, who: str) -> None:
        match who:
            case "frontend":
                await run_sync(self.place.start_frontend)
            case "giver":
                await run_sync(self.place.start_worker, who, "", self.links["giver"].port)
            case _:
                url = f"http://{HOST}:{self.links['frontend'].port}"
                await run_sync(self.place.start_worker, who, url)

    async def kill(self, who: str) -> None:
        """What the kernel holds for a receiver goes with it: nothing is on its way to it then."""
        if who != "receiver":
            await run_sync(self.place.frontend.kill if who == "frontend" else self.place.workers[who].kill)
            return
        with self.links["frontend"].held(), self.links["giver"].held():
            sizes = [-1]

            def rests() -> bool:
                sizes.append(self.place.partial_bytes("receiver"))
                return sizes[-1] == sizes[-2]

            await wait_until(rests)
            await run_sync(self.place.workers[who].kill)

    async def watch(self) -> None:
        """Whatever a backend could find at any moment."""
        file = self.place.file("receiver", FILE)
        while True:
            with suppress(FileNotFoundError):
                self.seen_sizes.add(file.stat().st_size)
            await anyio.sleep(LOOK_S)

    async def want(self) -> None:
        """A load that fails because its worker was killed is begun anew by whoever asks next."""
        while True:
            await run_sync(self._ask)
            await anyio.sleep(10 * LOOK_S)

    def _ask(self) -> None:
        with suppress(httpx.HTTPError):
            self.place.load("wanted")

    def loaded(self) -> list[Json]:
        with suppress(httpx.HTTPError):
            return self.place.loaded("wanted")
        return []

    def arrived(self, size: int) -> bool:
        return self.place.partial_bytes("receiver") >= size


@asynccontextmanager
async def staging(folder: Path, size: int) -> AsyncIterator[Staging]:
    with fleet(folder, ()) as place:
        async with (
            relay(place.port, buffer_bytes=BUFFER) as to_frontend,
            relay(place.http_port("giver"), buffer_bytes=BUFFER) as to_giver,
        ):
            scene = Staging(place, to_frontend, to_giver, size)
            await scene.start("giver")
            await scene.start("receiver")
            await run_sync(place.wait_for_workers)
            content = await run_sync(place.put, FILE, size)
            await run_sync(place.add, "kept", FILE, "giver")
            await run_sync(place.chat, "kept")
            await run_sync(place.add, "wanted", FILE, "receiver")
            yield scene
            assert await run_sync(place.file("receiver", FILE).read_bytes) == content


@pytest.mark.parametrize(
    ("size", "kills"),
    [
        # A load whose frontend was killed is taken over when its lease is over, or begun anew before that.
        (24 * MB, ("frontend", "receiver", "giver")),
        pytest.param(300 * MB, ("giver", "frontend", "receiver") * 7, marks=pytest.mark.long),
    ],
)
async def test_staging_completes_whoever_is_killed_and_hardly_a_byte_comes_twice(
    tmp_path: Path, size: int, kills: tuple[str, ...]
) -> None:
    killed: Counter[str] = Counter()
    async with staging(tmp_path, size) as scene, anyio.create_task_group() as tasks:
        tasks.start_soon(scene.watch)
        scene.throttle(size / 4)
        fetched_before = scene.fetched
        tasks.start_soon(scene.want)
        for number, who in enumerate(kills, start=1):
            goal = size * number // (len(kills) + 2)
            await wait_until(partial(scene.arrived, goal), within=ARRIVES_S, what=f"{goal} bytes")
            await scene.kill(who)
            killed[who] += 1
            if (who, killed[who]) != ("giver", kills.count("giver")):  # At last it stays away.
                await scene.start(who)
        scene.throttle(math.inf)
        await wait_until(lambda: run_sync(scene.loaded), within=ARRIVES_S, what="the load")
        tasks.cancel_scope.cancel()
    fetched = scene.fetched - fetched_before
    print(f"kills: {dict(killed)}; {fetched / size:.3f} of the file was sent")
    assert killed == Counter(kills)
    assert fetched < 1.15 * size
    assert scene.seen_sizes == {size}
    assert set(scene.place.sources_of("receiver")) >= {"frontend"}, "where the giver was killed"

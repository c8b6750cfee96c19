"""Staging goes on to its end, whoever is killed: the one that gives, the one that receives, the frontend."""

import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.to_thread import run_sync

from tests.integration.staging.fleet import HOST, Fleet, fleet
from tests.integration.staging.receiving import BUFFER, FILE, LOOK_S, MB, Receiving, moments
from tests.support.processes import Json
from tests.support.trickle import relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ARRIVES_S = 120.0


@dataclass
class Staging(Receiving):
    """`wanted` is to be loaded at `receiver`; `giver` has its file, and so has the frontend."""

    place: Fleet
    answers: list[httpx.Response] = field(default_factory=list)

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
                sizes.append(self.arrived)
                return sizes[-1] == sizes[-2]

            await wait_until(rests)
            await run_sync(self.place.workers[who].kill)

    async def reached(self, size: int) -> None:
        await wait_until(lambda: self.arrived >= size, within=ARRIVES_S, what=f"{size} bytes")

    async def want(self) -> None:
        """Asks again only where the frontend that was asked is killed."""
        while not self.answers:
            await run_sync(self._ask)
            await anyio.sleep(10 * LOOK_S)

    def _ask(self) -> None:
        with suppress(httpx.HTTPError):
            self.answers.append(self.place.ask_chat("wanted"))

    def loads(self) -> list[Json]:
        """All that there ever were of it, each with its only step."""
        frontend = self.place.frontend
        found = frontend.get("/api/ops?kind=load&model=wanted")["operations"]
        return [frontend.get(f"/api/ops/{load['id']}")["steps"][0] for load in found]


@asynccontextmanager
async def staging(folder: Path, size: int) -> AsyncIterator[Staging]:
    with fleet(folder, ()) as place:
        async with (
            relay(place.port, buffer_bytes=BUFFER) as to_frontend,
            relay(place.http_port("giver"), buffer_bytes=BUFFER) as to_giver,
        ):
            links = {"frontend": to_frontend, "giver": to_giver}
            place.other_ports = {link.port: name for name, link in links.items()}
            scene = Staging(place.file("receiver", ""), links, place)
            await scene.start("giver")
            await scene.start("receiver")
            await run_sync(place.wait_for_workers)
            content = await run_sync(place.put, FILE, size)
            await run_sync(place.add, "kept", FILE, "giver")
            await run_sync(place.chat, "kept")
            await run_sync(place.add, "wanted", FILE, "receiver")
            yield scene
            assert await run_sync(place.file("receiver", FILE).read_bytes) == content


LONG = 300 * MB


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("size", "kills"),
    [
        # A load whose frontend was killed is taken over when its lease is over.
        (24 * MB, [("frontend", 5 * MB), ("receiver", 10 * MB), ("giver", 15 * MB)]),
        pytest.param(LONG, moments(("giver", "frontend", "receiver"), LONG, 21), marks=pytest.mark.long),
    ],
)
async def test_load_ends_well_whoever_is_killed_meanwhile_and_hardly_a_byte_comes_twice(
    tmp_path: Path, size: int, kills: list[tuple[str, int]]
) -> None:
    wanted = Counter(who for who, _ in kills)
    async with staging(tmp_path, size) as scene, anyio.create_task_group() as tasks:
        tasks.start_soon(scene.watch)
        scene.throttle(size / 4)
        fetched_before = scene.fetched
        tasks.start_soon(scene.want)
        for who, goal in kills:
            await scene.reached(goal)
            await scene.kill(who)
            scene.kills[who] += 1
            if (who, scene.kills[who]) != ("giver", wanted["giver"]):  # At last it stays away.
                await scene.start(who)
        scene.throttle(math.inf)
        await wait_until(lambda: scene.answers, within=ARRIVES_S, what="the answer")
        [load] = await run_sync(scene.loads)
        tasks.cancel_scope.cancel()
    assert [answer.status_code for answer in scene.answers] == [200], scene.answers[0].text
    assert load["state"] == "succeeded", load
    assert "had come before" in load["reason"], "the receiver was killed, and had some by then"
    fetched = scene.fetched - fetched_before
    print(f"kills: {dict(scene.kills)}; {fetched / size:.3f} of the file was sent")
    assert scene.kills == wanted
    assert fetched < 1.15 * size
    assert scene.seen_sizes == {size}
    assert set(scene.place.sources_of("receiver")) >= {"frontend"}, "where the giver was killed"

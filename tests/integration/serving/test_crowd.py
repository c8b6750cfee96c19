"""Thousands of requests through one `remuda up`, from clients that leave at random, to backends that crash:
when they are over, nothing of them is left."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import anyio
import psutil
import pytest

from remuda.core.entropy import SeededEntropy
from tests.integration.serving.asking import add_echo, chat, chat_body, replicas
from tests.integration.serving.site import answered
from tests.support.processes import Frontend
from tests.support.raw_http import RawClient, post, raw_client
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CLIENTS: Final = 24
MODELS: Final = ("red", "green", "blue")
WARMING: Final = 0.2  # Of the requests: pools of threads and connections fill up as they are used.
CRASHES: Final = 4
STREAMED: Final = 0.3
LEAVING: Final = 0.1
LEAVES_WITHIN_S: Final = 0.02
FAILURES: Final = {429, 502, 503}  # What a crash may cost those that were asking at that moment.
GONE = OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead
CHAT: Final = "/v1/chat/completions"


@pytest.fixture(scope="module")
def up(alone: Frontend) -> Frontend:
    for name in MODELS:
        add_echo(alone, name)
        answered(chat(alone, name))
    return alone


@dataclass
class Crowd:
    """Its clients take requests from one pile until there are none left."""

    up: Frontend
    requests: int
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy(7))
    begun: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0

    async def rush(self) -> None:
        async with anyio.create_task_group() as clients:
            for _ in range(CLIENTS):
                clients.start_soon(self._client)

    async def _client(self) -> None:
        while self.begun < self.requests:
            with suppress(*GONE):
                async with raw_client(urlsplit(self.up.url).port or 0) as line:
                    while self.begun < self.requests and await self._one(line):
                        pass

    async def _one(self, line: RawClient) -> bool:
        """Whether the line can be used again."""
        self.begun += 1
        model = MODELS[self.begun % len(MODELS)]
        crashes = self.entropy.fraction() < CRASHES / self.requests
        crash = {"metadata": {"echo_crash": "1"}} if crashes else {}
        streamed = self.entropy.fraction() < STREAMED
        request = post(CHAT, chat_body(model, "one two", stream=streamed, **crash))
        if self.entropy.fraction() < LEAVING:
            await line.send(request)
            with anyio.move_on_after(self.entropy.fraction() * LEAVES_WITHIN_S):
                await line.stream.receive()
            self.left += 1
            line.reset()
            return False
        self.statuses[(await line.ask(request)).status] += 1
        return True


FEW: Final = 4  # Whatever else the frontend does meanwhile; what leaks with requests leaks by hundreds.


@dataclass(frozen=True, slots=True)
class Footprint:
    files: int
    sockets: int
    threads: int

    @classmethod
    def of(cls, frontend: Frontend) -> "Footprint":
        process = psutil.Process(frontend.pid)
        with process.oneshot():
            return cls(process.num_fds(), len(process.net_connections()), process.num_threads())

    def within(self, before: "Footprint") -> bool:
        return (
            self.files <= before.files + FEW
            and self.sockets <= before.sockets + FEW
            and self.threads <= before.threads + FEW
        )


@pytest.mark.parametrize("requests", [120, pytest.param(10_000, marks=pytest.mark.long)])
async def test_a_crowd_leaves_nothing_behind(up: Frontend, requests: int) -> None:
    await Crowd(up, int(WARMING * requests)).rush()
    await wait_until(lambda: idle(up), what="idle replicas")
    before = Footprint.of(up)
    crowd = Crowd(up, requests)
    await crowd.rush()

    assert crowd.statuses[200] > 0.5 * (requests - crowd.left)
    assert set(crowd.statuses) - {200} <= FAILURES, crowd.statuses
    await wait_until(lambda: idle(up), what="idle replicas")
    await wait_until(lambda: Footprint.of(up).within(before), within=20, what=f"{before} again")
    for name in MODELS:
        assert answered(chat(up, name)) == "one two three"


def idle(up: Frontend) -> bool:
    """Every replica as the fleet knows it, and all figures about requests that are not over."""
    shown = up.ask("GET", "/metrics").text.splitlines()
    figures = ("remuda_inference_in_flight{", "remuda_inference_waiting{")
    counted = [float(line.rpartition(" ")[2]) for line in shown if line.startswith(figures)]
    return not any([float(one["in_flight"]) for one in replicas(up)] + counted)

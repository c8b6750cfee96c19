"""Thousands of requests whose clients leave and whose replicas fail at random leave nothing behind."""

import asyncio
import gc
from contextlib import suppress
from typing import Final

import anyio
import psutil
import pytest

from remuda.core.entropy import Entropy, SeededEntropy
from remuda.inference.answers import ByteSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import WITH_FILES, InferenceCall, RequestKind
from remuda.router.dispatch import WaitLimits
from tests.integration.api.openai.asking import ASK, CHAT
from tests.support.raw_http import RawClient, post, raw_client
from tests.support.scripted_upstreams import (
    JSON,
    SSE,
    Gateway,
    chunk,
    gateway,
    model,
    route_to,
    serving,
    table,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CLIENTS: Final = 50
TOKENS: Final = 6
BODIES: Final = {
    CHAT: ASK,
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
    "/v1/rerank": {"model": "m", "query": "q", "documents": ["d"]},
}


class Moody:
    """A replica that fails, stalls and breaks off, at every point of an answer."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self.began = self.ended = 0
        self.kinds: set[RequestKind] = set()

    async def __call__(self, call: InferenceCall, sink: ByteSink) -> None:
        self.began += 1
        self.kinds.add(call.kind)
        try:
            await self._answer(call, sink)
        finally:
            self.ended += 1

    async def _answer(self, call: InferenceCall, sink: ByteSink) -> None:
        breaks_at = int(self._entropy.fraction() * TOKENS * 3)
        await sink.begin(200, SSE if call.stream else JSON)
        for token in range(TOKENS):
            if token == breaks_at:
                raise UpstreamFailed(Fault.BROKE if token % 2 else Fault.FAILED, "no more")
            await sink.write(chunk("word"))
            await anyio.sleep(self._entropy.fraction() / 500)


class Fickle:
    """A client that stays for some answers and leaves in the middle of others."""

    def __init__(self, served: Gateway, entropy: Entropy, requests: int) -> None:
        self._served = served
        self._entropy = entropy
        self._left = requests

    async def run(self) -> None:
        while self._left:
            with suppress(anyio.BrokenResourceError, anyio.IncompleteRead, anyio.EndOfStream):
                async with raw_client(self._served.port) as raw:
                    while self._left and await self._stays(raw):
                        pass

    async def _stays(self, raw: RawClient) -> bool:
        self._left -= 1
        path, body = list(BODIES.items())[int(self._entropy.fraction() * len(BODIES))]
        streams = {"stream": True} if path == CHAT and self._entropy.fraction() < 0.7 else {}
        mood = self._entropy.fraction()
        await raw.send(post(path, body | streams))
        if mood < 0.7:
            await raw.reply()
            return True
        if mood < 0.9:
            await anyio.sleep(self._entropy.fraction() / 100)
        if mood < 0.8:
            raw.reset()
        return False


def sockets() -> int:
    return len(psutil.Process().net_connections(kind="tcp"))


@pytest.mark.parametrize("requests", [1000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_requests_leave_nothing_behind(requests: int) -> None:
    entropy = SeededEntropy(6)
    async with serving(gateway(waits=WaitLimits(waiting_max=20))) as served:
        routes = [route_to("m", n, f"gpu-{n}", parallel=8) for n in range(3)]
        served.tables.replace(table(model("m", *routes)))
        served.upstreams.script = moody = Moody(entropy)
        tasks_before, sockets_before = len(asyncio.all_tasks()), sockets()
        async with anyio.create_task_group() as tasks:
            for _ in range(CLIENTS):
                tasks.start_soon(Fickle(served, entropy, requests // CLIENTS).run)
        await wait_until(lambda: len(served.running) == 0, within=5)
        assert moody.began == moody.ended > requests / 2
        assert moody.kinds == set(RequestKind) - WITH_FILES - {RequestKind.TOKENIZE}
        assert dict(served.ledger.own()) == {}
        assert served.metrics.registry.get_sample_value("remuda_inference_waiting", {"model": "m"}) in (
            None,
            0,
        )
        await wait_until(lambda: gc.collect() >= 0 and sockets() <= sockets_before, within=5)
        await wait_until(lambda: len(asyncio.all_tasks()) <= tasks_before, within=5)

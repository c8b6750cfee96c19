"""What a worker's door to backends that speak HTTP adds to the first token, when many requests come at once
to an engine that takes a while. The door has a core to itself; clients and the engine, a mock, share another.

    uv run --group dev python -m bench.door

Each round asks the engine directly and through the door; the ratio is the median of those of all rounds.
Aim: 1.1 times direct. Also prints the door's CPU time for a request and for a token.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvloop

from bench import gateway_targets as targets
from bench.gateway import AT_ONCE, US, Effort, body, token_us
from bench.gateway_load import FLOW_LIMIT_S, HOST, OPENAI, Api, Place, Reader, ask_many
from bench.gateway_targets import GATEWAY_CORE, Running, started
from bench.mock_upstreams import MODEL
from bench.worker_door import TOKEN
from remuda.host.ports import free_port
from remuda.wire.process_keys import ProcessKey, door_path

AIM: Final = 1.1
MS: Final = 1e3
STREAMED: Final = 25  # Tokens of a stream: half a second.
WARM_UP: Final = 2
GAP_S: Final = 0.1  # In which what was hung up is forgotten.


@contextmanager
def door(engine_port: int) -> Iterator[Running]:
    port = free_port(HOST)
    command = [sys.executable, "-m", "bench.worker_door", str(engine_port), str(port)]
    with started(command, port, GATEWAY_CORE) as process:
        api = Api(f"{door_path(ProcessKey(MODEL, 0))}{OPENAI.path}")
        yield Running(Place(port, TOKEN, api), process)


class _Timed(Reader):
    """Knows when the first token came."""

    def ask(self) -> None:
        self.first = asyncio.get_running_loop().create_future()
        self._asked_s = time.perf_counter()
        super().ask()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.tokens and not self.first.done():
            self.first.set_result(time.perf_counter() - self._asked_s)


async def first_tokens_s(place: Place, at_once: int) -> list[float]:
    """On connections that are open already."""
    loop = asyncio.get_running_loop()
    request = place.request(body(place.api, stream=True, max_tokens=STREAMED))
    readers = [
        (await loop.create_connection(lambda: _Timed(request, OPENAI.mark), HOST, place.port))[1]
        for _ in range(at_once)
    ]
    for reader in readers:
        reader.ask()
    try:
        return await asyncio.wait_for(asyncio.gather(*(reader.first for reader in readers)), FLOW_LIMIT_S)
    finally:
        for reader in readers:
            reader.over.cancel()
            reader.transport.abort()


async def measure(running: Running, engine: Place, at_once: int, rounds: int) -> dict[str, list[list[float]]]:
    seen: dict[str, list[list[float]]] = {"direct": [], "door": []}
    for number in range(-WARM_UP, rounds):
        for name, place in (("direct", engine), ("door", running.place)):
            firsts_s = await first_tokens_s(place, at_once)
            if number >= 0:
                seen[name].append(firsts_s)
            await asyncio.sleep(GAP_S)
    return seen


def told(at_once: int, seen: dict[str, list[list[float]]]) -> str:
    def over_rounds(name: str, of: Callable[[list[float]], float]) -> float:
        return statistics.median(of(firsts_s) for firsts_s in seen[name]) * MS

    pairs = zip(seen["direct"], seen["door"], strict=True)
    ratio = statistics.median(statistics.median(b) / statistics.median(a) for a, b in pairs)
    shown = ", ".join(
        f"{name} {over_rounds(name, statistics.median):.0f} ms (last {over_rounds(name, max):.0f})"
        for name in seen
    )
    return f"first token of {at_once} at once: {shown}; {ratio:.3f} times (aim {AIM})"


async def costs(running: Running) -> str:
    requests = body(running.place.api)
    await ask_many(running.place, requests, AT_ONCE, 30)
    before_s = running.cpu_s()
    answered = await ask_many(running.place, requests, AT_ONCE, 100)
    request_us = (running.cpu_s() - before_s) / len(answered) * US
    each_token_us = await token_us(running, Effort(streams=64, seconds=3.0))
    return f"CPU time of the door: {request_us:.0f} us for a request, {each_token_us:.1f} us for a token"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--prompt-ms", type=int, default=150, help="how long the engine reads a prompt")
    given = options.parse_args()
    os.sched_setaffinity(0, {targets.OTHER_CORE})
    print(f"load {os.getloadavg()[0]:.1f} at the start", file=sys.stderr)
    with targets.upstream("http") as port, door(port) as running:
        print(uvloop.run(costs(running)))
    with targets.upstream("http", str(given.prompt_ms)) as port, door(port) as running:
        for at_once in (1, 8, 32, 64):
            print(told(at_once, uvloop.run(measure(running, Place(port), at_once, given.rounds))))


if __name__ == "__main__":
    main()

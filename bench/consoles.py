"""What open consoles cost a frontend, at rest and beside requests.

One `remuda frontend` with a mock replica and a fleet of nodes that send heartbeats, on a core to itself.
Consoles follow `GET /api/events`. Prints, with no console, one and ten in turns,
- CPU time of the frontend for a request (2 KB, 32 at once), and the ratio to no console in the same round;
- CPU time at rest, what each console adds, and what each is sent in a second.
Aims: the request costs the same; less than 1 % of a core for each console at rest.

    uv run --group dev python -m bench.consoles [--rounds 3] [--nodes 12] [--quick]
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import uvloop
from tests.support.processes import TOKEN

from bench import gateway_targets as targets
from bench.gateway import AT_ONCE, PERCENT, US, body
from bench.gateway_frontend import frontend
from bench.gateway_load import HOST, ask_many
from bench.gateway_targets import Running

CONSOLES: Final = (0, 1, 10)
BEAT_S: Final = 10.0
FIRST_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    nodes: int
    requests: int = 20_000
    rest_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Cost:
    request_us: float
    rest_percent: float
    received_s: float  # Bytes of each console in a second.


class Console:
    """Reads and counts."""

    def __init__(self) -> None:
        self.received = 0
        self.began = asyncio.Event()

    async def follow(self, port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
        try:
            while part := await reader.read(1 << 16):
                self.received += len(part)
                if b"event: snapshot" in part:
                    self.began.set()
        finally:
            writer.close()


@asynccontextmanager
async def consoles(count: int, port: int) -> AsyncIterator[list[Console]]:
    opened = [Console() for _ in range(count)]
    async with asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(one.follow(port)) for one in opened]
        async with asyncio.timeout(FIRST_S):
            for one in opened:
                await one.began.wait()
        yield opened
        for task in following:
            task.cancel()


class Fleet:
    """Nodes that are only rows, and their heartbeats, each of which has another figure of free memory."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False
        )
        self._ids: list[str] = []

    async def join(self, count: int) -> None:
        for number in range(count):
            facts = {"name": f"node-{number}", "address": f"127.0.0.1:{1000 + number}", "token": TOKEN}
            reply = await self._client.post("/api/node/register", json=facts)
            self._ids.append(reply.raise_for_status().json()["id"])

    async def beat(self) -> None:
        number = 0
        while self._ids:
            for id in self._ids:
                number += 1
                free = (32 << 30) + number % 7 * (64 << 20)
                await self._client.post(f"/api/node/{id}/heartbeat", json={"available_ram": free})
                await asyncio.sleep(BEAT_S / len(self._ids))


async def measure(running: Running, count: int, effort: Effort) -> Cost:
    async with consoles(count, running.place.port) as opened:
        before_s, before = running.cpu_s(), sum(one.received for one in opened)
        await asyncio.sleep(effort.rest_s)
        rest_s, received = running.cpu_s() - before_s, sum(one.received for one in opened) - before
        before_s = running.cpu_s()
        answered = await ask_many(running.place, body(running.place.api), AT_ONCE, effort.requests // AT_ONCE)
        request_us = (running.cpu_s() - before_s) / len(answered) * US
    return Cost(request_us, rest_s / effort.rest_s * PERCENT, received / effort.rest_s / max(count, 1))


async def rounds(running: Running, effort: Effort) -> dict[int, list[Cost]]:
    fleet = Fleet(f"http://{HOST}:{running.place.port}")
    await fleet.join(effort.nodes)
    found: dict[int, list[Cost]] = {count: [] for count in CONSOLES}
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(fleet.beat())
        await ask_many(running.place, body(running.place.api), AT_ONCE, 10)
        for _ in range(effort.rounds):
            for count in CONSOLES:
                found[count].append(await measure(running, count, effort))
        beating.cancel()
    return found


def table(found: dict[int, list[Cost]]) -> str:
    lines = ["consoles  us/request  of none  % of a core at rest  % each  bytes/s each"]
    none = found[0]
    for count, costs in found.items():
        request, rest = (
            _median([getattr(one, name) for one in costs]) for name in ("request_us", "rest_percent")
        )
        pairs = list(zip(costs, none, strict=True))
        ratio = _median([one.request_us / other.request_us for one, other in pairs])
        each = _median([(one.rest_percent - other.rest_percent) / max(count, 1) for one, other in pairs])
        sent = _median([one.received_s for one in costs])
        lines.append(f"{count:8}  {request:10.0f}  {ratio:7.3f}  {rest:19.2f}  {each:6.2f}  {sent:12.0f}")
    return "\n".join(lines)


def _median(figures: Sequence[float]) -> float:
    return statistics.median(figures)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--nodes", type=int, default=12)
    options.add_argument("--quick", action="store_true", help="one short round: does it work at all?")
    given = options.parse_args()
    effort = Effort(1, given.nodes, 320, 1.0) if given.quick else Effort(given.rounds, given.nodes)
    os.sched_setaffinity(0, {targets.OTHER_CORE})
    print(f"{effort.nodes} nodes, load {os.getloadavg()[0]:.1f} at the start")
    with targets.upstream("http") as port, frontend("http")(port) as running:
        print(table(uvloop.run(rounds(running, effort))))
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()

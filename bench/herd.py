"""Many simulated workers in one process, for benchmarks of operations: all that a frontend sees of them.

Each registers, heartbeats with reports over a connection of its own, and takes as long for an install as its
seed says, telling how far it is. They share a few connections to the bus, which a frontend cannot see.

Says `joined` when all are there, and how it went when its input ends: one JSON object per line.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import httpx
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.support.plain_http import PLAIN

BACKEND: Final = "bench"
BUILD: Final = "cpu-bench"
TOKEN: Final = "bench-token-of-no-value"
SIZE_BYTES: Final = 1 << 30
PROGRESS_EVERY_S: Final = 0.25
BEAT_GAP_S: Final = 0.25
BUS_CONNECTIONS: Final = 8
JOINING_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Order:
    """What the herd is told when it is started."""

    url: str
    bus_url: str
    nodes: int
    seed: int
    shortest_s: float
    longest_s: float
    beat_every_s: float


@dataclass(slots=True)
class Told:
    """One node's account. Instants are of the system's monotonic clock, which processes share."""

    node_id: str
    takes_s: float
    installs: int = 0
    heard_at: float = 0.0
    replied_at: float = 0.0
    events: int = 0
    beats: int = 0
    beats_failed: int = 0


class SimulatedWorker:
    def __init__(self, number: int, order: Order, takes_s: float) -> None:
        self._number, self._order = number, order
        self._host = httpx.URL(order.url).netloc.decode()
        self._boot = f"boot-{number}"
        self._sequence = 0
        self._installed: list[dict[str, object]] = []
        self._work: list[dict[str, object]] = []
        self._changed = asyncio.Event()
        self.told = Told("", takes_s)

    async def join(self, client: httpx.AsyncClient, bus: Client) -> None:
        host, port = self._host.split(":")
        reply = await client.post(
            "/api/node/register",
            json={
                "name": f"bench-{self._number:04}",
                "address": "127.0.0.1:1",
                "http_address": self._host,  # The frontend itself answers /healthz there.
                "token": TOKEN,
                "total_ram": 1 << 34,
                "available_ram": 1 << 33,
                "machine_id": f"bench-machine-{self._number}",
                "remuda": {"version": "bench", "boot_id": self._boot},
            },
        )
        self.told.node_id = reply.raise_for_status().json()["id"]
        self._bus = bus
        await bus.subscribe(f"nodes.{self.told.node_id}.backend.install", cb=self._install)
        await bus.subscribe(f"nodes.{self.told.node_id}.backend.list", cb=_list_none)
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        await self._beat()

    async def beat_for_ever(self) -> None:
        """At its own place in the interval, and at once when there is something new to report."""
        pause_s = self._order.beat_every_s * self._number / self._order.nodes
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause_s)
            self._changed.clear()
            await self._beat()
            await asyncio.sleep(BEAT_GAP_S)
            pause_s = self._order.beat_every_s - BEAT_GAP_S

    async def _install(self, request: Msg) -> None:
        self.told.installs += 1
        self.told.heard_at = time.monotonic()
        asked = json.loads(request.data)
        work = {"op_id": asked["op_id"], "attempt": asked["attempt"], "kind": "install", "backend": BACKEND}
        self._work = [{**work, "phase": "downloading"}]
        self._changed.set()
        await self._make_progress(asked["op_id"])
        self._work, self._installed = [], [{"name": BUILD, "alias": BACKEND, "version": "1.0"}]
        self.told.replied_at = time.monotonic()
        await request.respond(b'{"success":true}')
        self._changed.set()

    async def _make_progress(self, op: str) -> None:
        subject = f"nodes.{self.told.node_id}.backend.install.{op}.progress"
        event = {"op_id": op, "node_id": self.told.node_id, "backend": BACKEND, "phase": "downloading"}
        seq, done = 0, 0.0
        while done < 1.0:
            seq += 1
            figures = {
                "file_name": "layer 1/1",
                "percentage": round(100 * done, 2),
                "overall": round(100 * done, 2),
                "seq": seq,
                "current_bytes": int(SIZE_BYTES * done),
                "total_bytes": SIZE_BYTES,
            }
            await self._bus.publish(subject, json.dumps({**event, **figures}).encode())
            left_s = self.told.heard_at + self.told.takes_s - time.monotonic()
            await asyncio.sleep(max(0.0, min(PROGRESS_EVERY_S, left_s)))
            done = (time.monotonic() - self.told.heard_at) / self.told.takes_s
        self.told.events += seq

    async def _beat(self) -> None:
        self._sequence += 1
        report = {"boot_id": self._boot, "sequence": self._sequence}
        report |= {"installed": self._installed, "work": self._work}
        body = json.dumps({"available_ram": 1 << 33, "report": report}).encode()
        head = (
            f"POST /api/node/{self.told.node_id}/heartbeat HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        fields = (line.partition(b":") for line in answer.lower().split(b"\r\n"))
        length = next(int(value) for name, _, value in fields if name == b"content-length")
        await self._reader.readexactly(length)
        self.told.beats += 1
        self.told.beats_failed += not answer.startswith(b"HTTP/1.1 200")


async def run(order: Order) -> None:
    chance = random.Random(order.seed)
    workers = [
        SimulatedWorker(number, order, chance.uniform(order.shortest_s, order.longest_s))
        for number in range(order.nodes)
    ]
    buses = [await nats.connect(order.bus_url) for _ in range(BUS_CONNECTIONS)]
    await _join(order, workers, buses)
    print(json.dumps("joined"), flush=True)
    async with asyncio.TaskGroup() as tasks:
        beating = [tasks.create_task(worker.beat_for_ever()) for worker in workers]
        await asyncio.to_thread(sys.stdin.read)
        for task in beating:
            task.cancel()
    print(json.dumps([asdict(worker.told) for worker in workers]), flush=True)
    for bus in buses:
        await bus.close()


async def _join(order: Order, workers: Sequence[SimulatedWorker], buses: Sequence[Client]) -> None:
    limit = asyncio.Semaphore(JOINING_AT_ONCE)
    async with httpx.AsyncClient(
        base_url=order.url,
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=60,
        trust_env=False,
        verify=PLAIN,
    ) as client:

        async def join(number: int, worker: SimulatedWorker) -> None:
            async with limit:
                await worker.join(client, buses[number % len(buses)])

        await asyncio.gather(*(join(number, worker) for number, worker in enumerate(workers)))
    for bus in buses:
        await bus.flush()


async def _list_none(request: Msg) -> None:
    """The frontend asks for this to see whether commands reach the worker."""
    await request.respond(b'{"backends":[]}')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("order", help="as JSON")
    asyncio.run(run(Order(**json.loads(parser.parse_args().order))))

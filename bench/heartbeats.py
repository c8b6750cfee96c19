"""What heartbeats cost a frontend: many simulated workers over real HTTP and real NATS.

    uv run --group dev python -m bench.heartbeats [--nodes 1000] [--interval 10] [--seconds 60]

Each simulated worker registers, connects to the bus with its own credentials and subscribes to its subjects,
keeps one HTTP connection and sends a heartbeat with a report every interval, spread evenly. The frontend runs
on one core, the workers on another. Prints latency and the frontend's CPU share, on SQLite and on PostgreSQL.
Aims for 1,000 nodes at 10 s: p99 below 50 ms, below half a core.
"""

import argparse
import asyncio
import base64
import json
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
import nats
import nkeys
import psutil
from nats.aio.msg import Msg
from tests.support.plain_http import PLAIN
from tests.support.postgres import postgres_server

from bench.processes import Started, api_of, kind, remuda

TOKEN = "bench-token-of-no-value"
BUS_CONNECTS_AT_ONCE = 32


@dataclass
class Load:
    nodes: int
    interval_s: float
    seconds: float
    latencies_s: list[float] = field(default_factory=list)
    failures: int = 0


class Worker:
    """A worker reduced to what the frontend sees of it."""

    def __init__(self, number: int, host: str, port: int) -> None:
        self._number = number
        self._host, self._port = host, port
        self._id = ""
        self._sequence = 0

    async def join(self, client: httpx.AsyncClient) -> None:
        reply = await client.post(
            "/api/node/register",
            json={
                "name": f"bench-{self._number:04}",
                "address": "127.0.0.1:1",
                "http_address": f"127.0.0.1:{self._port}",  # The frontend itself answers /healthz there.
                "token": TOKEN,
                "total_ram": 1 << 34,
                "available_ram": 1 << 33,
                "labels": {"node.replica-slots": "1"},
                "machine_id": f"bench-machine-{self._number}",
                "remuda": {"version": "bench", "boot_id": f"boot-{self._number}"},
            },
        )
        reply.raise_for_status()
        registered = reply.json()
        self._id = registered["id"]
        key = nkeys.from_seed(registered["nats_user_seed"].encode())
        self._bus = await nats.connect(
            registered["nats_url"],
            user_jwt_cb=lambda: registered["nats_jwt"].encode(),
            signature_cb=lambda nonce: _sign(key, nonce),
            ping_interval=60,
        )
        await self._bus.subscribe(f"nodes.{self._id}.stop")
        await self._bus.subscribe(f"nodes.{self._id}.backend.list", cb=_list_none)
        await self._bus.flush()
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def beat_for(self, load: Load, began: float) -> None:
        """Beats at its own place in the interval until the time is over."""
        due = began + load.interval_s * self._number / load.nodes
        while due < began + load.seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += load.interval_s
            await self._beat(load)

    async def _beat(self, load: Load) -> None:
        self._sequence += 1
        body = json.dumps(
            {
                "available_ram": 1 << 33,
                "total_disk": 1 << 40,
                "available_disk": 1 << 39,
                "report": {"boot_id": f"boot-{self._number}", "sequence": self._sequence},
            }
        ).encode()
        head = (
            f"POST /api/node/{self._id}/heartbeat HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in answer.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        await self._reader.readexactly(length)
        load.latencies_s.append(time.perf_counter() - began)
        load.failures += not answer.startswith(b"HTTP/1.1 200")


def _sign(key: nkeys.KeyPair, nonce: str) -> bytes:
    return base64.b64encode(key.sign(nonce.encode()))


async def drive(load: Load, url: httpx.URL, frontend: Started) -> dict[str, float]:
    """CPU seconds per kind of process over the measured time."""
    workers = [Worker(number, url.host, url.port or 80) for number in range(load.nodes)]
    limit = asyncio.Semaphore(BUS_CONNECTS_AT_ONCE)
    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=60,
        verify=PLAIN,
    ) as client:

        async def join(worker: Worker) -> None:
            async with limit:
                await worker.join(client)

        await asyncio.gather(*(join(worker) for worker in workers))
    before = cpu_seconds(frontend)
    began = time.monotonic()
    await asyncio.gather(*(worker.beat_for(load, began) for worker in workers))
    spent = time.monotonic() - began
    return {name: (total - before[name]) / spent for name, total in cpu_seconds(frontend).items()}


def cpu_seconds(frontend: Started) -> dict[str, float]:
    return {kind(process): sum(process.cpu_times()[:2]) for process in frontend.tree()}


def measure(load: Load, database: str, database_url: str) -> None:
    env = {"REMUDA_REGISTRATION_TOKEN": TOKEN}
    if database_url:
        env["REMUDA_DATABASE_URL"] = database_url
    with remuda("frontend", "--port", "0", "--auto-approve", env=env) as frontend:
        url = httpx.URL(api_of(frontend))
        _pin(frontend)
        shares = asyncio.run(drive(load, url, frontend))
        nodes = httpx.get(f"{url}/api/nodes", timeout=30, verify=PLAIN).json()
    healthy = sum(node["status"] == "healthy" for node in nodes)
    ordered = sorted(load.latencies_s)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    print(
        f"{database:<11} {load.nodes} nodes every {load.interval_s:g} s for {load.seconds:g} s: "
        f"{len(ordered)} heartbeats, {load.failures} failed, {healthy} healthy   "
        f"p50 {p50:.1f} ms  p99 {p99:.1f} ms  worst {ordered[-1] * 1000:.1f} ms   "
        f"frontend {shares['frontend']:.1%} of a core, bus {shares['bus']:.1%}",
        flush=True,
    )


def _pin(frontend: Started) -> None:
    """Frontend and load on a core each, where there are two and the system lets us choose."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        for process in frontend.tree():
            process.cpu_affinity([0])
        psutil.Process().cpu_affinity([1])


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--nodes", type=int, default=1000)
    options.add_argument("--interval", type=float, default=10.0)
    options.add_argument("--seconds", type=float, default=60.0)
    given = options.parse_args()
    with ExitStack() as stack:
        measure(Load(given.nodes, given.interval, given.seconds), "SQLite", "")
        postgres = stack.enter_context(postgres_server())
        measure(Load(given.nodes, given.interval, given.seconds), "PostgreSQL", postgres.new_database())


async def _list_none(request: Msg) -> None:
    """The frontend asks for this to see whether commands reach the worker."""
    await request.respond(b'{"backends":[]}')


if __name__ == "__main__":
    main()

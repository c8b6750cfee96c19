"""Thousands of operations asked for at once: whether all are taken, and how fast.

    uv run --group dev python -m bench.flood [--operations 10000] [--connections 256] [--nodes 50]
                                             [--database sqlite|postgres|both]

A real frontend, on SQLite and on PostgreSQL. Each connection asks for one operation after another until none
is left to ask for; who is told to come back later does. Then all of them have to be there, once each.
Prints how long that took, how many were refused and retried, how long a caller waited for an answer, and what
it cost the frontend. The nodes are drained: what is measured is the asking.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from tests.support.nats_servers import plain_server
from tests.support.plain_http import PLAIN
from tests.support.postgres import postgres_server

from bench.processes import Started, api_of, remuda
from remuda.core.log import configure

TOKEN: Final = "bench-token-of-no-value"
RETRY_S: Final = 0.5
LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Job:
    operations: int
    connections: int
    nodes: int


@dataclass(slots=True)
class Taken:
    ids: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)
    refused: int = 0


async def measure(job: Job, database: str, database_url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as name:
        async with plain_server(Path(name)) as bus:
            env = {
                "REMUDA_CONFIG": "",
                "REMUDA_REGISTRATION_TOKEN": TOKEN,
                "REMUDA_NATS_URL": bus.url,
                "REMUDA_BACKEND_GALLERIES": json.dumps([{"name": "remuda", "url": "builtin:gallery"}]),
            }
            if database_url:
                env["REMUDA_DATABASE_URL"] = database_url
            with remuda("frontend", "--port", "0", "--auto-approve", env=env) as frontend:
                url = await asyncio.to_thread(api_of, frontend)
                async with asyncio.timeout(LIMIT_S):
                    await _flood(job, database, frontend, url)


async def _flood(job: Job, database: str, frontend: Started, url: str) -> None:
    async with _client(url) as admin:
        await _prepare(admin, job.nodes)
        taken, left = Taken(), iter(range(job.operations))
        cpu_before, began = _cpu_s(frontend), time.monotonic()
        async with asyncio.TaskGroup() as callers:
            for _ in range(job.connections):
                callers.create_task(_ask(url, left, job.nodes, taken))
        took = time.monotonic() - began
        cpu_s = _cpu_s(frontend) - cpu_before
        there = {op for number in range(job.nodes) for op in await _listed(admin, _node(number))}
    _report(job, database, taken, took, cpu_s, there)


async def _prepare(admin: httpx.AsyncClient, nodes: int) -> None:
    for number in range(nodes):
        body = {
            "name": _node(number),
            "address": "127.0.0.1:1",
            "token": TOKEN,
            "remuda": {"version": "0", "boot_id": "boot-1"},
        }
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        joined = await admin.post("/api/node/register", json=body, headers=bearer)
        node = joined.raise_for_status().json()["id"]
        (await admin.post(f"/api/nodes/{node}/drain")).raise_for_status()


async def _ask(url: str, left: Iterator[int], nodes: int, taken: Taken) -> None:
    async with _client(url) as client:
        for number in left:
            body = {
                "kind": "install",
                "uri": f"https://example.invalid/b{number}.tar.gz",
                "name": f"b{number}",
                "nodes": [_node(number % nodes)],
            }
            asked = time.monotonic()
            while (reply := await client.post("/api/ops", json=body)).status_code in (429, 503):
                taken.refused += 1
                await asyncio.sleep(RETRY_S)
            taken.waits_s.append(time.monotonic() - asked)
            taken.ids.add(reply.raise_for_status().json()["operation"]["id"])


async def _listed(admin: httpx.AsyncClient, node: str) -> list[str]:
    reply = await admin.get("/api/ops", params={"node": node, "limit": 1000})
    return [one["id"] for one in reply.raise_for_status().json()["operations"]]


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=LIMIT_S, trust_env=False, verify=PLAIN)


def _node(number: int) -> str:
    return f"flooded-{number:03}"


def _cpu_s(frontend: Started) -> float:
    cpu = frontend.process.cpu_times()
    return float(cpu.user + cpu.system)


def _report(job: Job, database: str, taken: Taken, took: float, cpu_s: float, there: set[str]) -> None:
    p50, p99 = (statistics.quantiles(taken.waits_s, n=100)[place] for place in (49, 98))
    print(
        f"{database}: {job.operations} operations over {job.connections} connections, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"  all taken     {took:.1f} s, {job.operations / took:.0f} per second")
    print(f"  refused       {taken.refused} times, each retried after {RETRY_S:g} s")
    print(f"  a caller      p50 {p50:.2f} s, p99 {p99:.2f} s, longest {max(taken.waits_s):.2f} s")
    print(f"  frontend      {cpu_s:.1f} s of CPU, {1000 * cpu_s / job.operations:.2f} ms per operation")
    print(f"  there         {len(there & taken.ids)} of {len(taken.ids)} answered", flush=True)


async def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--operations", type=int, default=10_000)
    options.add_argument("--connections", type=int, default=256)
    options.add_argument("--nodes", type=int, default=50)
    options.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    given = options.parse_args()
    job = Job(given.operations, given.connections, given.nodes)
    if given.database != "postgres":
        await measure(job, "SQLite", "")
    if given.database != "sqlite":
        with postgres_server() as postgres:
            await measure(job, "PostgreSQL", postgres.new_database())


if __name__ == "__main__":
    configure("warning")
    asyncio.run(main())

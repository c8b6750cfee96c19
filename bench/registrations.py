"""Thousands of machines that ask to join: whether they cost a frontend more than its bounds allow.

    uv run --group dev python -m bench.registrations [--nodes 3000] [--sources 250] [--labels 200]
                                                     [--connections 32]

A real frontend that approves nobody by itself. Every registration has a name of its own, the shared token and
many labels; they come from many addresses of this machine (127.1.0.1 and onwards), as an attacker's could.
Prints the frontend's memory before and after, how many were let in to wait and how many were turned away, and
how long an admin's list of nodes takes then. Exits with 1 if more nodes wait than may.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import httpx
from tests.support.plain_http import PLAIN

from bench.processes import Started, api_of, remuda
from remuda.core import limits

TOKEN: Final = "bench-token-of-no-value"
LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Job:
    nodes: int
    sources: int
    labels: int
    connections: int


async def measure(job: Job) -> bool:
    """Whether the frontend kept to its bounds."""
    env = {"REMUDA_CONFIG": "", "REMUDA_REGISTRATION_TOKEN": TOKEN, "REMUDA_BACKEND_GALLERIES": "[]"}
    with remuda("frontend", "--port", "0", "--no-auto-approve", env=env) as frontend:
        url = await asyncio.to_thread(api_of, frontend)
        async with (
            asyncio.timeout(LIMIT_S),
            httpx.AsyncClient(base_url=url, trust_env=False, verify=PLAIN) as admin,
        ):
            await _listed(admin)
            before, cpu_before, began = _rss_mib(frontend), _cpu_s(frontend), time.monotonic()
            statuses = await _register_all(job, url)
            took_s, cpu_s = time.monotonic() - began, _cpu_s(frontend) - cpu_before
            asked = time.monotonic()
            waiting = Counter(node["remuda"]["source"] for node in await _listed(admin))
            list_s = time.monotonic() - asked
            after = _rss_mib(frontend)
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    print(f"{job.nodes} registrations with {job.labels} labels each, from {job.sources} addresses")
    print(f"  answers       {answers}, in {took_s:.1f} s, {cpu_s:.1f} s of CPU")
    print(f"  waiting       {waiting.total()}, at most {max(waiting.values())} from one address")
    print(f"  memory (RSS)  {before:.0f} MiB before, {after:.0f} MiB after")
    print(f"  list of nodes {list_s:.2f} s", flush=True)
    return (
        waiting.total() <= limits.PENDING_NODES_MAX
        and max(waiting.values()) <= limits.PENDING_PER_SOURCE_MAX
        and set(statuses) <= {201, 503}
    )


async def _register_all(job: Job, url: str) -> Counter[int]:
    statuses: Counter[int] = Counter()
    left = iter(range(job.nodes))
    async with asyncio.TaskGroup() as callers:
        for _ in range(job.connections):
            callers.create_task(_register(job, url, left, statuses))
    return statuses


async def _register(job: Job, url: str, left: Iterator[int], statuses: Counter[int]) -> None:
    for number in left:
        source = f"127.1.{number % job.sources // 250}.{number % job.sources % 250 + 1}"
        body = {
            "name": f"machine-{number}",
            "address": f"{source}:50051",
            "token": TOKEN,
            "labels": {f"label-{count}": f"{number}-{count}".ljust(60, "x") for count in range(job.labels)},
        }
        statuses[await _posted(httpx.URL(url), source, json.dumps(body).encode())] += 1


async def _posted(url: httpx.URL, source: str, body: bytes) -> int:
    """The status of the answer, over a connection of its own from that address."""
    reader, writer = await asyncio.open_connection(url.host, url.port, local_addr=(source, 0))
    head = (
        f"POST /api/node/register HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def _listed(admin: httpx.AsyncClient) -> list[dict[str, dict[str, str]]]:
    reply = await admin.get("/api/nodes", timeout=LIMIT_S)
    nodes: list[dict[str, dict[str, str]]] = reply.raise_for_status().json()
    return nodes


def _rss_mib(frontend: Started) -> float:
    return float(frontend.process.memory_info().rss) / 2**20


def _cpu_s(frontend: Started) -> float:
    cpu = frontend.process.cpu_times()
    return float(cpu.user + cpu.system)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--nodes", type=int, default=3_000)
    options.add_argument("--sources", type=int, default=250)
    options.add_argument("--labels", type=int, default=200)
    options.add_argument("--connections", type=int, default=32)
    given = options.parse_args()
    return 0 if asyncio.run(measure(Job(**vars(given)))) else 1


if __name__ == "__main__":
    sys.exit(main())

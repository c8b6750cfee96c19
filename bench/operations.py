"""What one install on a large fleet costs a frontend, and how close it comes to the slowest node.

    uv run --group dev python -m bench.operations [--nodes 1000] [--seconds-per-node 1-20] [--watchers 20]
                                                  [--database sqlite|postgres|both] [--seed 1]

A real frontend on a real nats-server, on SQLite and on PostgreSQL. In a process of its own (`bench.herd`),
the workers: each takes a random time for the install, tells every 250 ms how far it is, and reports. In this
process, readers of the stream of events; each has to end with the picture that the API shows.
Prints, for one install on all nodes: time to all done against the slowest node (aim 1.1), the frontend's CPU
and memory, database writes per node, events per second told to readers, and the time from a worker's reply to
a reader seeing it. Short: --nodes 100 --seconds-per-node 1-3.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx
import psycopg
from tests.support.nats_servers import plain_server
from tests.support.plain_http import PLAIN
from tests.support.postgres import postgres_server

from bench.counted import STATEMENTS, TRANSACTIONS, VARIABLE, Tally
from bench.herd import BACKEND, BUILD, TOKEN, Order, Told
from bench.processes import Started, api_of, remuda
from bench.watchers import Json, Watcher
from remuda.core.log import configure

AIM: Final = 1.1
BEAT_EVERY_S: Final = 10.0
REST_S: Final = 5.0
LIMIT_S: Final = 300.0
POSTGRES_TELLS_AFTER_S: Final = 1.5  # Its sessions hand in their figures with such a delay.
INDEX: Final = f"""
- name: {BACKEND}
  alias: {BACKEND}
  capabilities: {{default: {BUILD}}}
- name: {BUILD}
  alias: {BACKEND}
  uri: 127.0.0.1:1/backends:{BUILD}
"""


@dataclass(frozen=True, slots=True)
class Job:
    nodes: int
    shortest_s: float
    longest_s: float
    watchers: int
    seed: int


@dataclass(frozen=True, slots=True)
class Reading:
    """All meters of the frontend at one instant."""

    at: float
    cpu_s: float
    writes: Mapping[str, int]


class Meters:
    def __init__(self, frontend: Started, tally: Tally, database_url: str) -> None:
        self._process = frontend.process
        self._tally = tally
        self._database_url = database_url
        self.peak_rss = 0

    @property
    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    def read(self) -> Reading:
        cpu = self._process.cpu_times()
        return Reading(time.monotonic(), cpu.user + cpu.system, self._tally.read())

    async def follow_memory(self) -> None:
        while True:
            self.peak_rss = max(self.peak_rss, self.rss)
            await asyncio.sleep(0.1)

    async def ask_postgres(self) -> Mapping[str, int]:
        """What the server itself has counted; empty on SQLite."""
        if not self._database_url:
            return {}
        await asyncio.sleep(POSTGRES_TELLS_AFTER_S)
        with psycopg.connect(self._database_url) as connection:
            row = connection.execute(
                "SELECT xact_commit, tup_inserted, tup_updated FROM pg_stat_database"
                " WHERE datname = current_database()"
            ).fetchone()
        assert row is not None
        return dict(zip(("commits", "inserted", "updated"), row, strict=True))


@dataclass(frozen=True, slots=True)
class Outcome:
    accepted_at: float
    shown: Json  # The operation as the API shows it in the end.
    herd: Sequence[Told]
    watchers: Sequence[Watcher]
    resting: tuple[Reading, Reading]
    working: tuple[Reading, Reading]
    postgres: Mapping[str, int]
    rss_before: int
    rss_peak: int

    @property
    def asked_at(self) -> float:
        return self.working[0].at

    @property
    def done_at(self) -> float:
        """When the last reader had seen the last node done."""
        return max(max(watcher.done_at.values()) for watcher in self.watchers)


async def measure(job: Job, database: str, database_url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as name:
        folder = Path(name)
        tally = folder / "tally"
        async with plain_server(folder) as bus:
            env = {**_environ(folder, bus.url, job), VARIABLE: str(tally)}
            if database_url:
                env["REMUDA_DATABASE_URL"] = database_url
            words = ("frontend", "--port", "0", "--auto-approve")
            with remuda(*words, env=env, module="bench.counted") as frontend:
                url = await asyncio.to_thread(api_of, frontend)
                order = Order(url, bus.url, job.nodes, job.seed, job.shortest_s, job.longest_s, BEAT_EVERY_S)
                async with asyncio.timeout(LIMIT_S):
                    outcome = await install_on_all(job, order, Meters(frontend, Tally(tally), database_url))
    report(job, database, outcome)


def _environ(folder: Path, bus_url: str, job: Job) -> dict[str, str]:
    index = folder / "index.yaml"
    index.write_text(INDEX)
    return {
        "REMUDA_CONFIG": "",
        "REMUDA_REGISTRATION_TOKEN": TOKEN,
        "REMUDA_NATS_URL": bus_url,
        "REMUDA_NODES_AT_ONCE": str(job.nodes),
        "REMUDA_BACKEND_GALLERIES": json.dumps([{"name": "bench", "url": index.as_uri()}]),
    }


async def install_on_all(job: Job, order: Order, meters: Meters) -> Outcome:
    watchers = [Watcher(httpx.URL(order.url)) for _ in range(job.watchers)]
    async with (
        _herd(order) as herd,
        httpx.AsyncClient(base_url=order.url, timeout=60, trust_env=False, verify=PLAIN) as admin,
        asyncio.TaskGroup() as tasks,
    ):
        background = [tasks.create_task(watcher.watch()) for watcher in watchers]
        background.append(tasks.create_task(meters.follow_memory()))
        await asyncio.gather(*(watcher.ready.wait() for watcher in watchers))
        rest_began = meters.read()
        await asyncio.sleep(REST_S)
        rest = rest_began, meters.read()
        postgres_before = await meters.ask_postgres()
        rss_before, meters.peak_rss = meters.rss, 0
        began = meters.read()
        reply = await admin.post("/api/ops", json={"kind": "install", "backend": BACKEND})
        accepted_at = time.monotonic()
        op = reply.raise_for_status().json()["operation"]["id"]
        await asyncio.gather(*(watcher.finished.wait() for watcher in watchers))
        ended = meters.read()
        shown = (await admin.get(f"/api/ops/{op}")).raise_for_status().json()
        postgres_after = await meters.ask_postgres()
        told = await _accounts(herd)
        for task in background:
            task.cancel()
    return Outcome(
        accepted_at,
        shown,
        told,
        watchers,
        resting=rest,
        working=(began, ended),
        postgres={kind: after - postgres_before[kind] for kind, after in postgres_after.items()},
        rss_before=rss_before,
        rss_peak=meters.peak_rss,
    )


@asynccontextmanager
async def _herd(order: Order) -> AsyncIterator[asyncio.subprocess.Process]:
    """All of it joined when the block begins."""
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-m", "bench.herd", json.dumps(asdict(order)))
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=1 << 24)
    try:
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise SystemExit("the workers did not join")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _accounts(herd: asyncio.subprocess.Process) -> list[Told]:
    output, _ = await herd.communicate(b"")  # Also ends its input.
    return [Told(**told) for told in json.loads(output)]


# What is printed.


def report(job: Job, database: str, outcome: Outcome) -> None:
    slowest = max(told.takes_s for told in outcome.herd)
    took = outcome.done_at - outcome.asked_at
    accepted = outcome.accepted_at - outcome.asked_at
    last_heard = max(told.heard_at for told in outcome.herd) - outcome.asked_at
    load = os.getloadavg()[0]
    print(f"{database}: {job.nodes} nodes, {job.shortest_s:g}-{job.longest_s:g} s each, load {load:.1f}")
    print(f"  operation         {outcome.shown['status']}: {outcome.shown['message']}")
    print(
        f"  all done          {took:.2f} s, slowest node {slowest:.2f} s: ratio {took / slowest:.3f} "
        f"(aim {AIM})   accepted after {accepted:.2f} s, last node told after {last_heard:.2f} s"
    )
    _report_frontend(outcome)
    _report_writes(job, outcome)
    _report_watchers(outcome, took)
    installs = sum(told.installs for told in outcome.herd)
    events, beats = sum(told.events for told in outcome.herd), sum(told.beats for told in outcome.herd)
    failed = sum(told.beats_failed for told in outcome.herd)
    print(
        f"  from the workers  {installs} installs, {events} progress events, "
        f"{beats} heartbeats ({failed} failed)"
    )
    sys.stdout.flush()


def _report_frontend(outcome: Outcome) -> None:
    (rest_began, rest_ended), (began, ended) = outcome.resting, outcome.working
    resting = (rest_ended.cpu_s - rest_began.cpu_s) / (rest_ended.at - rest_began.at)
    cpu_s, wall_s = ended.cpu_s - began.cpu_s, ended.at - began.at
    print(
        f"  frontend          {cpu_s:.1f} s of CPU, {cpu_s / wall_s:.0%} of a core (at rest {resting:.0%})"
        f"   RSS {outcome.rss_before / 1e6:.0f} MB before, {outcome.rss_peak / 1e6:.0f} MB at most"
    )


def _report_writes(job: Job, outcome: Outcome) -> None:
    began, ended = outcome.working
    written = {kind: ended.writes[kind] - began.writes[kind] for kind in ended.writes}
    per_node = {kind: count / job.nodes for kind, count in written.items() if count}
    rows = "  ".join(
        f"{kind} {count:.2f}"
        for kind, count in per_node.items()
        if kind not in (TRANSACTIONS, STATEMENTS) and count >= 0.005
    )
    print(
        f"  writes per node   {per_node[TRANSACTIONS]:.2f} transactions that write, "
        f"{per_node[STATEMENTS]:.2f} statements; rows: {rows}"
    )
    if outcome.postgres:
        figures = ", ".join(f"{kind} {count / job.nodes:.2f}" for kind, count in outcome.postgres.items())
        print(f"                    by pg_stat_database, reading transactions too: {figures}")


def _report_watchers(outcome: Outcome, took: float) -> None:
    watchers = outcome.watchers
    alike = sum(_same_picture(watcher, outcome.shown) for watcher in watchers)
    changes, ticks = sum(one.changes for one in watchers), sum(one.ticks for one in watchers)
    received = sum(one.received_bytes for one in watchers)
    replied = {told.node_id: told.replied_at for told in outcome.herd}
    late = [at - replied[node] for one in watchers for node, at in one.done_at.items()]
    p50, p99 = (statistics.quantiles(late, n=100)[place] for place in (49, 98))
    print(
        f"  {len(watchers)} readers        {(changes + ticks) / took:.0f} events/s in all "
        f"({changes} changes, {ticks} ticks, {received / 1e6:.0f} MB)   "
        f"{alike} of {len(watchers)} ended with the API's picture"
    )
    print(
        f"  reply to reader   p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, "
        f"worst {max(late) * 1000:.0f} ms"
    )


def _same_picture(watcher: Watcher, shown: Json) -> bool:
    """Attempts are told by the operation's own page alone."""
    api = {step["node_id"]: {**step, "attempts": ()} for step in shown["steps"]}
    seen = {node: {**step, "attempts": ()} for node, step in watcher.picture.items()}
    return seen == api


def _span(text: str) -> tuple[float, float]:
    shortest, _, longest = text.partition("-")
    return float(shortest), float(longest or shortest)


async def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--nodes", type=int, default=1000)
    options.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    options.add_argument("--seconds-per-node", type=_span, default=(1.0, 20.0))
    options.add_argument("--watchers", type=int, default=20)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    shortest_s, longest_s = given.seconds_per_node
    job = Job(given.nodes, shortest_s, longest_s, given.watchers, given.seed)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, seed {job.seed}", flush=True)
    if given.database != "postgres":
        await measure(job, "SQLite", "")
    if given.database != "sqlite":
        with postgres_server() as postgres:
            await measure(job, "PostgreSQL", postgres.new_database())


if __name__ == "__main__":
    configure("warning")
    asyncio.run(main())

"""What a gateway adds to the time and the work of a request, ours against nginx and others, in one run.

    uv run --group dev python -m bench.gateway [--rounds 3] [--requests 20000] [--streams 128] [--seconds 8]

Each gateway has a core to itself; clients and mock replicas share another. Prints, for each
- CPU time of all its processes for a request (2 KB, 32 at once) and for a token of paced streams, and the
  ratio to nginx in the same round, as the machine's speed varies from one minute to the next;
- what it adds to the latency of one request at a time;
- memory at rest, and for each stream in which nothing happens.
Aims, as ratios to nginx: over HTTP 5 for a request and 2.5 for a token, over gRPC 14 and 4.5; below 120 MB.
"""

import argparse
import asyncio
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import uvloop

from bench import gateway_targets as targets
from bench.gateway_load import Reader, ask_many, with_streams
from bench.gateway_targets import Running, Target
from bench.mock_upstreams import HOLD, MODEL, TOKENS_PER_S
from bench.processes import api_of, proportional_mib, remuda

AT_ONCE: Final = 32
WARM_UP: Final = 30  # Requests of each client, not counted.
ONE_BY_ONE: Final = 1000
IDLE_STREAMS: Final = 500
PROMPT: Final = "You look after a herd of horses. " * 55
BASE_AIM_MB: Final = 120.0
US, MB, KB = 1e6, 1e6, 1e3


@dataclass(frozen=True, slots=True)
class Job:
    rounds: int
    requests: int
    streams: int
    seconds: float
    grpc: bool


@dataclass(slots=True)
class Seen:
    """Of one gateway, a value for each round."""

    request_us: list[float] = field(default_factory=list)
    token_us: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    base_mb: list[float] = field(default_factory=list)
    idle_kb: list[float] = field(default_factory=list)


def body(*, stream: bool = False, max_tokens: int = 64) -> bytes:
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": "Which one?"}]
    asked = {
        "model": MODEL,
        "messages": messages,
        "temperature": 0.7,
        "max_tokens": max_tokens,
        "stream": stream,
    }
    return json.dumps(asked).encode()


def measure(target: Target, upstream_port: int, seen: Seen, job: Job) -> None:
    with target(upstream_port) as running:
        seen.base_mb.append(running.memory_bytes() / MB)
        uvloop.run(_measure(running, seen, job))


async def _measure(running: Running, seen: Seen, job: Job) -> None:
    await ask_many(running.place, body(), AT_ONCE, WARM_UP)
    one_by_one = await ask_many(running.place, body(), 1, ONE_BY_ONE)
    centiles = statistics.quantiles(one_by_one, n=100)
    seen.p50_us.append(centiles[49] * US)
    seen.p99_us.append(centiles[98] * US)
    if running.process is None:
        return
    before_s = running.cpu_s()
    answered = await ask_many(running.place, body(), AT_ONCE, job.requests // AT_ONCE)
    seen.request_us.append((running.cpu_s() - before_s) / len(answered) * US)

    async def count(readers: list[Reader]) -> None:
        before_s, before = running.cpu_s(), sum(reader.tokens for reader in readers)
        await asyncio.sleep(job.seconds)
        tokens = sum(reader.tokens for reader in readers) - before
        seen.token_us.append((running.cpu_s() - before_s) / tokens * US)

    tokens = int((job.seconds + 10) * TOKENS_PER_S)
    await with_streams(running.place, body(stream=True, max_tokens=tokens), job.streams, 1.0, count)

    async def weigh(readers: list[Reader]) -> None:
        seen.idle_kb.append((running.memory_bytes() - empty) / len(readers) / KB)

    empty = running.memory_bytes()
    await with_streams(running.place, body(stream=True, max_tokens=HOLD), IDLE_STREAMS, 1.0, weigh)


def main() -> None:
    job = _job()
    os.sched_setaffinity(0, {targets.OTHER_CORE})
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    over_http: dict[str, Target] = {
        "direct": targets.direct,
        "nginx": targets.nginx,
        "remuda, http": targets.frontend("http"),
        **targets.peers(),
    }
    over_grpc = {"remuda, grpc": targets.frontend("grpc")} if job.grpc else {}
    seen = {name: Seen() for name in (*over_http, *over_grpc)}
    with targets.upstream("http") as http_port, targets.upstream("grpc") as grpc_port:
        for number in range(job.rounds):
            for name, target in over_http.items():
                measure(target, http_port, seen[name], job)
            for name, target in over_grpc.items():
                measure(target, grpc_port, seen[name], job)
            print(f"round {number + 1} of {job.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    show(seen)
    print(f"a whole frontend at rest: {whole_frontend_mb():.1f} MB (aim < {BASE_AIM_MB:.0f})")


def whole_frontend_mb() -> float:
    """With store, bus and fleet, which the process measured above does without; nats-server not counted."""
    with remuda("frontend", "--port", "0") as started:
        api_of(started)
        return proportional_mib(started.process) * 2**20 / MB


def show(seen: dict[str, Seen]) -> None:
    nginx, direct = seen["nginx"], seen.pop("direct")
    print(f"\n{'':14} {'us/request':>10} {'x nginx':>8} {'us/token':>9} {'x nginx':>8}", end="")
    print(f" {'p50 +us':>8} {'p99 +us':>8} {'base MB':>8} {'KB/stream':>9}")
    for name, each in seen.items():
        print(
            f"{name:14} {_median(each.request_us):10.1f} {_ratio(each.request_us, nginx.request_us):8.2f}",
            end="",
        )
        print(f" {_median(each.token_us):9.1f} {_ratio(each.token_us, nginx.token_us):8.2f}", end="")
        print(f" {_added(each.p50_us, direct.p50_us):8.0f} {_added(each.p99_us, direct.p99_us):8.0f}", end="")
        print(f" {_median(each.base_mb):8.1f} {_median(each.idle_kb):9.1f}")
    print(f"without a gateway: p50 {_median(direct.p50_us):.0f} us, p99 {_median(direct.p99_us):.0f} us")


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return _median([own / other for own, other in zip(ours, theirs, strict=True)])


def _added(ours: Sequence[float], direct: Sequence[float]) -> float:
    return _median([own - other for own, other in zip(ours, direct, strict=True)])


def _job() -> Job:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--requests", type=int, default=20_000, help="at full speed, in each round")
    options.add_argument("--streams", type=int, default=128)
    options.add_argument("--seconds", type=float, default=8.0, help="for which streams are read")
    options.add_argument("--no-grpc", action="store_true", help="leave out the gRPC replica")
    given = options.parse_args()
    return Job(given.rounds, given.requests, given.streams, given.seconds, not given.no_grpc)


if __name__ == "__main__":
    main()

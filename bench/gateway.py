"""What a gateway adds to the time and the work of a request, ours against nginx and others, in one run.

Each gateway has a core to itself; clients, mock replicas and all else share another. Ours is a whole `remuda
frontend` with its fleet, whose nats-server is on the other core and is not counted. Prints, for each
- CPU time of its processes for a request (2 KB, 32 at once) and for a token of paced streams (50 a second),
  and the ratio to nginx in the same round, as the machine's speed varies from one minute to the next;
- what it adds to the latency of one request at a time;
- memory (PSS) at rest and after all that, and for each stream in which nothing happens; CPU time at rest.
LiteLLM and vllm-router are measured when they are found:

    uv tool install 'litellm[proxy]'
    uv tool install vllm-router
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import uvloop

from bench import gateway_targets as targets
from bench.gateway_figures import DIRECT, KEYED, LIMITED, NGINX, Figures, document, table
from bench.gateway_frontend import Keys, frontend
from bench.gateway_load import (
    ANTHROPIC,
    FLOW_LIMIT_S,
    OLLAMA,
    RESPONSES,
    Api,
    Reader,
    ask_many,
    with_streams,
)
from bench.gateway_targets import Running, Target
from bench.mock_upstreams import HOLD, MODEL, TOKENS_PER_S

PEERS: Final = ("litellm", "vllm-router")
AT_ONCE: Final = 32
SLOW_US: Final = 1000.0
FEWER: Final = 16
PROMPT: Final = "You look after a herd of horses. " * 55
US, MB, KB, PERCENT = 1e6, 1e6, 1e3, 100.0
EXAMPLES: Final = """\
examples:
  uv run --group dev python -m bench.gateway
  uv run --group dev python -m bench.gateway --rounds 5 --json > figures.json
  uv run --group dev python -m bench.gateway --only nginx --only remuda-grpc
  uv run --group dev python -m bench.gateway --litellm ~/venv/bin/litellm --vllm-router ~/venv/bin/vllm-router
"""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured in each round."""

    requests: int = 20_000
    streams: int = 128
    seconds: float = 8.0  # For which streams are read.
    rest_s: float = 5.0
    warm_up: int = 30  # Requests of each client, not counted.
    one_by_one: int = 1000
    idle_streams: int = 500


QUICK: Final = Effort(
    requests=320, streams=16, seconds=0.5, rest_s=0.5, warm_up=3, one_by_one=50, idle_streams=32
)


@dataclass(frozen=True, slots=True)
class Job:
    rounds: int
    effort: Effort
    gateways: dict[str, tuple[str, Target]]  # By name; what its replica speaks, and how it is started.
    json: bool


def body(api: Api, *, stream: bool = False, max_tokens: int = 64) -> bytes:
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": "Which one?"}]
    asked: dict[str, object] = {"model": MODEL, "stream": stream}
    if api is OLLAMA:
        asked |= {"messages": messages, "options": {"temperature": 0.7, "num_predict": max_tokens}}
    elif api is RESPONSES:
        asked |= {"input": messages, "temperature": 0.7, "max_output_tokens": max_tokens, "store": False}
    else:
        asked |= {"messages": messages, "temperature": 0.7, "max_tokens": max_tokens}
    return json.dumps(asked).encode()


def measure(target: Target, upstream_port: int, effort: Effort) -> Figures:
    with target(upstream_port) as running:
        return uvloop.run(_measure(running, effort))


async def _measure(running: Running, effort: Effort) -> Figures:
    """In this order: what is measured later finds a gateway that has worked."""
    seen = Figures(0, 0, rest_mb=running.memory_bytes() / MB, rest_rss_mb=running.resident_bytes() / MB)
    seen = await _at_rest(running, seen, effort)
    await ask_many(running.place, body(running.place.api), AT_ONCE, effort.warm_up)
    one_by_one = await ask_many(running.place, body(running.place.api), 1, effort.one_by_one)
    centiles = [value * US for value in statistics.quantiles(one_by_one, n=100)]
    if running.process is None:
        return Figures(centiles[49], centiles[98])
    seen = replace(seen, p50_us=centiles[49], p99_us=centiles[98])
    before_s = running.cpu_s()
    answered = await ask_many(running.place, body(running.place.api), AT_ONCE, effort.requests // AT_ONCE)
    seen = replace(seen, request_us=(running.cpu_s() - before_s) / len(answered) * US)
    if seen.request_us > SLOW_US:  # So many streams would take several cores, and leave nothing to measure.
        effort = replace(effort, streams=effort.streams // FEWER, idle_streams=effort.idle_streams // FEWER)
    seen = replace(
        seen, token_us=await token_us(running, effort), stream_kb=await _stream_kb(running, effort)
    )
    return replace(seen, after_mb=running.memory_bytes() / MB)


async def _at_rest(running: Running, seen: Figures, effort: Effort) -> Figures:
    """With a fleet of one node, whose worker reports now and then."""
    before_s, bus_before_s = running.cpu_s(), running.bus_cpu_s()
    await asyncio.sleep(effort.rest_s)
    used_s, bus_used_s = running.cpu_s() - before_s, running.bus_cpu_s() - bus_before_s
    return replace(
        seen,
        rest_cpu_percent=used_s / effort.rest_s * PERCENT,
        rest_bus_cpu_percent=bus_used_s / effort.rest_s * PERCENT,
    )


async def token_us(running: Running, effort: Effort) -> float:
    costs_us = list[float]()

    async def count(readers: list[Reader]) -> None:
        before_s, before = running.cpu_s(), sum(reader.tokens for reader in readers)
        await asyncio.sleep(effort.seconds)
        tokens = sum(reader.tokens for reader in readers) - before
        costs_us.append((running.cpu_s() - before_s) / tokens * US)

    asked = body(
        running.place.api, stream=True, max_tokens=int((effort.seconds + 2 * FLOW_LIMIT_S) * TOKENS_PER_S)
    )
    await with_streams(running.place, asked, effort.streams, count)
    return costs_us[0]


async def _stream_kb(running: Running, effort: Effort) -> float:
    grown = list[float]()
    empty = running.memory_bytes()

    async def weigh(readers: list[Reader]) -> None:
        grown.append((running.memory_bytes() - empty) / len(readers))

    await with_streams(
        running.place, body(running.place.api, stream=True, max_tokens=HOLD), effort.idle_streams, weigh
    )
    return grown[0] / KB


def main() -> None:
    job = _job()
    os.sched_setaffinity(0, {targets.OTHER_CORE})
    loads = [os.getloadavg()[0]]
    _say(f"{os.cpu_count()} cores, load {loads[0]:.1f} at the start; measured: {', '.join(job.gateways)}")
    seen: dict[str, list[Figures]] = {name: [] for name in job.gateways}
    with targets.upstream("http") as http_port, targets.upstream("grpc") as grpc_port:
        for number in range(job.rounds):
            _round(job, {"http": http_port, "grpc": grpc_port}, seen)
            loads.append(os.getloadavg()[0])
            _say(f"round {number + 1} of {job.rounds}, load {loads[-1]:.1f}")
    if job.json:
        print(json.dumps({"cores": os.cpu_count(), "loads": loads, "gateways": document(seen)}, indent=2))
    else:
        print(table(seen))


def _round(job: Job, ports: Mapping[str, int], seen: dict[str, list[Figures]]) -> None:
    """Each gateway once. A peer that does not work here costs nobody else their figures."""
    for name in list(seen):
        protocol, target = job.gateways[name]
        try:
            seen[name].append(measure(target, ports[protocol], job.effort))
        except (OSError, SystemExit) as error:
            if name not in PEERS:
                raise
            del seen[name]
            _say(f"{name} is left out: {error}")
        else:
            _say(f"{name}: {seen[name][-1].p50_us:.0f} us for one request")


def _say(words: str) -> None:
    """Beside the figures."""
    print(words, file=sys.stderr, flush=True)


def _gateways(litellm: str | None, vllm_router: str | None) -> dict[str, tuple[str, Target]]:
    """Those that are there."""
    found = {
        DIRECT: ("http", targets.direct),
        NGINX: ("http", targets.nginx),
        "remuda-http": ("http", frontend("http")),
        "remuda-grpc": ("grpc", frontend("grpc")),
        KEYED: ("http", frontend("http", keys=Keys.ASKED_FOR)),
        LIMITED: ("http", frontend("http", keys=Keys.LIMITED)),
        "remuda-grpc-anthropic": ("grpc", frontend("grpc", api=ANTHROPIC)),
        "remuda-grpc-ollama": ("grpc", frontend("grpc", api=OLLAMA)),
        "remuda-grpc-responses": ("grpc", frontend("grpc", api=RESPONSES)),
    }
    if litellm is not None:
        found["litellm"] = ("http", targets.litellm(litellm))
    if vllm_router is not None:
        found["vllm-router"] = ("http", targets.vllm_router(vllm_router))
    return found


def _job() -> Job:
    options = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Effort()
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--requests", type=int, default=usual.requests, help="at full speed, in each round")
    options.add_argument("--streams", type=int, default=usual.streams)
    options.add_argument("--seconds", type=float, default=usual.seconds, help="for which streams are read")
    options.add_argument("--quick", action="store_true", help="one short round: does it work at all?")
    options.add_argument("--only", action="append", metavar="NAME", help="this gateway; may be repeated")
    options.add_argument("--litellm", default=shutil.which("litellm"), metavar="PROGRAM")
    options.add_argument("--vllm-router", default=shutil.which("vllm-router"), metavar="PROGRAM")
    options.add_argument("--json", action="store_true", help="figures as one JSON document")
    given = options.parse_args()
    gateways = _gateways(given.litellm, given.vllm_router)
    if unknown := set(given.only or ()) - set(gateways):
        options.error(f"not there: {', '.join(sorted(unknown))}; there are {', '.join(gateways)}")
    chosen = {name: each for name, each in gateways.items() if name in (DIRECT, *(given.only or gateways))}
    effort = QUICK if given.quick else Effort(given.requests, given.streams, given.seconds)
    return Job(1 if given.quick else given.rounds, effort, chosen, given.json)


if __name__ == "__main__":
    main()

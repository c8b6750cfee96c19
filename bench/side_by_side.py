"""Two variants of one frontend in turns of a fraction of a second, so that whatever else the machine does
meanwhile costs both alike. Prints CPU time for a request (2 KB, 32 at once) and for a token of paced streams,
and the ratio of the second variant to the first: the median over all turns, with the middle half of them.

    python -m bench.side_by_side limits                  a key without limits, and one that has them all
    python -m bench.side_by_side FOLDER                  the source of another version, and this one
"""

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

import remuda
from bench import gateway_targets as targets
from bench.gateway import AT_ONCE, US, body
from bench.gateway_frontend import Keys, frontend
from bench.gateway_load import ANTHROPIC, FLOW_LIMIT_S, OLLAMA, OPENAI, Api, Reader, ask_many, with_streams
from bench.gateway_targets import Running
from bench.mock_upstreams import TOKENS_PER_S

LIMITS: Final = "limits"
APIS: Final = {"openai": OPENAI, "anthropic": ANTHROPIC, "ollama": OLLAMA}
_OWN_SOURCE: Final = Path(remuda.__file__).parents[1]
WARM_UP: Final = 30  # Requests of each client.


@dataclass(frozen=True, slots=True)
class Effort:
    turns: int
    each: int  # Requests of each client in a turn.
    streams: int
    seconds: float  # For which streams are read in a turn; 0: not at all.


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("compared", metavar="limits|FOLDER")
    options.add_argument("--protocol", choices=("http", "grpc"), default="http")
    options.add_argument("--api", choices=tuple(APIS), default="openai")
    options.add_argument("--limits", action="store_true", help="both versions with a key that has limits")
    options.add_argument("--turns", type=int, default=30)
    options.add_argument("--each", type=int, default=40, help="requests of each client in a turn")
    options.add_argument("--streams", type=int, default=64)
    options.add_argument("--seconds", type=float, default=1.0, help="of streams in a turn; 0: none")
    given = options.parse_args()
    os.sched_setaffinity(0, {targets.OTHER_CORE})
    effort = Effort(given.turns, given.each, given.streams, given.seconds)
    print(f"load {os.getloadavg()[0]:.1f} at the start", file=sys.stderr)
    keys = Keys.LIMITED if given.limits else Keys.NOT_ASKED_FOR
    with variants(given.compared, given.protocol, APIS[given.api], keys) as two:
        for what, costs in uvloop.run(measure(two, effort)).items():
            print(told(what, costs))
    print(f"load {os.getloadavg()[0]:.1f} at the end", file=sys.stderr)


@contextmanager
def variants(compared: str, protocol: str, api: Api, keys: Keys) -> Iterator[dict[str, Running]]:
    with ExitStack() as stack:
        port = stack.enter_context(targets.upstream(protocol))
        if compared == LIMITS:
            found = {
                name: stack.enter_context(frontend(protocol, keys=keys, api=api)(port))
                for name, keys in (("no limits", Keys.ASKED_FOR), ("limits", Keys.LIMITED))
            }
        else:
            found = {
                name: stack.enter_context(frontend(protocol, keys=keys, api=api, source=str(source))(port))
                for name, source in (("before", Path(compared).resolve(strict=True)), ("now", _OWN_SOURCE))
            }
        yield found


Costs = dict[str, list[float]]  # Of each turn, by variant, in microseconds.


async def measure(two: dict[str, Running], effort: Effort) -> dict[str, Costs]:
    requests: Costs = {name: [] for name in two}
    for running in two.values():
        await ask_many(running.place, body(running.place.api), AT_ONCE, WARM_UP)
    for turn in range(effort.turns):
        names = list(two) if turn % 2 else list(reversed(two))
        for name in names:
            requests[name].append(await _request_us(two[name], effort))
    return {"request": requests, **({"token": await _tokens_us(two, effort)} if effort.seconds else {})}


async def _request_us(running: Running, effort: Effort) -> float:
    before_s = running.cpu_s()
    answered = await ask_many(running.place, body(running.place.api), AT_ONCE, effort.each)
    return (running.cpu_s() - before_s) / len(answered) * US


async def _tokens_us(two: dict[str, Running], effort: Effort) -> Costs:
    """Streams of both at the same time, which therefore share every hindrance."""
    costs: Costs = {name: [] for name in two}
    (first, one), (second, other) = two.items()
    tokens_each = int((effort.turns * effort.seconds + 2 * FLOW_LIMIT_S) * TOKENS_PER_S)

    async def count(readers: dict[str, list[Reader]]) -> None:
        for _ in range(effort.turns):
            before = {name: (running.cpu_s(), _come(readers[name])) for name, running in two.items()}
            await asyncio.sleep(effort.seconds)
            for name, (cpu_s, come) in before.items():
                costs[name].append((two[name].cpu_s() - cpu_s) / (_come(readers[name]) - come) * US)

    async def with_the_other(readers: list[Reader]) -> None:
        asked = body(other.place.api, stream=True, max_tokens=tokens_each)
        await with_streams(
            other.place, asked, effort.streams, lambda others: count({first: readers, second: others})
        )

    asked = body(one.place.api, stream=True, max_tokens=tokens_each)
    await with_streams(one.place, asked, effort.streams, with_the_other)
    return costs


def _come(readers: list[Reader]) -> int:
    return sum(reader.tokens for reader in readers)


def told(what: str, costs: Costs) -> str:
    (first, one), (second, other) = costs.items()
    low, middle, high = statistics.quantiles([b / a for a, b in zip(one, other, strict=True)])
    return (
        f"us/{what}: {statistics.median(one):.1f} {first}, {statistics.median(other):.1f} {second}; "
        f"{middle:.3f} times (middle half of the turns: {low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()

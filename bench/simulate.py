"""Runs many simulated fleets, or shows one: python -m bench.simulate --seeds 20000 --jobs 2

With --of operations it is installing, upgrading and removing that is simulated, with --of serving it is
loading, answering and unloading, with --of dense all that can happen to that in little time, with --of hour
an hour on twenty machines, and with --of day a day on three hundred. A seed that fails is printed with its
last events. The same seed can be looked at again with --seed N --trace.
"""

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tests.sim.ops import simulation as operations
from tests.sim.serving import simulation as serving
from tests.sim.simulation import Outcome, run_seed

STORIES: dict[str, Callable[[int], Outcome]] = {
    "fleet": run_seed,
    "operations": operations.run_seed,
    "serving": serving.run_seed,
    "dense": serving.run_dense,
    "hour": serving.run_hour,
    "day": serving.run_day,
}
_LAST_EVENTS = 40
_CHUNK = 25


@dataclass(slots=True)
class Totals:
    seeds: int = 0
    events: int = 0
    events_least: int = sys.maxsize
    faults_least: int = sys.maxsize
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def take(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += len(outcome.trace.lines)
        self.events_least = min(self.events_least, len(outcome.trace.lines))
        self.faults_least = min(self.faults_least, outcome.trace.fault_count)
        self.virtual_s += outcome.virtual_s
        self.faults += outcome.trace.faults
        if outcome.failure is not None:
            self.failures.append(explain(outcome))

    def add(self, other: "Totals") -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.events_least = min(self.events_least, other.events_least)
        self.faults_least = min(self.faults_least, other.faults_least)
        self.virtual_s += other.virtual_s
        self.faults += other.faults
        self.failures += other.failures


def explain(outcome: Outcome, last: int = _LAST_EVENTS) -> str:
    """A failing seed for people: what happened last, what is wrong, how to see it again."""
    lines = [f"seed {outcome.seed} failed; its last events:", *outcome.trace.lines[-last:]]
    if outcome.failure is not None:
        lines += traceback.format_exception(outcome.failure)[-3:]
    of = "" if outcome.story == "fleet" else f" --of {outcome.story}"
    return "\n".join([*lines, f"again: python -m bench.simulate{of} --seed {outcome.seed} --trace"])


def run_seeds(story: str, seeds: Iterable[int]) -> Totals:
    totals = Totals()
    for seed in seeds:
        totals.take(STORIES[story](seed))
    return totals


def run_parallel(story: str, first: int, count: int, jobs: int) -> Iterator[Totals]:
    chunks = [
        range(start, min(start + _CHUNK, first + count)) for start in range(first, first + count, _CHUNK)
    ]
    if jobs == 1:
        yield from map(partial(run_seeds, story), chunks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(run_seeds, story), chunks)


def show_one(story: str, seed: int, *, whole: bool) -> int:
    outcome = STORIES[story](seed)
    if whole:
        print("\n".join(outcome.trace.lines))
    if outcome.failure is not None:
        print(explain(outcome, 0 if whole else _LAST_EVENTS))
    return 1 if outcome.failure is not None else 0


def show_many(story: str, first: int, count: int, jobs: int) -> int:
    totals, begun = Totals(), time.perf_counter()
    for part in run_parallel(story, first, count, jobs):
        for failure in part.failures:
            print(failure, end="\n\n", flush=True)
        totals.add(part)
        print(f"\r{totals.seeds} of {count} seeds", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    took_s = time.perf_counter() - begun
    print(f"seeds             {totals.seeds}, of which {len(totals.failures)} failed")
    print(f"speed             {totals.seeds / took_s:.1f} seeds/s with {jobs} job(s)")
    print(f"virtual time      {totals.virtual_s / 3600:.1f} h in {took_s:.0f} s")
    print(f"events            {totals.events}, at least {totals.events_least} per seed")
    print(f"faults            {totals.faults.total()}, at least {totals.faults_least} per seed")
    for kind, number in totals.faults.most_common():
        print(f"  {kind:<20}{number}")
    return 1 if totals.failures else 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--of", choices=STORIES, default="fleet", help="what is simulated")
    arguments.add_argument("--seed", type=int, help="run this one seed")
    arguments.add_argument("--trace", action="store_true", help="with --seed: print every event")
    arguments.add_argument("--first", type=int, default=0, help="where to begin")
    arguments.add_argument("--seeds", type=int, default=500, help="how many")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = arguments.parse_args()
    if given.seed is not None:
        return show_one(given.of, given.seed, whole=given.trace)
    return show_many(given.of, given.first, given.seeds, given.jobs)


def with_fixed_hashes() -> None:
    """Sets of texts have an order that changes with each start of Python, unless it is told not to."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "bench.simulate", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    with_fixed_hashes()
    sys.exit(main())

"""How long `remuda up` takes to a healthy local node, and what it holds in memory when idle.

    uv run --group dev python -m bench.start_up [--runs 5] [--idle 10]

Prints seconds from the command to `healthy` in the API (fresh data folder each time), the CPU time of all its
processes until then, which a busy machine changes less, and proportional memory (PSS) per process after the
idle time. Aims: under 3 s, under 180 MB in total.
"""

import argparse
import statistics
import time
from collections import defaultdict

from bench.processes import cpu_seconds, healthy_after, kind, proportional_mib, remuda


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--idle", type=float, default=10.0, help="seconds to idle before memory is read")
    given = options.parse_args()
    with remuda("up", "--port", "0") as started:
        healthy_after(started)  # Not counted: it may be the one that compiles all modules.
    seconds, cpu = [], []
    for number in range(given.runs):
        with remuda("up", "--port", "0") as started:
            seconds.append(healthy_after(started))
            cpu.append(cpu_seconds(started))
            if number < given.runs - 1:
                continue
            time.sleep(given.idle)
            memory = defaultdict[str, float](float)
            for process in started.tree():  # Several may be of one kind: a worker has a reaper.
                memory[kind(process)] += proportional_mib(process)
    print(
        f"healthy node after   median {statistics.median(seconds):.2f} s   worst {max(seconds):.2f} s   "
        f"({given.runs} runs; aim < 3 s)\n"
        f"CPU time until then   median {statistics.median(cpu):.2f} s"
    )
    shares = "   ".join(f"{name} {mib * 2**20 / 1e6:.0f}" for name, mib in sorted(memory.items()))
    total = sum(memory.values())
    print(f"idle memory          total {total * 2**20 / 1e6:.0f} MB   ({shares}; aim < 180 MB)")


if __name__ == "__main__":
    main()

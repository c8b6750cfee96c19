"""Kill, freeze and cut off a fleet while backends come and go on it, and see what holds.

Run `uv run --group dev python -m bench.chaos_ops --seconds 300 --seed 1`. It prints every wish and every
fault, and ends with 1 at the first thing that must not be. The same seed wishes and strikes alike.
"""

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.integration.chaos.storm import storm


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=5)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="remuda-chaos-ops-"))
    say = partial(print, flush=True)
    try:
        storm(folder, seed=asked.seed, span_s=asked.seconds, workers=asked.workers, say=say)
    except AssertionError as failure:
        print(f"FAILED with seed {asked.seed}: {failure}\nThe logs of all processes are in {folder}")
        return 1
    print(f"All holds after {asked.seconds:.0f} s with seed {asked.seed}.")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

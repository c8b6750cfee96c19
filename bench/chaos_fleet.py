"""Kill parts of a small fleet without warning, for as long as asked, and see that it recovers each time.

Run `uv run --group dev python -m bench.chaos_fleet --minutes 10 --seed 1`. It prints what it strikes and how
long the fleet took, and ends with 1 at the first thing that must not happen; the same seed strikes in the
same order.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.fleet.chaos import Herd, rampage
from tests.support.processes import ranch


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="remuda-chaos-"))
    try:
        with ranch(folder / "ranch") as place:
            strikes = _strike(Herd(place), asked.seed, 60 * asked.minutes)
    except AssertionError as failure:
        print(f"FAILED: {failure}\nThe logs of all processes are in {folder}")
        return 1
    print(f"{strikes} strikes, and the fleet recovered from all of them.")
    shutil.rmtree(folder)
    return 0


def _strike(herd: Herd, seed: int, span_s: float) -> int:
    began = time.monotonic()
    for number, victim in enumerate(rampage(herd, seed)):
        assert herd.troubles() == [], f"a node was thought ill of: {herd.troubles()}"
        passed_s = time.monotonic() - began
        if passed_s > span_s:
            herd.settle()
            return number
        print(f"{passed_s:7.1f} s  kill -9 {victim}", flush=True)
    raise AssertionError("a rampage has no end of its own")


if __name__ == "__main__":
    sys.exit(main())

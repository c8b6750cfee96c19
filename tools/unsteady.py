"""Prints the modules of the tests that the last run of pytest saw fail, if those were few.

They share two cores with three other processes of tests, real servers and real kills. What fails there and
not alone is a matter of time: still a bug, and named here so that somebody mends it.
"""

import json
import sys
from pathlib import Path

FAILED = Path(__file__).resolve().parents[1] / ".pytest_cache/v/cache/lastfailed"
FEW = 3


def main() -> int:
    failed = sorted(json.loads(FAILED.read_text()))
    if not 0 < len(failed) <= FEW:
        return 1
    for test in failed:
        print(f"unsteady, or broken: {test}", file=sys.stderr)
    print(*dict.fromkeys(test.partition("::")[0] for test in failed))
    return 0


if __name__ == "__main__":
    sys.exit(main())

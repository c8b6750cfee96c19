"""How much more than an image is fetched when its install is killed twenty times, in every phase.

    uv run --group dev python -m bench.killed_pull [--mb 200] [--folder DIR]

A real registry serves the image through a slow link; the installing process is killed with SIGKILL while it
resolves, downloads, unpacks and moves, and begins again each time. After each kill every backend that is
listed is compared with what was published. Prints the ratio of bytes fetched to bytes published, and fails
above 1.15.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import anyio
from tests.support.killed_installs import MB, Outcome, killed_upgrade
from tests.support.registry import registry_server

from remuda.core.log import configure

RATIO_MAX = 1.15


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--mb", type=int, default=200, help="size of the image (default: 200)")
    options.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    wanted = options.parse_args()
    configure("warning")
    with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
        outcome = measured(Path(folder), wanted.mb * MB)
    kills = ", ".join(f"{count} while {phase}" for phase, count in outcome.kills.items())
    print(f"image of {outcome.size / MB:.0f} MB, killed {sum(outcome.kills.values())} times: {kills}")
    print(f"fetched {outcome.fetched / MB:.1f} MB, {outcome.ratio:.3f} of the image (at most {RATIO_MAX})")
    return 0 if outcome.ratio <= RATIO_MAX else 1


def measured(folder: Path, size: int) -> Outcome:
    with registry_server(folder) as registry:
        return anyio.run(killed_upgrade, registry, folder / "installed", size)


if __name__ == "__main__":
    sys.exit(main())

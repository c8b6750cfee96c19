"""What takes too long for every change: ./test --long [PART ...]

Runs each part to its end, prints one line for each and keeps its output in a file.
Exits with 1 if any part failed.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.check import PYTEST

ROOT = Path(__file__).resolve().parents[1]
LAST_LINES = 30
THOROUGH = ("--hypothesis-profile", "thorough")
GUIDE = ROOT / "docs" / "guide"
_BENCHMARK = re.compile(r"uv run --group dev python -m (bench\.[a-z_]+)([^`\n]*)")


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    about: str
    module: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module, *self.arguments]


def simulation(story: str, seeds: int) -> Part:
    return Part(
        f"simulate-{story}", f"{seeds} seeds", "bench.simulate", ("--of", story, "--seeds", str(seeds))
    )


def tests(name: str, about: str, *arguments: str) -> Part:
    program, *options = PYTEST
    return Part(name, about, program, (*options, "--timeout", "1800", *arguments))


def documented() -> tuple[Part, ...]:
    """The benchmarks of the guides, as they are written there."""
    return tuple(
        Part(module.replace(".", "-"), "as documented", module, tuple(shlex.split(arguments)))
        for page in sorted(GUIDE.glob("*.md"))
        for module, arguments in _BENCHMARK.findall(page.read_text())
    )


PARTS = (
    tests("tests", "tests that are too long for every change", "-m", "long"),
    tests("inputs", "ten times as many made-up inputs", "-m", "hypothesis", *THOROUGH),
    tests(
        "requests", "ten times as many made-up requests", "tests/integration/api/test_openapi.py", *THOROUGH
    ),
    simulation("fleet", 300),
    simulation("operations", 500),
    simulation("serving", 150),
    simulation("dense", 500),
    simulation("hour", 60),
    simulation("day", 12),
    Part("mutations", "deliberate breaks that tests must notice", "tools.mutate"),
    Part("storm-operations", "5 minutes of kills, freezes and cuts", "bench.chaos_ops", ("--seconds", "300")),
    *documented(),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./test --long", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(part.name for part in PARTS))
    asked: list[str] = parser.parse_args().parts
    unknown = set(asked) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return run([part for part in PARTS if not asked or part.name in asked])


def run(parts: Sequence[Part]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="remuda-long-tests-"))
    failed = 0
    for part in parts:
        output = folder / f"{part.name}.txt"
        began = time.monotonic()
        with output.open("w") as file:
            code = subprocess.run(
                part.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False
            ).returncode
        failed += code != 0
        outcome = "passed" if code == 0 else f"FAILED with exit code {code}"
        print(
            f"{part.name:<22}{outcome}, {time.monotonic() - began:.0f} s ({part.about}); {output}", flush=True
        )
        if code != 0:
            print(*output.read_text(errors="replace").splitlines()[-LAST_LINES:], sep="\n", flush=True)
    print(f"{len(parts) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

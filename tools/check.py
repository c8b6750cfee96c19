"""Checks the whole repository: ./test [--quick]

Lint comes first, since it takes seconds; then types and tests run side by side, each to its end. With --quick
only those tests run that start no server. Exits with 1 if anything failed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
LINTERS = {
    "ruff check": ["ruff", "check"],
    "ruff format": ["ruff", "format", "--check"],
    "lint-imports": ["lint-imports"],
}
PYTEST = ("pytest", "--processes", "auto")
WHOLE = (*PYTEST, "-m", "not long", "--durations", "25", "--durations-min", "5")
QUICK = (*PYTEST, "-m", "not long", "--hypothesis-profile", "quick", "tests/unit")


@dataclass
class Check:
    """A command under way. Its output is shown as it comes, or else when it is over."""

    name: str
    words: Sequence[str]
    output: IO[str] | None = None
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        program, *arguments = self.words
        self.process = subprocess.Popen(
            [PROGRAMS / program, *arguments], cwd=ROOT, stdout=self.output, stderr=subprocess.STDOUT
        )

    def passed(self) -> bool:
        code = self.process.wait()
        if self.output is not None:
            self.output.seek(0)
            print(f"\n== {self.name}", self.output.read().strip(), sep="\n")
        outcome = "passed" if code == 0 else f"FAILED with exit code {code}"
        print(f"-- {self.name}: {outcome}, {time.monotonic() - self.began_s:.0f} s", flush=True)
        return code == 0

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def lint() -> bool:
    for name, words in LINTERS.items():
        print(f"\n== {name}", flush=True)
        if not Check(name, words).passed():
            return False
    return True


def types_and_tests(pytest: Sequence[str]) -> bool:
    with tempfile.TemporaryFile("w+") as output:
        mypy = Check("mypy", ["mypy"], output)
        try:
            print("\n== pytest, and mypy beside it", flush=True)
            tests = Check("pytest", pytest).passed()
            outcomes = [tests, mypy.passed()]
        finally:
            mypy.end()
    return all(outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./test", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only tests that start no server")
    quick: bool = parser.parse_args().quick
    began_s = time.monotonic()
    passed = lint() and types_and_tests(QUICK if quick else WHOLE)
    print(f"\n{'everything passed' if passed else 'FAILED'}, {time.monotonic() - began_s:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

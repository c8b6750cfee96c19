"""Breaks named behaviours one at a time and shows that the named test notices.

    uv run --group dev python -m tools.mutate [--only TEXT]

docs/reference/behaviour.md says which test proves which behaviour; tools/mutations.toml breaks a sample of
them. All is done in a copy of the repository: there the tests must pass, and each break must fail its test.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTATIONS = ROOT / "tools" / "mutations.toml"
TEST_LIMIT_S = 180


@dataclass(frozen=True)
class Mutation:
    row: str  # The behaviour, as the table names it.
    breaks: str  # What no longer holds, in words.
    file: str
    old: str
    new: str
    test: str


def mutations() -> list[Mutation]:
    return [Mutation(**entry) for entry in tomllib.loads(MUTATIONS.read_text())["mutation"]]


def copy_to(folder: Path) -> None:
    """What git knows, what it would know, and the stubs that the build made."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    names = [Path(name) for name in listed.decode().split("\0") if name]
    stubs = [path.relative_to(ROOT) for path in (ROOT / "src/remuda/rpc").glob("backend_pb2*")]
    for name in [*names, *stubs]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, *tests: str) -> tuple[bool, str]:
    """Whether they pass, and what they said. The copy's source comes first on the path, before the installed
    one. What hangs does not pass."""
    limit_s = TEST_LIMIT_S * len(tests)
    run = subprocess.Popen(
        [
            sys.executable,
            "-B",
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            *tests,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # So that all it has started can be ended with it.
    )
    try:
        said = run.communicate(timeout=limit_s)[0].decode()
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        return False, f"not over after {limit_s} s"
    if run.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(tests)} could not be run:\n{said[-2000:]}")
    return run.returncode == 0, said


def check(mutation: Mutation, folder: Path) -> str:
    """Empty when the test notices; otherwise what is wrong."""
    file = folder / mutation.file
    sound = file.read_text()
    if sound.count(mutation.old) != 1:
        return f"the text to break stands {sound.count(mutation.old)} times in {mutation.file}"
    file.write_text(sound.replace(mutation.old, mutation.new))
    try:
        passed, _ = run_tests(folder, mutation.test)
        return "the test does not notice" if passed else ""
    finally:
        file.write_text(sound)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="", help="only rows or breaks that contain this text")
    only = options.parse_args().only
    chosen = [entry for entry in mutations() if only in entry.row or only in entry.breaks]
    if not chosen:
        raise SystemExit(f"no row and no break contains {only!r}")
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="remuda-mutate-") as place:
        folder = Path(place)
        copy_to(folder)
        sound, said = run_tests(folder, *sorted({entry.test for entry in chosen}))
        if not sound:
            raise SystemExit(f"these tests fail on sound code already:\n{said[-2000:]}")
        for entry in chosen:
            problem = check(entry, folder)
            survivors += bool(problem)
            print(
                f"{'SURVIVED' if problem else 'noticed '}  {entry.row:<8} {entry.breaks}  {problem}",
                flush=True,
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} breaks were noticed")
    raise SystemExit(1 if survivors else 0)


if __name__ == "__main__":
    main()

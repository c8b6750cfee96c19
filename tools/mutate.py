"""Breaks named behaviours one at a time and shows that the named test notices.

    uv run --group dev python -m tools.mutate [--only TEXT]

docs/reference/behaviour.md says which test proves which behaviour; tools/mutations.toml breaks a sample of
them. Each break is made in a copy of the repository, where the test must fail; it must have passed before.
"""

import argparse
import os
import shutil
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


def passes(folder: Path, test: str) -> bool:
    """The copy's source comes first on the path, before the installed one."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        timeout=TEST_LIMIT_S,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{test} could not be run:\n{done.stdout.decode()[-2000:]}")
    return done.returncode == 0


def check(mutation: Mutation, folder: Path) -> str:
    """Empty when the test notices; otherwise what is wrong."""
    file = folder / mutation.file
    sound = file.read_text()
    if sound.count(mutation.old) != 1:
        return f"the text to break stands {sound.count(mutation.old)} times in {mutation.file}"
    if not passes(folder, mutation.test):
        return "the test fails on sound code"
    file.write_text(sound.replace(mutation.old, mutation.new))
    try:
        return "the test does not notice" if passes(folder, mutation.test) else ""
    finally:
        file.write_text(sound)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="", help="only rows or breaks that contain this text")
    only = options.parse_args().only
    chosen = [entry for entry in mutations() if only in entry.row or only in entry.breaks]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="remuda-mutate-") as place:
        folder = Path(place)
        copy_to(folder)
        for entry in chosen:
            problem = check(entry, folder)
            survivors += bool(problem)
            print(f"{'SURVIVED' if problem else 'noticed '}  {entry.row:<8} {entry.breaks}  {problem}")
    print(f"{len(chosen) - survivors} of {len(chosen)} breaks were noticed")
    raise SystemExit(1 if survivors else 0)


if __name__ == "__main__":
    main()

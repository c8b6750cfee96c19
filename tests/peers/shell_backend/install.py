"""Puts the backend into a folder as an installer would, complete with what it needs to run there."""

import json
import shutil
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_PARTS = (
    "tests/__init__.py",
    "tests/peers/__init__.py",
    "tests/peers/backend_proto.py",
    "tests/peers/shell_backend/__init__.py",
    "tests/peers/shell_backend/server.py",
)
_INSTALLED_AT = "2026-01-02T03:04:05Z"


def install_shell_backend(into: Path) -> Path:
    """Make that folder the backend called like it, and return its run file."""
    # Moved into place whole: a worker that watches would look at half of it, and then not again for a minute.
    new = into.with_name(f".{into.name}.new")
    _write_parts(new, into.name)
    new.rename(into)
    return into / "run.sh"


def _write_parts(into: Path, name: str) -> None:
    for part in _PARTS:
        place = into / part
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_ROOT / part, place)
    run_file = into / "run.sh"
    shutil.copyfile(_HERE / "run.sh", run_file)
    # A script, not a link: Python looks for its packages beside the name it was started under.
    python = into / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in (run_file, python):
        program.chmod(0o755)
    metadata = into / "metadata.json"
    metadata.write_text(json.dumps({"name": name, "installed_at": _INSTALLED_AT}, indent=2))
    metadata.chmod(0o644)

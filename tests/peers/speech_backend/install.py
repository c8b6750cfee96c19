"""Puts the backend into a folder as an installer would. What it runs on is in an environment of its own, made
once for each user of the machine: Piper's licence is not ours."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs

_ROOT = Path(__file__).parents[3]
_PARTS = (
    "tests/__init__.py",
    "tests/peers/__init__.py",
    "tests/peers/backend_proto.py",
    "tests/peers/shell_backend/__init__.py",
    "tests/peers/shell_backend/server.py",
    "tests/peers/speech_backend/__init__.py",
    "tests/peers/speech_backend/server.py",
)
_PACKAGES = ("faster-whisper==1.2.1", "piper-tts==1.8.0", "grpcio", "protobuf")
_INSTALL_S = 900
_RUN = """#!/bin/sh
here=$(dirname "$0")
cd "$here" || exit 1
exec "{python}" -B -m tests.peers.speech_backend.server "$@"
"""
_INSTALLED_AT = "2026-01-02T03:04:05Z"


def install_speech_backend(into: Path) -> None:
    """Make that folder the backend called like it: moved into place whole, as a worker may look at once."""
    new = into.with_name(f".{into.name}.new")
    for part in _PARTS:
        place = new / part
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_ROOT / part, place)
    run_file = new / "run.sh"
    run_file.write_text(_RUN.format(python=_environment() / "bin" / "python"))
    run_file.chmod(0o755)
    metadata = new / "metadata.json"
    metadata.write_text(json.dumps({"name": into.name, "installed_at": _INSTALLED_AT}))
    metadata.chmod(0o644)
    new.rename(into)


def _environment() -> Path:
    folder = Path(platformdirs.user_cache_dir("remuda-tests"))
    made = folder / "speech-environment"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            new = Path(scratch) / "made"
            _run("uv", "venv", "--relocatable", "--python", sys.executable, str(new))
            _run("uv", "pip", "install", "--python", str(new / "bin" / "python"), *_PACKAGES)
            new.rename(made)
    return made


def _run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=_INSTALL_S, stdout=sys.stderr)

"""A machine with next to nothing on it: a home, and a PATH that holds Python and a few standard programs."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

PROGRAMS = ("cat", "dirname", "env", "id", "readlink", "sh")


def bare_machine(folder: Path, *, uv: bool = False) -> dict[str, str]:
    """The environment of such a machine. Packages are reached, and cached, as on this one."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found, f"{name} is not on the PATH"
        put_program(programs / name, found)
    # The Python below this test's own environment, which is not the machine's.
    put_program(programs / "python3", getattr(sys, "_base_executable", sys.executable))
    if uv:
        put_program(programs / "uv", real_uv())
    home = folder / "home"
    home.mkdir()
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_CERT_"))
    }
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {
        "UV_CACHE_DIR": str(cache / "uv"),
        "PIP_CACHE_DIR": str(cache / "pip"),
        **kept,
        "HOME": str(home),
        "PATH": str(programs),
    }


def put_program(place: Path, program: str) -> None:
    # A script, not a symbolic link: Python looks for its library beside the name it was started under.
    place.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
    place.chmod(0o755)


@cache
def real_uv() -> str:
    """The program itself: what the PATH holds may be a shim that works on this machine only."""
    assert shutil.which("uv"), "this test needs uv on the PATH; ./test puts it there"
    ask = ["uv", "run", "--quiet", "--no-project", "--", "printenv", "UV"]
    return subprocess.run(ask, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

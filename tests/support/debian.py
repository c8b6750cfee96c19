"""Programs that tests need and Python packages do not bring: installed from Debian on first use."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

INSTALL_S = 300


def debian_program(name: str, package: str) -> str:
    """The program's path, once the package that brings it is installed."""
    if shutil.which(name) is None:
        # Tests run in several processes, but the package manager does not.
        with (Path(tempfile.gettempdir()) / "remuda-tests-apt.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if shutil.which(name) is None:
                _install(package)
    found = shutil.which(name)
    assert found is not None, f"{name} is missing: install the package {package}"
    return found


def _install(package: str) -> None:
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", package]):
        subprocess.run(
            [*become_root, "apt-get", "-o", "DPkg::Lock::Timeout=120", *command],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=INSTALL_S,
        )

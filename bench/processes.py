"""Real Remuda processes for benchmarks, and what they cost."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from tests.support.plain_http import PLAIN
from tests.support.processes import SHIPPED_GALLERY

START_LIMIT_S = 60.0
_QUIET = {
    "REMUDA_LOG_LEVEL": "warning",
    "REMUDA_BACKEND_GALLERIES": SHIPPED_GALLERY,
    "REMUDA_MODEL_GALLERIES": "[]",
}


@dataclass(frozen=True)
class Started:
    process: psutil.Process
    data: Path
    began: float  # time.monotonic when the command was given.

    def tree(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


@contextmanager
def remuda(
    *arguments: str, env: Mapping[str, str] | None = None, module: str = "remuda"
) -> Iterator[Started]:
    """`remuda ARGUMENTS`, or what stands for it, with a data folder that is gone when the block ends. Nothing
    leaves this machine: unless `env` names others, it has no galleries but the one that is shipped."""
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as folder:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--data-dir", folder],
            env={**_environment(), **_QUIET, **(env or {})},
            stdout=subprocess.DEVNULL,
            stderr=sys.stderr,
        )
        try:
            yield Started(psutil.Process(process.pid), Path(folder), began)
        finally:
            process.terminate()
            process.wait(timeout=60)


def _environment() -> dict[str, str]:
    """Without the wish to keep no compiled files: every start would compile all modules anew, which takes
    longer than all else that it does."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def api_of(started: Started) -> str:
    """The address in the data folder, once it is there."""
    return str(_wait(lambda: json.loads((started.data / "run" / "endpoint.json").read_text())["url"]))


def healthy_after(started: Started) -> float:
    """Seconds from the command to a healthy node in the API. It is asked for seldom enough not to slow down
    what it waits for."""
    url = api_of(started)
    with httpx.Client(verify=PLAIN) as client:

        def healthy() -> bool:
            nodes = client.get(f"{url}/api/nodes").json()
            return any(node["status"] == "healthy" for node in nodes)

        _wait(healthy, every_s=0.05)
    return time.monotonic() - started.began


def cpu_seconds(started: Started) -> float:
    """Of all processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in started.tree())


def proportional_mib(process: psutil.Process) -> float:
    """Memory with shared pages divided among those who share them, so that a sum over processes is true."""
    return float(process.memory_full_info().pss) / 2**20


def kind(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    if "nats-server" in line:
        return "bus"
    if "descendants.py" in line:
        return "reaper"
    return "worker" if "remuda worker" in line else "frontend"


def _wait(ask: Callable[[], object], every_s: float = 0.01) -> object:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        try:
            answer = ask()
        except (OSError, ValueError, KeyError, httpx.HTTPError):
            answer = None
        if answer:
            return answer
        time.sleep(every_s)
    raise SystemExit(f"not ready within {START_LIMIT_S:.0f} s")

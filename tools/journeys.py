"""How many of our modules one request passes through, in frontend and worker together.

    uv run --group dev python -m tools.journeys [--list]

Starts a real `remuda up` with a registry beside it and follows three journeys: a backend is installed from
an image, a chat for a model that is not loaded, and the same chat again. Modules that are entered while
nothing is asked (heartbeats, reconcilers) are not counted, nor are `core` and `wire`, which everything uses.
"""

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from tests.integration.cli.fleet_rig import FleetRig, fleet_rig
from tests.support.waiting import wait_until_blocking

ROOT = Path(__file__).resolve().parent.parent
IDLE_S = 12.0
LIMIT_S = 60.0
EVERYWHERE = ("remuda.core", "remuda.wire", "remuda.rpc")


@dataclass(slots=True)
class Watch:
    """The processes that are being watched, and where they write what they entered."""

    rig: FleetRig
    folder: Path

    def entered_during(self, act: Callable[[], None]) -> set[str]:
        watched = self._processes()
        for process in watched:
            process.send_signal(signal.SIGUSR1)
        act()
        before = set(self.folder.glob("*.json"))
        for process in watched:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGUSR2)

        def written() -> set[Path]:
            there = set(self.folder.glob("*.json")) - before
            return there if len(there) >= len(watched) else set()

        files = wait_until_blocking(written, within=LIMIT_S, what="what the processes entered")
        names = {name for file in files for name in json.loads(file.read_text())["modules"]}
        return {name for name in names if not name.startswith(EVERYWHERE)}

    def _processes(self) -> list[psutil.Process]:
        """The frontend and its worker: backends are programs of their own."""
        family = [psutil.Process(self.rig.up.pid), *psutil.Process(self.rig.up.pid).children(recursive=True)]
        return [process for process in family if _is_ours(process)]


def _is_ours(process: psutil.Process) -> bool:
    words = process.cmdline()
    return "remuda" in words and ("up" in words or "worker" in words)


@contextmanager
def watched_fleet() -> Iterator[Watch]:
    with tempfile.TemporaryDirectory(prefix="remuda-journeys-") as place:
        traces = Path(place) / "traces"
        traces.mkdir()
        os.environ["PYTHONPATH"] = str(ROOT / "tools" / "tracing")
        os.environ["TRACING_FOLDER"] = str(traces)
        with fleet_rig(Path(place)) as rig:
            yield Watch(rig, traces)


def install(rig: FleetRig, backend: str) -> None:
    rig.remuda("backends", "install", backend)


def chat(rig: FleetRig) -> None:
    body = {"model": "polly", "messages": [{"role": "user", "content": "Hello."}], "stream": True}
    with httpx.stream("POST", f"{rig.up.url}/v1/chat/completions", json=body, timeout=LIMIT_S) as reply:
        reply.raise_for_status()
        said = reply.read().decode()
    assert "[DONE]" in said, said


def measured(watch: Watch) -> dict[str, set[str]]:
    rig = watch.rig
    rig.push("shouter")
    install(rig, "echo")
    (rig.up.data_dir / "models").mkdir(exist_ok=True)
    (rig.up.data_dir / "models" / "polly.yaml").write_text("name: polly\nbackend: echo\n")
    wait_until_blocking(lambda: "polly" in rig.remuda("models").stdout, within=LIMIT_S, what="the model")
    idle = watch.entered_during(lambda: time.sleep(IDLE_S))
    journeys: dict[str, Callable[[], None]] = {
        "install": lambda: install(rig, "shouter"),
        "cold chat": lambda: chat(rig),
        "warm chat": lambda: chat(rig),
    }
    return {name: watch.entered_during(act) - idle for name, act in journeys.items()}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--list", action="store_true", help="name the modules, too")
    given = options.parse_args()
    with watched_fleet() as watch:
        found = measured(watch)
    for name, modules in found.items():
        print(f"{name:10} {len(modules):4} modules")
        for module in sorted(modules) if given.list else ():
            print(f"    {module}")


if __name__ == "__main__":
    main()

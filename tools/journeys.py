"""How many of our modules one request passes through, in frontend and worker together.

    uv run --group dev python -m tools.journeys [--list]

Starts a real `remuda up` with a registry beside it and follows three journeys: a backend is installed from
an image, a chat for a model that is not loaded, and the same chat again: from the request to its end, without
start-up, and without `core` and `wire`, which everything uses.

Both processes also work while nobody asks for anything (heartbeats, reconcilers, metrics, sweeps). So causes
are followed from the request on, through tasks, wake-ups, threads, connections and messages (tools/tracing),
and a module counts if it is entered because of the request. Each journey is repeated: a pass that was due
anyway may find the work before the wake-up for it arrives, and then nothing says what caused the rest.

The headline leaves out what is also entered while both processes are left alone. A heartbeat, a reconciler's
pass or a sweep goes through the same modules whether or not there is a request, and on a timer of its own:
which of them fall into a journey depends on the moment, and who follows a request need not read them to know
how it is answered. `entered` counts them too. `--list` names all, those in parentheses are not the journey's
own.
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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
from tests.integration.cli.fleet_rig import FleetRig, fleet_rig
from tests.support.waiting import wait_until_blocking

ROOT = Path(__file__).resolve().parent.parent
IDLE_S = 40.0  # Longer than the periods of what is done unasked, but for a few sweeps.
SETTLE_S = 3.0  # What follows one request (broadcasts, reports) is not to fall into the next one.
REPEATS = 4
LIMIT_S = 60.0
FIRST_MEASURED = {
    "install": 99,
    "cold chat": 114,
}  # Before the layout was put in order; at most 60 % is wanted.
EVERYWHERE = ("remuda.core", "remuda.wire", "remuda.rpc")


@dataclass(slots=True)
class Watch:
    """The processes that are being watched, and where they write what they entered."""

    rig: FleetRig
    folder: Path

    def during(self, act: Callable[[], None], kind: str = "caused") -> set[str]:
        time.sleep(SETTLE_S)
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
        names = {name for file in files for name in json.loads(file.read_text())[kind]}
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
        os.environ["PYTHONPATH"] = f"{ROOT / 'tools' / 'tracing'}:{ROOT / 'src'}"
        os.environ["TRACING_FOLDER"] = str(traces)
        with fleet_rig(Path(place)) as rig:
            yield Watch(rig, traces)


class Journey(NamedTuple):
    """The modules that one kind of request enters."""

    entered: set[str]
    own: set[str]  # Those that are not entered while nobody asks for anything.


def install(rig: FleetRig) -> None:
    rig.remuda("backends", "install", "shouter")


def chat(rig: FleetRig, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello."}], "stream": True}
    with httpx.stream("POST", f"{rig.up.url}/v1/chat/completions", json=body, timeout=LIMIT_S) as reply:
        reply.raise_for_status()
        said = reply.read().decode()
    assert "[DONE]" in said, said


def measured(watch: Watch) -> dict[str, Journey]:
    rig = watch.rig
    rig.remuda("backends", "install", "echo")
    models = [f"polly{number}" for number in range(REPEATS)]
    (rig.up.data_dir / "models").mkdir(exist_ok=True)
    for model in models:
        (rig.up.data_dir / "models" / f"{model}.yaml").write_text(f"name: {model}\nbackend: echo\n")
    wait_until_blocking(lambda: models[-1] in rig.remuda("models").stdout, within=LIMIT_S, what="the models")
    idle = watch.during(lambda: time.sleep(IDLE_S), "entered")
    taken: dict[str, list[set[str]]] = {"install": [], "cold chat": [], "warm chat": []}
    for version, model in enumerate(models):
        rig.push("shouter", version)
        taken["install"].append(watch.during(lambda: install(rig)))
        rig.remuda("backends", "remove", "shouter")
        taken["cold chat"].append(watch.during(partial(chat, rig, model)))
        taken["warm chat"].append(watch.during(partial(chat, rig, model)))
    return {name: Journey(set.union(*each), set.union(*each) - idle) for name, each in taken.items()}


def headline(name: str, journey: Journey) -> str:
    own, first = len(journey.own), FIRST_MEASURED.get(name)
    share = f" ({own / first:.0%} of {first}, as first measured)" if first else ""
    return f"{name:10} {own:3} modules{share}; {len(journey.entered)} entered with what also runs when idle"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--list", action="store_true", help="name the modules, too")
    given = options.parse_args()
    with watched_fleet() as watch:
        found = measured(watch)
    for name, journey in found.items():
        print(headline(name, journey))
        for module in sorted(journey.entered) if given.list else ():
            print(f"    {module}" if module in journey.own else f"    ({module})")


if __name__ == "__main__":
    main()

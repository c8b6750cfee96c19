"""A process that installs one image into a depot and says how far it is, for tests that end it at any time.

Unpacking is slowed down so that it lasts long enough to be hit.
"""

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyio

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.retry import Backoff
from remuda.oci.client import open_client
from remuda.oci.model import Platform
from remuda.oci.transport import RetryPolicy
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.fetch_unpack import ProgressStep
from remuda.worker.depot.install_spec import spec_from_source
from remuda.worker.depot.layout import DepotLayout
from remuda.worker.depot.versions import SystemDisk


class TellingDisk(SystemDisk):
    """Says what it is about to do, and dawdles."""

    def __init__(self, dawdle: Callable[[], None]) -> None:
        self._dawdle = dawdle

    def move(self, source: Path, target: Path) -> None:
        print("moving", flush=True)
        self._dawdle()
        super().move(source, target)
        self._dawdle()


async def install(reference: str, root: Path, name: str, dawdle_s: float) -> None:
    def dawdle() -> None:
        threading.Event().wait(dawdle_s)

    def tell(step: ProgressStep) -> None:
        print(step.phase, f"{step.percentage:.2f}", flush=True)
        if step.file is not None and step.file.phase == "extracting":
            dawdle()

    places = DepotLayout(root / "backends", root / "system", root / "depot")
    retry = RetryPolicy(backoff=Backoff(timedelta(milliseconds=10), timedelta(milliseconds=50)))
    async with open_client(SystemClock(), SystemEntropy(), retry=retry) as client:
        disk = TellingDisk(dawdle)
        depot = Depot(places, SystemClock(), client, Platform("linux", "amd64"), disk=disk)
        await depot.recover()
        await depot.install(spec_from_source(reference, name), refresh=True, on_step=tell)


if __name__ == "__main__":
    anyio.run(install, sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))

"""A process that fetches one model and says how far it is, for tests that end it at any time.

At the phase that is named it waits to be killed: some are too short to be hit by chance.
"""

import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import anyio

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.retry import Backoff
from remuda.hubs.hubs import HubAccess, open_hubs
from remuda.hubs.quantisations import NodeRoom
from remuda.models.source_refs import parse_source
from remuda.oci.blobs import BlobStore
from remuda.oci.disk import Partial
from remuda.oci.transport import RetryPolicy


class TellingStore(BlobStore):
    def __init__(self, root: Path, hold_at: str) -> None:
        super().__init__(root)
        self._hold_at = hold_at
        self._done = 0

    def told(self, done: int) -> None:
        """Taken out of its wheel, a file begins anew."""
        phase = "extracting" if done < self._done else "downloading"
        self._done = max(self._done, done)
        self.reached(phase, done)

    def commit(self, partial: Partial, digest: str) -> Path:
        self.reached("committing", 0)
        path = super().commit(partial, digest)
        self.reached("committed", 0)
        return path

    def reached(self, phase: str, done: int) -> None:
        print(phase, done, flush=True)
        if phase == self._hold_at:
            threading.Event().wait()


async def no_room() -> Sequence[NodeRoom]:
    return ()


async def fetch(source: str, root: Path, hold_at: str) -> None:
    store = TellingStore(root, hold_at)
    retry = RetryPolicy(backoff=Backoff(timedelta(milliseconds=10), timedelta(milliseconds=50)))
    access = HubAccess(env=os.environ)
    async with open_hubs(SystemClock(), SystemEntropy(), access, retry=retry) as hubs:
        store.reached("resolving", 0)
        found = await hubs.resolve(parse_source(source), no_room)
        for file in found.files:
            print("fetched", await hubs.fetch(file, store, store.told), flush=True)


if __name__ == "__main__":
    anyio.run(fetch, sys.argv[1], Path(sys.argv[2]), sys.argv[3])

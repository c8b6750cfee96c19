"""A process that fetches one file of a model as a worker does, and is made to be killed: `linger` names the
phase in which it stays, having said so.

    python -m tests.support.fetching_child MODELS PATH SIZE SHA256 LINGER SOURCE...
"""

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.log import configure
from remuda.core.retry import Backoff
from remuda.oci.client import open_client
from remuda.oci.disk import Partial
from remuda.oci.transport import RetryPolicy
from remuda.wire.files import WantedFile
from remuda.worker.files.hashes import Hashes
from remuda.worker.staging import placing
from remuda.worker.staging.fetching import ModelFetcher

HASHING: Final = "hashing"
PLACING: Final = "placing"
DONE: Final = "done"
_LINGER_S: Final = 120.0
_IDLE_S: Final = 30.0
_SOON: Final = RetryPolicy(backoff=Backoff(timedelta(milliseconds=20), timedelta(milliseconds=100)))


def linger_in(phase: str) -> None:
    def stay(*_: object, **__: object) -> None:
        print(phase, flush=True)
        time.sleep(_LINGER_S)  # noqa: TID251 - until it is killed.

    if phase == HASHING:
        setattr(Partial, "reread", stay)  # noqa: B010 - to the type checker it would be a mistake.
    elif phase == PLACING:  # What is there is under a hidden name, and whole.
        setattr(placing, "_show", stay)  # noqa: B010 - the same.


async def fetch(models: Path, wanted: WantedFile) -> None:
    clock = SystemClock()
    async with open_client(clock, SystemEntropy(), idle_read_s=_IDLE_S, retry=_SOON) as client:
        fetcher = ModelFetcher(models, client, Hashes(), "http://127.0.0.1:1", clock)
        await fetcher.fetch([fetcher.checked(wanted)], lambda *_: None)
    print(DONE, flush=True)


def main() -> None:
    models, path, size, sha256, linger, *sources = sys.argv[1:]
    configure("error")
    linger_in(linger)
    wanted = WantedFile(path=path, size=int(size), sha256=sha256, sources=tuple(sources))
    anyio.run(fetch, Path(models), wanted)


if __name__ == "__main__":
    main()

"""Bytes on their way into a partial: written and hashed by a thread while the next ones arrive."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from queue import SimpleQueue
from threading import Semaphore, Thread

import anyio
from anyio.to_thread import run_sync

from remuda.core.errors import RemudaError
from remuda.oci import limits
from remuda.oci.partial import Partial


class Appender:
    """Opened by `appending`. `size` is the partial's once all that was given is written."""

    def __init__(self, partial: Partial) -> None:
        self.size = partial.size
        self._partial = partial
        self._given: SimpleQueue[bytes | None] = SimpleQueue()
        self._free = Semaphore(limits.CHUNKS_BEHIND_MAX)
        self._failure: RemudaError | None = None
        self._thread = Thread(target=self._write, name="append", daemon=True)
        self._thread.start()

    async def give(self, data: bytes) -> None:
        """Waits while too much is waiting. Raises what an earlier write failed with."""
        if not self._free.acquire(blocking=False):
            await run_sync(self._free.acquire)
        self.check()
        self.size += len(data)
        self._given.put(data)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Returns when all that was given is written. Blocks."""
        self._given.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (data := self._given.get()) is not None:
            if self._failure is None:  # Else it is only taken, so that nobody waits for room.
                try:
                    self._partial.append(data)
                except RemudaError as failure:
                    self._failure = failure
            self._free.release()


@asynccontextmanager
async def appending(partial: Partial) -> AsyncIterator[Appender]:
    """The partial has everything that was given when the block ends, however it ends."""
    appender = Appender(partial)
    try:
        yield appender
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(appender.finish)
    appender.check()

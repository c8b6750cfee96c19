"""The machine's hardware, detected in a thread under a deadline, else the last known figures."""

import asyncio
import platform
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import structlog

from remuda.core import limits
from remuda.worker.hardware.detect import detect, refresh
from remuda.worker.hardware.host import Host
from remuda.worker.hardware.model import Hardware

log = structlog.get_logger(__name__)

_UNKNOWN = Hardware(
    architecture="",
    os=platform.system().lower(),
    cpu_model="",
    cpu_cores=0,
    total_ram=0,
    available_ram=0,
    total_disk=None,
    available_disk=None,
    gpus=(),
    driver_version="",
    capability="",
    problems=("Detecting this machine's hardware takes too long.",),
)


class HardwareInventory:
    """Keeps the last figures: a driver that does not answer costs their freshness, not the heartbeat."""

    def __init__(self, host: Host, models_dir: Path) -> None:
        self._host = host
        self._models_dir = models_dir
        self._known: Hardware | None = None
        self._under_way: anyio.Event | None = None  # One look at a time: who asks meanwhile waits for it.
        self._late = False

    async def current(self) -> Hardware:
        looking = self._under_way or self._begin()
        with anyio.move_on_after(limits.HARDWARE_S) as waiting:
            await looking.wait()
        late = waiting.cancelled_caught
        if late and not self._late:
            log.warning("hardware_look_timed_out", limit_s=limits.HARDWARE_S)
        self._late = late
        return self._known or _UNKNOWN

    def _begin(self) -> anyio.Event:
        self._under_way = anyio.Event()
        # A thread of its own: a pool's is waited for at exit, and a wedged driver holds it for ever.
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._look, args=(loop,), name="hardware", daemon=True).start()
        return self._under_way

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        found: Hardware | None = None
        try:
            if self._known is None:
                found = detect(self._host, self._models_dir)
            else:
                found = refresh(self._known, self._host, self._models_dir)
        finally:
            with suppress(RuntimeError):  # The loop has ended, and nobody asks any more.
                loop.call_soon_threadsafe(self._end, found)

    def _end(self, found: Hardware | None) -> None:
        self._known = found or self._known
        if self._under_way is not None:
            self._under_way.set()
        self._under_way = None

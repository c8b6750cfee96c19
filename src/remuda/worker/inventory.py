"""The machine's hardware without waiting on it: looking happens in a thread, under a deadline."""

import platform
from pathlib import Path

import anyio
import anyio.to_thread
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
    problems=("Looking at this machine's hardware takes too long.",),
)


class Inventory:
    """Keeps the last figures: a driver that does not answer costs their freshness, not the heartbeat."""

    def __init__(self, host: Host, models_dir: Path) -> None:
        self._host = host
        self._models_dir = models_dir
        self._known: Hardware | None = None
        self._looking = anyio.CapacityLimiter(1)  # A look that hangs is not joined by others.
        self._late = False

    async def current(self) -> Hardware:
        late = True
        with anyio.move_on_after(limits.HARDWARE_S):
            self._known = await anyio.to_thread.run_sync(
                self._look, limiter=self._looking, abandon_on_cancel=True
            )
            late = False
        if late and not self._late:
            log.warning("hardware_look_timed_out", limit_s=limits.HARDWARE_S)
        self._late = late
        return self._known or _UNKNOWN

    def _look(self) -> Hardware:
        if self._known is None:
            return detect(self._host, self._models_dir)
        return refresh(self._known, self._host, self._models_dir)

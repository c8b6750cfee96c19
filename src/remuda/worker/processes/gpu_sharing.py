"""Whether the owner of this machine uses its GPUs for something else: a game, a film, a training run. A
worker that gives way (`--yield-gpu`) says so in its reports; frontends then load nothing there, and unload
idle models.

A desktop always holds some VRAM, so that alone is no sign of use: how busy its programs keep the GPU is. Only
where the driver does not tell that does VRAM count, and then a lot of it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
import structlog

from remuda.core.clock import Clock
from remuda.host import descendants
from remuda.host.bounded_looks import BoundedLook
from remuda.host.descendants import Seen
from remuda.worker.hardware.host import Host, Nvml, NvmlFailed, NvmlUnsupported

log = structlog.get_logger(__name__)

EVERY_S: Final = 5.0
BUSY_PERCENT: Final = 20
VRAM_BYTES: Final = 3 << 30  # Where the driver tells no more than that.
BEGINS_AFTER: Final = 2  # Looks that see it, one after the other: a window that opens is no game.
OVER_AFTER_S: Final = 60.0  # Without use: between two levels of a game nothing is loaded.
_LOOK_S: Final = 10.0
_NAMES_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class OthersUse:
    """Of the GPUs, by programs that are none of ours. `busy_percent` None: the driver does not tell."""

    vram_bytes: int = 0
    busy_percent: int | None = None
    programs: tuple[str, ...] = ()  # The names of those that use most, as far as they are known.

    @property
    def counts(self) -> bool:
        if self.busy_percent is None:
            return self.vram_bytes >= VRAM_BYTES
        return self.busy_percent >= BUSY_PERCENT

    def __str__(self) -> str:
        who = " and ".join(self.programs) or "other programs"
        busy = "" if self.busy_percent is None else f"{self.busy_percent} % of the time and "
        return f"its owner uses the GPU: {who}, {busy}{self.vram_bytes / (1 << 30):.1f} GiB"


@dataclass(frozen=True, slots=True)
class Sharing:
    """What came of the looks so far. `claimed`: in words, who uses it now; empty: no others do."""

    claimed: str = ""
    seen: int = 0  # Looks that saw use, one after the other.
    used_s: float = field(default=float("-inf"))  # When use was seen last.


def after_look(before: Sharing, use: OthersUse, now_s: float) -> Sharing:
    if use.counts:
        seen = before.seen + 1
        begins = before.claimed or (str(use) if seen >= BEGINS_AFTER else "")
        return Sharing(begins, seen, now_s)
    over = now_s - before.used_s >= OVER_AFTER_S
    return Sharing("" if over else before.claimed, 0, before.used_s)


def others_use(nvml: Nvml, ours: Collection[int], alive: Mapping[int, str]) -> OthersUse:
    """`alive`: the names of all processes here. Where the driver numbers processes otherwise than this system
    does, as in a container, it cannot be told whose they are, and none counts."""
    vram = defaultdict[int, int](int)
    busy = defaultdict[int, int](int)
    told = True
    for index in range(nvml.count()):
        device = nvml.device(index)
        for pid, used in (*device.processes(), *device.graphics_processes()):
            vram[pid] = max(vram[pid], used or 0)
        try:
            for pid, share in device.busy():
                busy[pid] += share
        except NvmlUnsupported:
            told = False
    if any(pid not in alive for pid in vram):
        return OthersUse()
    others = sorted(set(vram) - set(ours), key=lambda pid: (-busy[pid], -vram[pid]))
    names = tuple(alive[pid] for pid in others[:_NAMES_MAX] if alive[pid])
    percent = min(sum(busy[pid] for pid in others), 100) if told else None
    return OthersUse(sum(vram[pid] for pid in others), percent, names)


class GpuSharing:
    """`run` looks; `claimed` is answered from memory. `changed` is called when that has become another."""

    def __init__(
        self,
        owner: str,
        host: Host,
        clock: Clock,
        changed: Callable[[], None],
        everyone: Callable[[], Sequence[Seen]] = descendants.everyone,
    ) -> None:
        self._owner = owner
        self._host = host
        self._clock = clock
        self._changed = changed
        self._everyone = everyone
        self._sharing = Sharing()
        self._looks = BoundedLook("gpu_sharing", self._look, _LOOK_S)

    @property
    def claimed(self) -> str:
        return self._sharing.claimed

    async def run(self) -> None:
        while True:
            await self.look()
            await anyio.sleep(EVERY_S)

    async def look(self) -> None:
        await self._looks.refresh()
        use = self._looks.latest
        if use is None:
            return
        before = self._sharing
        self._sharing = after_look(before, use, self._clock.monotonic())
        if self._sharing.claimed != before.claimed:
            log.info("gpu_sharing_changed", claimed=self._sharing.claimed or "no other programs use it")
            self._changed()

    def _look(self) -> OthersUse:
        everyone = self._everyone()
        ours = descendants.family(everyone, (), lambda mark: mark.owner == self._owner)
        names = {one.pid: _name(self._host, one.pid) for one in everyone}
        try:
            return others_use(self._host.nvml(), {one.pid for one in ours}, names)
        except NvmlFailed as error:
            log.debug("gpu_sharing_not_known", reason=str(error))
            return OthersUse()


def _name(host: Host, pid: int) -> str:
    return (host.read_text(f"/proc/{pid}/comm") or "").strip()[:40]

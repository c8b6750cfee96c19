"""Heartbeats: proof of life, what is free, and the worker's report.

Sent only while commands can reach us by the bus: a worker that cannot receive work must be seen to go stale.
Meanwhile the frontend gets the reason why they cannot, if it takes reasons.
"""

from collections.abc import Callable
from datetime import timedelta

import anyio
import structlog

from remuda.core import limits
from remuda.core.bus_reach import UnreachedBus
from remuda.core.entropy import Entropy
from remuda.core.errors import NodeRemoved, NotFound, RemudaError, Unauthorized
from remuda.core.events import AutoResetEvent, ObservableValue
from remuda.core.ids import BootId, NodeId
from remuda.wire.nodes import BusAddress, BusTrouble, GpuFigures, Heartbeat, Report
from remuda.worker.hardware.model import Hardware
from remuda.worker.ports import FrontendCalls, HardwareSource, ReportSource

log = structlog.get_logger(__name__)


class NothingYet:
    """The account of a worker that runs no backends."""

    def report(self) -> Report:
        return Report()


class Reporter:
    def __init__(
        self,
        frontend: FrontendCalls,
        hardware: HardwareSource,
        source: ReportSource,
        reachable_as: ObservableValue[NodeId | None],
        bus_trouble: Callable[[], tuple[NodeId, str, UnreachedBus | None] | None],
        boot_id: BootId,
        interval: timedelta,
        *,
        entropy: Entropy,
        register_again: Callable[[], None],
        removed: Callable[[NodeRemoved], None],
    ) -> None:
        self._frontend = frontend
        self._hardware = hardware
        self._source = source
        self._reachable_as = reachable_as
        self._bus_trouble = (
            bus_trouble  # As which node, and why; None: there is nothing to tell, or no receiver.
        )
        self._boot_id = boot_id
        self._interval = interval
        self._entropy = entropy
        self._register_again = register_again
        self._removed = removed
        self._news = AutoResetEvent()
        self._sequence = 0  # Grows over the whole boot, whatever the node is called meanwhile.
        self._delivered = ObservableValue(0)  # The newest that a frontend has stored.
        self._heard = True
        self.uncommandable = ""  # Why the frontend's commands do not reach us, in its words; empty: they do.

    def changed(self) -> None:
        """Something is new: report it now. Calls in quick succession make one heartbeat."""
        self._news.set()

    async def deliver(self) -> None:
        """Report now, and return when a frontend has stored a report that was made after this call."""
        due = self._sequence + 1
        self.changed()
        await self._delivered.until(lambda sequence: sequence >= due)

    async def run(self) -> None:
        """Report until cancelled: at once when the bus has become usable, then at each interval."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._welcome_changes)
            tasks.start_soon(self._beat_for_ever)

    async def _beat_for_ever(self) -> None:
        while True:
            node = self._reachable_as.value
            if node is None:
                await self._tell_trouble_until_reachable()
                continue
            self._news.clear()  # What is new from here on may have missed this report.
            await self._beat(node)
            await self._rest()

    async def _tell_trouble_until_reachable(self) -> None:
        """In the same task as heartbeats, so that the frontend receives both in order."""
        sent, told_at = "", 0.0
        while self._reachable_as.value is None:
            with anyio.move_on_after(limits.BUS_TROUBLE_AFTER_S):
                await self._reachable_as.until(lambda node: node is not None)
                return
            trouble = self._bus_trouble()
            if trouble is None:
                continue
            node, reason, unreached = trouble
            now = anyio.current_time()
            if reason != sent or now - told_at >= self._interval.total_seconds():
                await self._tell_trouble(node, reason, unreached)
                sent, told_at = reason, now

    async def _tell_trouble(self, node: NodeId, reason: str, unreached: UnreachedBus | None) -> None:
        self._sequence += 1
        where = None if unreached is None else BusAddress(address=unreached.address, why=unreached.why)
        message = BusTrouble(boot_id=self._boot_id, sequence=self._sequence, reason=reason, unreached=where)
        try:
            await self._frontend.bus_trouble(node, message)
        except RemudaError as trouble:
            self._note_trouble(node, trouble)

    async def _rest(self) -> None:
        """Spread a little, so that a fleet started at one instant does not report at one instant."""
        earliest = anyio.current_time() + limits.HEARTBEAT_GAP_S
        spread = 1 - limits.HEARTBEAT_SPREAD * self._entropy.fraction()
        with anyio.move_on_after(self._interval.total_seconds() * spread):
            await self._news.wait()
            await anyio.sleep_until(earliest)

    async def _welcome_changes(self) -> None:
        """A bus that has just become usable is news: the frontend waits to hear of us."""
        async for node in self._reachable_as.changes():
            if node is not None:
                self.changed()

    async def _beat(self, node: NodeId) -> None:
        self._sequence += 1
        account = self._source.report()
        report = account.model_copy(update={"boot_id": self._boot_id, "sequence": self._sequence})
        try:
            reply = await self._frontend.heartbeat(node, heartbeat(await self._hardware.current(), report))
        except RemudaError as trouble:
            self._note_trouble(node, trouble)
        else:
            if not self._heard:
                log.info("heartbeats_resumed", node=node)
            self._heard = True
            self._delivered.set(report.sequence)
            self._note_reach(node, reply.uncommandable)

    def _note_reach(self, node: NodeId, uncommandable: str) -> None:
        if uncommandable and uncommandable != self.uncommandable:
            log.error("commands_do_not_arrive", node=node, reason=uncommandable)
        self.uncommandable = uncommandable

    def _note_trouble(self, node: NodeId, trouble: RemudaError) -> None:
        if self._heard:
            log.warning("heartbeat_failed", node=node, reason=trouble.message)
        self._heard = False
        if isinstance(trouble, NodeRemoved):
            self._removed(trouble)
            return
        # The answer to registering says which it is: a forgotten node, or a token that no longer does.
        if isinstance(trouble, NotFound | Unauthorized):
            self._register_again()


def heartbeat(hardware: Hardware, report: Report) -> Heartbeat:
    """Figures that are not known are left out. A full disk or memory is a figure, and is said."""
    gpus = tuple(
        GpuFigures(index=gpu.index, total_vram=gpu.total_vram, available_vram=gpu.free_vram, name=gpu.name)
        for gpu in hardware.separate_gpus
        if gpu.index is not None
    )
    told = {"gpus": gpus, "disk_id": hardware.disk_id, "memory_id": hardware.memory_id}
    return Heartbeat(
        available_vram=hardware.available_vram if hardware.total_vram else None,
        available_ram=_free_ram(hardware, report) if hardware.total_ram else None,
        available_disk=hardware.available_disk,
        total_disk=hardware.total_disk,
        report=report.model_copy(update={name: value for name, value in told.items() if value}),
    )


def _free_ram(hardware: Hardware, report: Report) -> int:
    """Of a budget, what models do not use of it yet, for as long as the machine has as much: what is free of
    the machine alone would show nothing of them."""
    if not hardware.ram_is_budget:
        return hardware.available_ram
    left = hardware.total_ram - sum(replica.ram_bytes for replica in report.replicas)
    return max(min(hardware.available_ram, left), 0)

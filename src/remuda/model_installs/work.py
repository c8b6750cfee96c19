"""Implements ops.ports.FrontendWork: what frontends do for themselves about models; and tells how far it
is."""

from contextlib import suppress

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.model_installs.installer import Installer
from remuda.model_installs.remover import Remover
from remuda.ops.model import Ending, Kind, Step
from remuda.ops.ports import BusPort
from remuda.ops.progress_board import ProgressBoard
from remuda.wire import subjects
from remuda.wire.backends import InstallProgress
from remuda.wire.codec import encode


class ModelFileWork:
    def __init__(self, installer: Installer, remover: Remover) -> None:
        self._installer = installer
        self._remover = remover

    async def carry_out(self, step: Step) -> Ending:
        if step.kind is Kind.INSTALL_MODEL:
            return await self._installer.install(step)
        return await self._remover.remove(step)


class BoardTeller:
    """Implements ports.ProgressTeller. Heard here at once, and by other frontends over the bus, if it is
    up."""

    def __init__(self, board: ProgressBoard, bus: BusPort, clock: Clock) -> None:
        self._board = board
        self._bus = bus
        self._clock = clock

    async def tell(self, step: Step, event: InstallProgress) -> None:
        self._board.hear((step.op, step.node, step.attempt), event, self._clock.monotonic())
        with suppress(RemudaError):  # What is written down now and then tells them, too.
            await self._bus.publish(subjects.install_progress(step.node, step.op), encode(event))

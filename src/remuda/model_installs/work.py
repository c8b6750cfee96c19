"""Implements ops.ports.FrontendWork: what frontends do for themselves about models, and how far it is."""

from contextlib import suppress
from typing import Final

from remuda.core.clock import Clock
from remuda.core.errors import Problem, RemudaError
from remuda.model_installs.installer import Installer
from remuda.model_installs.remover import Remover
from remuda.model_installs.uploads import ModelUploads, uploaded
from remuda.ops.model import DoneWithNote, Ending, Kind, Step
from remuda.ops.ports import BusPort
from remuda.ops.progress_board import ProgressBoard
from remuda.wire import subjects
from remuda.wire.backends import InstallProgress
from remuda.wire.codec import encode

_NOT_A_MODEL: Final = frozenset({"invalid", "content_refused"})  # And will be none at the next attempt.


class ModelFileWork:
    def __init__(self, installer: Installer, remover: Remover, uploads: ModelUploads) -> None:
        self._installer = installer
        self._remover = remover
        self._uploads = uploads

    async def carry_out(self, step: Step) -> Ending:
        if step.kind is not Kind.INSTALL_MODEL:
            return await self._remover.remove(step)
        ending = await self._installer.install(step)
        if (upload := uploaded(step.source.uri)) and _is_over(ending):
            await self._uploads.over(upload)
        return ending


def _is_over(ending: Ending) -> bool:
    """Whether the uploaded files are of no more use."""
    if isinstance(ending, Problem):
        return ending.code in _NOT_A_MODEL
    return ending is None or isinstance(ending, DoneWithNote)


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

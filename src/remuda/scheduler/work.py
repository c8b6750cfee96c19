"""Loads and unloads, as operations ask for them."""

from remuda.core.errors import Problem
from remuda.ops.model import Kind, Step
from remuda.scheduler.loader import Loader
from remuda.scheduler.unloader import Unloader


class ReplicaWork:
    """Implements ops.ports.ModelWork."""

    def __init__(self, loader: Loader, unloader: Unloader) -> None:
        self._loader = loader
        self._unloader = unloader

    async def carry_out(self, step: Step) -> Problem | None:
        return await (self._loader.load(step) if step.kind is Kind.LOAD else self._unloader.unload(step))

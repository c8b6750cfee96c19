"""What frontends know of nodes that serve: their figures and their account of themselves come with every
heartbeat."""

from dataclasses import replace

from remuda.core.ids import BootId, NodeId
from remuda.fleet.model import Report as StoredReport
from tests.sim.clocks import elapsed_s
from tests.sim.ops.roster import Roster
from tests.sim.ops.workers import SimulatedWorker
from tests.sim.serving.workers import ServingWorker
from tests.sim.serving.world import ServingWorld


class ServingRoster(Roster):
    def __init__(self, world: ServingWorld) -> None:
        super().__init__(world)
        self._serving = world

    def register(self, worker: SimulatedWorker, boot: BootId) -> None:
        super().register(worker, boot)
        self._serving.begun_at_s.setdefault(boot, elapsed_s())
        self._note_figures(worker)

    def report(self, node: NodeId, report: StoredReport) -> bool:
        known = super().report(node, report)
        worker = self._world.workers.get(node)
        if known and worker is not None:
            self._note_figures(worker)
        return known

    def _beat(self, worker: SimulatedWorker) -> None:
        entry = self._entries.get(worker.node)
        if entry is None or worker.life is None or not isinstance(worker, ServingWorker):
            return
        super()._beat(worker)
        if entry.node.boot_id == worker.life.boot:
            worker.life.reports += 1
            told = StoredReport(worker.life.boot, worker.life.reports, worker.account())
            entry.node = replace(entry.node, report=told, resources=worker.resources)

    def _note_figures(self, worker: SimulatedWorker) -> None:
        entry = self._entries.get(worker.node)
        if entry is not None and isinstance(worker, ServingWorker):
            entry.node = replace(entry.node, resources=worker.resources)

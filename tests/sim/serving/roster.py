"""What frontends know of nodes that serve: their figures and their account of themselves come with every
heartbeat, and what admins say of them counts at once."""

from collections.abc import Mapping

from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import Reachability
from remuda.fleet.model import Label, LabelSource
from remuda.wire.nodes import Report
from tests.sim.ops.roster import Roster
from tests.sim.ops.workers import SimulatedWorker
from tests.sim.serving.workers import ServingWorker
from tests.sim.serving.world import ServingWorld
from tests.support.clocks import elapsed_s


class ServingRoster(Roster):
    def __init__(self, world: ServingWorld) -> None:
        super().__init__(world)
        self._serving = world

    def register(self, worker: SimulatedWorker, boot: BootId) -> None:
        assert isinstance(worker, ServingWorker), "here all of them serve"
        new = not self.knows(worker.node)
        super().register(worker, boot)
        self._serving.begun_at_s.setdefault(boot, elapsed_s())
        self._note_figures(worker)
        if new:
            self.label(worker, worker.own_labels)

    def report(self, node: NodeId, report: Report) -> bool:
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
        told: dict[str, object] = {"resources": worker.resources}
        if worker.reports and entry.node.boot_id == worker.life.boot:
            worker.life.reports += 1
            told["report"] = worker.stored_report()
        self._now(entry, **told)

    def _note_lost(self) -> None:
        super()._note_lost()
        for worker in self._serving.workers_there:
            entry = self._entries.get(worker.node)
            worker.heard.becomes(entry is not None and self._reachability(entry) is Reachability.UP)

    def _note_figures(self, worker: SimulatedWorker) -> None:
        entry = self._entries.get(worker.node)
        if entry is not None and isinstance(worker, ServingWorker):
            self._now(entry, resources=worker.resources)

    # What admins say.

    def put_on_drain(self, worker: ServingWorker, *, drained: bool) -> None:
        if self.knows(worker.node):
            self.drain(worker.node, drained=drained)
            worker.on_terms(drained=drained)

    def label(self, worker: ServingWorker, labels: Mapping[str, str]) -> None:
        if self.knows(worker.node):
            admins = {key: Label(value, LabelSource.ADMIN) for key, value in labels.items()}
            self._now(self._entries[worker.node], labels=admins)
            worker.on_terms(labels=labels)

    def set_budget(self, worker: ServingWorker, share: float | None) -> None:
        if self.knows(worker.node):
            whole = worker.memory.vram_bytes
            budget = None if share is None else f"{share:.0%}"
            self._now(self._entries[worker.node], vram_budget_override=budget)
            worker.on_terms(vram_bytes=whole if share is None else int(whole * share))

    def send_away(self, worker: ServingWorker) -> None:
        """Its node is removed. It goes on running, and nobody knows it any more."""
        self.remove(worker.node)
        del self._world.workers[worker.node]
        worker.on_terms(member=False)
        self._world.claims.after_write()

"""The storm: what clients and admins ask for and what goes wrong, one after the other, as the dice fall."""

import math
from collections.abc import Mapping

from tests.sim.ops.trouble import Deed, Trouble
from tests.sim.serving.configs import ZONE, model_text
from tests.sim.serving.frontends import ServingFrontend
from tests.sim.serving.workers import ServingWorker
from tests.sim.serving.world import ServingWorld
from tests.support.op_tables import node_id


class Storm(Trouble):
    def __init__(self, world: ServingWorld) -> None:
        super().__init__(world)
        self._serving = world
        self._changes = 0
        self._nodes_ever = len(world.machines)

    def kinds(self) -> Mapping[Deed, float]:
        return {
            self._ask: 14.0,
            self._ask_six: 4.0,
            self._change_model: 1.5,
            self._remove_model: 0.8,
            self._load: 1.0,
            self._unload: 1.5,
            self._lose_process: 3.0,
            self.kill_worker: 2.0,
            self.isolate_worker: 2.0,
            self._drain: 1.2,
            self._relabel: 1.0,
            self._set_budget: 1.0,
            self._remove: 0.8,
            self.kill_frontend: 2.0,
            self.set_clock: 0.7,
            self.cut_store: 1.0,
            self.take_store_away: 0.7,
            self.take_bus_away: 1.0,
        }

    async def run(self) -> None:
        await self.rage(self._dice.whole(20, 28), self._serving.size.storm_s)

    # What clients and admins want.

    def _host(self) -> ServingFrontend | None:
        up = [host for host in self._serving.hosts if host.up]
        return self._dice.pick(up) if up else None

    def _model(self) -> str:
        return self._dice.pick(list(self._serving.sizes))

    def _ask(self) -> None:
        if host := self._host():
            host.ask(self._model(), self._dice.pick((2.0, 90.0, math.inf)))

    def _ask_six(self) -> None:
        model = self._model()
        for _ in range(6):
            if host := self._host():
                host.ask(model, 90.0)

    def _change_model(self) -> None:
        """What it is loaded with, or only where it may be."""
        self._changes += 1
        model = self._model()
        context = 2048 + (self._changes if self._dice.chance(0.7) else 0)
        if host := self._host():
            self._world.trace.fault("model_changed", model)
            least, pinned = self._dice.pick((0, 0, 1, 2)), self._dice.chance(0.1)
            zoned, group = self._dice.chance(0.3), self._serving.group_of(model)
            host.configure(model_text(model, context, zoned=zoned, least=least, pinned=pinned, group=group))

    def _remove_model(self) -> None:
        model = self._model()
        if host := self._host():
            self._world.trace.fault("model_removed", model)
            host.remove_model(model)
            self.for_a_while(self.away_s(), lambda: self._add_again(model))

    def _add_again(self, model: str) -> None:
        if (host := self._host()) and self._serving.serving_claims.models[model].now is None:
            host.configure(model_text(model, group=self._serving.group_of(model)))

    def _load(self) -> None:
        model = self._model()
        if host := self._host():
            self._world.trace.event("load asked", model)
            host.load(model)

    def _unload(self) -> None:
        model = self._model()
        if host := self._host():
            self._world.trace.event("unload asked", model)
            host.unload(model)

    # What admins do to nodes. Whoever was asked to knows at once, the others hear of it.

    def _known(self) -> list[ServingWorker]:
        return [one for one in self._serving.workers_there if self._world.roster.knows(one.node)]

    def _told(self) -> None:
        if host := self._host():
            host.hear_of_nodes()

    def _drain(self) -> None:
        if known := self._known():
            worker = self._dice.pick(known)
            self._world.trace.fault("node_drained", worker)
            self._serving.nodes.put_on_drain(worker, drained=True)
            self._told()
            self.for_a_while(self.away_s(), lambda: self._end_drain(worker))

    def _end_drain(self, worker: ServingWorker) -> None:
        self._serving.nodes.put_on_drain(worker, drained=False)
        self._told()

    def _relabel(self) -> None:
        """All but the first: somebody has to have what models ask for."""
        if known := [one for one in self._known() if one is not self._serving.machines[0]]:
            worker = self._dice.pick(known)
            labels = {} if worker.terms.now.labels else ZONE
            self._world.trace.fault("node_relabelled", worker, labels)
            self._serving.nodes.label(worker, labels)
            self._told()

    def _set_budget(self) -> None:
        if known := [one for one in self._known() if one.memory.vram_bytes]:
            worker, share = self._dice.pick(known), self._dice.pick((0.3, 0.6, 0.8))
            self._world.trace.fault("budget_set", worker, share)
            self._serving.nodes.set_budget(worker, share)
            self.for_a_while(self.away_s(), lambda: self._serving.nodes.set_budget(worker, None))

    def _remove(self) -> None:
        known = self._known()
        if len(known) > 1:
            worker = self._dice.pick(known)
            self._world.trace.fault("node_removed", worker)
            self._serving.nodes.send_away(worker)
            self._told()
            self.for_a_while(self.away_s(), lambda: self._return(worker))

    def _return(self, worker: ServingWorker) -> None:
        if not worker.member:
            worker.come_back_as(node_id(self._nodes_ever))
            self._nodes_ever += 1
            self._world.trace.event("came back", worker)

    # What goes wrong with processes.

    def _lose_process(self) -> None:
        processes = [process for worker in self._serving.machines for process in worker.processes.values()]
        if processes:
            process = self._dice.pick(processes)
            self._world.trace.fault("process_crashed", process)
            process.worker.lose(process, again=self._dice.chance(0.5))

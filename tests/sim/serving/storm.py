"""The storm: what clients and admins ask for and what goes wrong, one after the other, as the dice fall."""

import math
from collections.abc import Mapping

from remuda.core.ids import NodeId
from remuda.scheduler.scheduling import SchedulingTerms
from tests.sim.ops.trouble import Deed, Trouble
from tests.sim.serving.configs import ZONE, model_text
from tests.sim.serving.frontends import ServingFrontend
from tests.sim.serving.workers import ServingWorker
from tests.sim.serving.world import ServingWorld
from tests.support.clocks import elapsed_s
from tests.support.op_tables import node_id

_DAY_S = 86400.0
SLOW_MOST_S = 3.0  # One way.
FLOOD = 30  # Requests at once.
DECLARED = (
    None,
    None,
    SchedulingTerms(min_replicas=1),
    SchedulingTerms(min_replicas=2, max_replicas=3),
    SchedulingTerms(min_replicas=1, selector=ZONE),
    SchedulingTerms(max_replicas=1),
    SchedulingTerms(everywhere=True, selector=ZONE),
)


class Storm(Trouble):
    def __init__(self, world: ServingWorld) -> None:
        self._serving = world
        super().__init__(world)
        self._changes = 0
        self._nodes_ever = len(world.machines)

    def kinds(self) -> Mapping[Deed, float]:
        size = self._serving.size
        more = {
            self._declare: 1.0 if size.scaled else 0.0,
            self._slow_link: 1.0 if size.links else 0.0,
            self._flood: 1.0 if size.floods else 0.0,
        }
        return {
            **{deed: weight for deed, weight in more.items() if weight},
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

    def gap_s(self) -> float:
        """By day more happens than at night, and most in the afternoon."""
        gap_s = super().gap_s()
        if not self._serving.size.diurnal:
            return gap_s
        return gap_s / (1.0 + 0.8 * math.sin(math.tau * elapsed_s() / _DAY_S))

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

    def _flood(self) -> None:
        """One key asks for very much, and another then for a little."""
        model = self._model()
        if host := self._host():
            self._world.trace.fault("flood", host.id, model)
            for _ in range(FLOOD):
                host.ask(model, 90.0, key="many")
            host.ask(model, 90.0, key="one")

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

    def _declare(self) -> None:
        model, terms = self._model(), self._dice.pick(DECLARED)
        if host := self._host():
            self._world.trace.fault("declared", model, terms)
            host.declare(model, terms)

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

    # What goes wrong with machines and processes.

    def kill_worker(self) -> None:
        """Some never come back; but never the one that has what the choosy ask for, nor more than a few."""
        alive = sum(not one.gone_for_good for one in self._serving.machines)
        few = alive * 4 > len(self._serving.machines) * 3
        self.gone_for_good = self._serving.size.lost if few else 0.0
        super().kill_worker()
        first = self._serving.machines[0]
        if first.gone_for_good:
            first.gone_for_good = False
            self.for_a_while(self.away_s(), lambda: self._start(first))

    def _slow_link(self) -> None:
        if known := self._known():
            node, slow_s = self._dice.pick(known).node, self._dice.between(0.3, SLOW_MOST_S)
            self._world.trace.fault("slow_link", node, f"{slow_s:.1f}")
            self._world.slow_links[node] = slow_s
            self.for_a_while(self.away_s(), lambda: self._mend_link(node))

    def _mend_link(self, node: NodeId) -> None:
        self._world.slow_links.pop(node, None)

    def _lose_process(self) -> None:
        processes = [process for worker in self._serving.machines for process in worker.processes.values()]
        if processes:
            process = self._dice.pick(processes)
            self._world.trace.fault("process_crashed", process)
            process.worker.lose(process, again=self._dice.chance(0.5))

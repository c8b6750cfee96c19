"""The storm: what clients and admins ask for and what goes wrong, one after the other, as the dice fall."""

from collections.abc import Mapping

from remuda.core.ids import NodeId
from tests.sim.ops.trouble import Deed, Trouble
from tests.sim.serving.frontends import ServingFrontend
from tests.sim.serving.workers import ServingWorker
from tests.sim.serving.world import ServingWorld


def model_text(name: str, context: int = 2048) -> str:
    return f"name: {name}\nbackend: llama-cpp\ncontext_size: {context}\nparameters: {{model: {name}.gguf}}\n"


class Storm(Trouble):
    def __init__(self, world: ServingWorld) -> None:
        super().__init__(world)
        self._serving = world
        self._changes = 0

    def kinds(self) -> Mapping[Deed, float]:
        return {
            self._ask: 14.0,
            self._ask_six: 4.0,
            self._change_model: 1.5,
            self._unload: 1.5,
            self._lose_process: 3.0,
            self.kill_worker: 2.0,
            self.isolate_worker: 2.0,
            self._drain: 1.0,
            self.kill_frontend: 2.0,
            self.cut_store: 1.0,
            self.take_store_away: 0.7,
            self.take_bus_away: 1.0,
        }

    async def run(self) -> None:
        await self.rage(self._dice.whole(20, 28))

    # What clients and admins want.

    def _host(self) -> ServingFrontend | None:
        up = [host for host in self._serving.hosts if host.up]
        return self._dice.pick(up) if up else None

    def _model(self) -> str:
        return self._dice.pick(list(self._serving.sizes))

    def _ask(self) -> None:
        if host := self._host():
            host.ask(self._model(), self._dice.pick((2.0, 90.0)))

    def _ask_six(self) -> None:
        model = self._model()
        for _ in range(6):
            if host := self._host():
                host.ask(model, 90.0)

    def _change_model(self) -> None:
        self._changes += 1
        model = self._model()
        if host := self._host():
            self._world.trace.event("model changed", model)
            host.configure(model_text(model, 2048 + self._changes))

    def _unload(self) -> None:
        host, model = self._host(), self._model()
        if host is not None and (models := host.models) is not None:
            self._world.trace.event("unload asked", model)
            host.do(lambda: models.unload(model, "ada"))

    # What goes wrong with workers.

    def _running(self) -> list[ServingWorker]:
        return [worker for worker in self._serving.machines if worker.life is not None]

    def _lose_process(self) -> None:
        processes = [process for worker in self._running() for process in worker.processes.values()]
        if processes:
            process = self._dice.pick(processes)
            self._world.trace.fault("process_crashed", process)
            process.worker.lose(process, again=self._dice.chance(0.5))

    def _drain(self) -> None:
        known = [worker.node for worker in self._serving.machines if self._world.roster.knows(worker.node)]
        if known:
            node = self._dice.pick(known)
            self._world.trace.fault("node_drained", node)
            self._world.roster.drain(node, drained=True)
            self.for_a_while(self.away_s(), lambda: self._end_drain(node))

    def _end_drain(self, node: NodeId) -> None:
        self._world.roster.drain(node, drained=False)

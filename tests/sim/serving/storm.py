"""The storm: what clients and admins ask for and what goes wrong, one after the other, as the dice fall."""

from collections.abc import Callable

import anyio

from remuda.core.ids import NodeId
from tests.sim.ops.world import Weather
from tests.sim.serving.frontends import ServingFrontend
from tests.sim.serving.workers import ServingWorker
from tests.sim.serving.world import ServingWorld

EVENTS_LEAST = 200
FAULTS_LEAST = 10
_GAP_MOST_S = 10.0


def model_text(name: str, context: int = 2048) -> str:
    return f"name: {name}\nbackend: llama-cpp\ncontext_size: {context}\nparameters: {{model: {name}.gguf}}\n"


class Storm:
    def __init__(self, world: ServingWorld) -> None:
        self._world = world
        self._dice = world.dice.fork("storm")
        self._over = False
        self._changes = 0
        self._undo: list[Callable[[], None]] = []
        self._kinds: dict[Callable[[], None], float] = {
            self._ask: 14.0,
            self._ask_six: 4.0,
            self._change_model: 1.5,
            self._unload: 1.5,
            self._lose_process: 3.0,
            self._kill_worker: 2.0,
            self._isolate_worker: 2.0,
            self._drain: 1.0,
            self._kill_frontend: 2.0,
            self._cut_store: 1.0,
            self._take_store_away: 0.7,
            self._take_bus_away: 1.0,
        }

    async def run(self) -> None:
        """Returns when everything is repaired that is to be."""
        trace = self._world.trace
        deeds = self._dice.whole(20, 28)
        while deeds > 0 or len(trace.lines) < EVENTS_LEAST or trace.fault_count < FAULTS_LEAST:
            deeds -= 1
            await anyio.sleep(_GAP_MOST_S ** self._dice.fraction())
            self._dice.weighted(self._kinds)()
            self._world.claims.look_at_everything()
        self._over = True
        for undo in self._undo:
            undo()
        self._world.weather = Weather()
        trace.event("calm")

    # What clients and admins want.

    def _host(self) -> ServingFrontend | None:
        up = [host for host in self._world.hosts if host.up]
        return self._dice.pick(up) if up else None

    def _model(self) -> str:
        return self._dice.pick(list(self._world.sizes))

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
        return [worker for worker in self._world.machines if worker.life is not None]

    def _away_s(self) -> float:
        return 1.0 + float(self._world.pace.away_most_s ** self._dice.fraction())

    def _lose_process(self) -> None:
        processes = [process for worker in self._running() for process in worker.processes.values()]
        if processes:
            process = self._dice.pick(processes)
            self._world.trace.fault("process_crashed", process)
            process.worker.lose(process, again=self._dice.chance(0.5))

    def _kill_worker(self) -> None:
        if running := self._running():
            victim = self._dice.pick(running)
            self._world.trace.fault("worker_killed", victim)
            victim.crash()
            self._for_a_while(self._away_s(), lambda: self._start(victim))

    def _start(self, worker: ServingWorker) -> None:
        if worker.life is None:
            worker.start()

    def _isolate_worker(self) -> None:
        worker = self._dice.pick(self._world.machines)
        self._world.trace.fault("worker_isolated", worker)
        worker.isolated = True
        self._for_a_while(self._away_s(), worker.rejoin)

    def _drain(self) -> None:
        known = [worker.node for worker in self._world.machines if self._world.roster.knows(worker.node)]
        if known:
            node = self._dice.pick(known)
            self._world.trace.fault("node_drained", node)
            self._world.roster.drain(node, drained=True)
            self._for_a_while(self._away_s(), lambda: self._end_drain(node))

    def _end_drain(self, node: NodeId) -> None:
        self._world.roster.drain(node, drained=False)

    # What goes wrong with frontends, and with what they share.

    def _kill_frontend(self) -> None:
        if host := self._host():
            host.crash("at some moment")

    def _outage_s(self) -> float:
        return 1.0 + float(60.0 ** self._dice.fraction())

    def _cut_store(self) -> None:
        host = self._dice.pick(self._world.hosts)
        self._world.trace.fault("store_cut", host.id)
        host.database.cut = True
        self._for_a_while(self._outage_s(), lambda: self._mend_store(host))

    def _mend_store(self, host: ServingFrontend) -> None:
        host.blind_within(0.0)
        host.database.cut = False

    def _take_store_away(self) -> None:
        self._world.trace.fault("store_away")
        self._world.store_up = False
        self._for_a_while(self._outage_s(), self._bring_store_back)

    def _bring_store_back(self) -> None:
        for host in self._world.hosts:
            host.blind_within(0.0)
        self._world.store_up = True

    def _take_bus_away(self) -> None:
        self._world.trace.fault("bus_away")
        self._world.drop_bus()
        self._for_a_while(self._outage_s(), lambda: setattr(self._world, "bus_up", True))

    def _for_a_while(self, span_s: float, undo: Callable[[], None]) -> None:
        async def later() -> None:
            await anyio.sleep(span_s)
            if not self._over:
                undo()

        self._undo.append(undo)
        self._world.tasks.start_soon(later)

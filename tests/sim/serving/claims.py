"""What must hold of replicas and requests, whatever happens. Looked at after every transaction, every request
and every load; apart from the code that is watched."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from remuda.core.ids import NodeId
from remuda.scheduler.model import ReplicaKey, ReplicaState
from tests.sim.clocks import elapsed_s
from tests.sim.ops.claims import Claims
from tests.sim.ops.rows import ReplicaRow
from tests.sim.ops.workers import InHand, SimulatedWorker
from tests.sim.serving.workers import Process
from tests.sim.serving.world import ServingWorld

if TYPE_CHECKING:
    from tests.sim.serving.frontends import ServingFrontend

_ON_ITS_WAY = (ReplicaState.STAGING, ReplicaState.LOADING)
_TABLE_S = 15.0  # After which every frontend that reads the store knows of a worker's new life.


class ServingClaims(Claims):
    def __init__(self, world: ServingWorld) -> None:
        super().__init__(world)
        self._serving = world
        self.rows: dict[ReplicaKey, ReplicaRow] = {}
        self.answers: Counter[str] = Counter()
        self._ready: dict[tuple[str, str], str] = {}  # Where a model was last ready, in which life.

    # After a transaction.

    def after_write(self) -> None:
        rows = {row.key: row for row in self._world.tables.replicas()}
        if rows == self.rows:
            return
        for key in sorted(rows.keys() | self.rows.keys(), key=str):
            old, new = self.rows.get(key), rows.get(key)
            if old != new:
                states = (old.state if old else "-", new.state if new else "gone")
                place = new or old
                assert place is not None, "one of them is there"
                self._world.trace.event("replica", key, place.node, ">".join(states), place.instance)
        self.rows = rows
        self._check_one_on_its_way()
        self._check_room()

    def _check_one_on_its_way(self) -> None:
        coming = Counter(row.key.model for row in self.rows.values() if row.state in _ON_ITS_WAY)
        for model, count in coming.items():
            if count > 1:
                self._world.violated("one_load_at_a_time", model, *self.rows.values())

    def _check_room(self) -> None:
        """What is there and what is to come has room. Rows of what is gone take none."""
        used = defaultdict[str, int](int)
        for row in self.rows.values():
            if row.state in _ON_ITS_WAY or (row.state is ReplicaState.LOADED and self._runs(row)):
                used[row.node] += row.memory_bytes
        for worker in self._serving.machines:
            if used[worker.node] > worker.ram_bytes:
                self._world.violated("rows_have_room", worker, used[worker.node], *self.rows.values())

    def _runs(self, row: ReplicaRow) -> bool:
        worker = next((one for one in self._serving.machines if one.node == row.node), None)
        process = None if worker is None else worker.processes.get(row.key)
        return process is not None and process.instance == row.instance

    def look_at_everything(self) -> None:
        for host in self._serving.hosts:
            if host.up and sum(host.held.values()) != host.serving:
                self._world.violated("counts_are_requests", host.id, host.held, host.serving)

    # When a model is loaded, and when a request is sent.

    def loads(self, process: Process, model: str) -> None:
        row = self.rows.get(process.key)
        process.memory_bytes = 0 if row is None else row.memory_bytes
        self._ready[process.address, model] = process.boot
        self._world.trace.event("ready", process, model)
        worker = process.worker
        if worker.resources.available_ram < 0:
            self._world.violated("memory_is_there", worker, *worker.processes.values())

    def asked(self, host: "ServingFrontend", address: str, model: str) -> None:
        self._world.trace.event("request", host.id, address, model)
        boot = self._ready.get((address, model))
        if boot is None:
            self._world.violated("only_who_was_ready_is_asked", host.id, address, model)
            return
        worker = next((one for one in self._serving.machines if address.startswith(f"{one.node}:")), None)
        life = None if worker is None else worker.life
        if life is None or life.boot == boot or host.blind_within(_TABLE_S):
            return
        known_s = self._serving.begun_at_s.get(life.boot)
        if known_s is not None and elapsed_s() - known_s > _TABLE_S:
            self._world.violated("no_former_life_is_asked", host.id, address, model, boot, life.boot)

    def answered(self, model: str) -> None:
        self.answers[model] += 1

    # Of backends others have made sure.

    def sent(self, node: NodeId, verb: str, payload: bytes) -> None:
        self._world.trace.event("sent", node, verb)

    def begins(self, worker: SimulatedWorker, hand: InHand) -> None:
        self._world.trace.event("begins", worker, hand.kind, hand.op, hand.attempt)

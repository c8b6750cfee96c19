"""What everybody in a simulation of serving shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from remuda.wire.nodes import ModelFile
from tests.sim.ops.world import Weather, World
from tests.sim.serving.sizes import SMALL, Size

if TYPE_CHECKING:
    from tests.sim.serving.claims import ServingClaims
    from tests.sim.serving.frontends import ServingFrontend
    from tests.sim.serving.roster import ServingRoster
    from tests.sim.serving.workers import Process, ServingWorker
    from tests.support.op_tables import ReplicaRow

GB = 10**9
STORMY = Weather(
    lost=0.03,
    late=0.04,
    repeated=0.03,
    store_fails=0.005,
    store_answer_lost=0.003,
    frontend_dies=0.002,
    work_fails=0.06,
)


@dataclass(slots=True)
class ServingWorld(World):
    size: Size = SMALL
    keep_alive: timedelta = timedelta(minutes=30)
    shared: bool = False  # All nodes have one folder of models.
    sizes: dict[str, int] = field(default_factory=dict)  # Of the files of models, on every node.
    files: tuple[ModelFile, ...] = ()  # Of all of them, as workers tell.
    begun_at_s: dict[str, float] = field(default_factory=dict)  # Lives of workers, since they are known.
    machines: "list[ServingWorker]" = field(default_factory=list)  # All of them, whether nodes or not.
    machines_by_name: "dict[str, ServingWorker]" = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)  # Of models, that they take of what is expected.
    taken: dict[tuple[str, str, bool], int] = field(default_factory=dict)  # By what was once loaded, truly.

    @property
    def workers_there(self) -> "list[ServingWorker]":
        return [machine for machine in self.machines if machine.member]

    @property
    def workers_by_node(self) -> "Mapping[str, ServingWorker]":
        return self.workers  # type: ignore[return-value]  # Here all of them serve.

    @property
    def hosts(self) -> "list[ServingFrontend]":
        return list(self.frontends)  # type: ignore[arg-type]  # Here all of them serve.

    @property
    def serving_claims(self) -> "ServingClaims":
        return self.claims  # type: ignore[return-value]

    @property
    def nodes(self) -> "ServingRoster":
        return self.roster  # type: ignore[return-value]

    def group_of(self, model: str) -> str:
        """Every third model shares a group with every other third one."""
        return "room" if self.size.groups and list(self.sizes).index(model) % 3 == 0 else ""

    def true_bytes(self, row: "ReplicaRow") -> int:
        """What it takes when it is loaded: what is expected of the first of its kind, or less. Nothing can be
        set aside for one that was placed while nobody knew its size."""
        if not row.memory_bytes:
            return 0
        kind = (row.key.model, row.revision, row.in_vram)
        share = self.shares.get(row.key.model, 1.0)
        return self.taken.setdefault(kind, int(row.memory_bytes * share))

    def machine_of(self, address: str) -> "ServingWorker":
        return self._by_machine()[address.partition(":")[0]]

    def _by_machine(self) -> "dict[str, ServingWorker]":
        if len(self.machines_by_name) != len(self.machines):
            self.machines_by_name = {one.machine: one for one in self.machines}
        return self.machines_by_name

    def at(self, address: str) -> "Process | None":
        """The process that listens there, if it can be reached."""
        machine = self.machine_of(address)
        found = (process for process in machine.processes.values() if process.address == address)
        return next(found, None) if machine.connected else None

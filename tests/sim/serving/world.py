"""What everybody in a simulation of serving shares."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from remuda.ops.commander import Timeouts
from remuda.ops.model import StepPolicy
from remuda.ops.reconciler import Pace as Looks
from tests.sim.ops.pace import Pace
from tests.sim.ops.world import Weather, World

if TYPE_CHECKING:
    from tests.sim.serving.claims import ServingClaims
    from tests.sim.serving.frontends import ServingFrontend
    from tests.sim.serving.roster import ServingRoster
    from tests.sim.serving.workers import Process, ServingWorker
    from tests.support.op_tables import ReplicaRow

GB = 10**9
SERVING = Pace(
    name="serving",
    heartbeat_s=10.0,
    work_most_s=20.0,
    store_most_s=0.05,
    late_most_s=4.0,
    gap_most_s=10.0,
    away_most_s=200.0,
    look_every_s=5.0,
    looks=Looks(timedelta(seconds=10), timedelta(seconds=60), timedelta(seconds=40)),
    timeouts=Timeouts(),
    policy=StepPolicy(),
    list_every=timedelta(seconds=30),
    write_progress_every=timedelta(seconds=10),
    signal_gap=timedelta(seconds=1),
)
STORMY = Weather(
    lost=0.03,
    late=0.04,
    repeated=0.03,
    store_fails=0.005,
    store_answer_lost=0.003,
    frontend_dies=0.002,
    work_fails=0.06,
)


@dataclass(frozen=True, slots=True)
class Size:
    """How many there are of everything, and how long the storm lasts at least."""

    machines: tuple[int, int] = (2, 5)
    models: tuple[int, int] = (3, 5)
    storm_s: float = 0.0
    groups: bool = False  # Some models are never loaded on one node together.
    scaled: bool = False  # Admins declare how many replicas models have, and where.
    links: bool = False  # Some machines are slow to reach.
    lost: float = 0.0  # How likely a machine that dies never comes back.
    measured: tuple[float, ...] = (1.0,)  # What models take, as shares of what is expected.


SMALL: Final = Size()
AN_HOUR: Final = Size(
    machines=(20, 20),
    models=(12, 20),
    storm_s=3600.0,
    groups=True,
    scaled=True,
    links=True,
    lost=0.05,
    measured=(0.6, 0.8, 1.0, 1.0),
)


@dataclass(slots=True)
class ServingWorld(World):
    size: Size = SMALL
    keep_alive: timedelta = timedelta(minutes=30)
    shared: bool = False  # All nodes have one folder of models.
    sizes: dict[str, int] = field(default_factory=dict)  # Of the files of models, on every node.
    begun_at_s: dict[str, float] = field(default_factory=dict)  # Lives of workers, since they are known.
    machines: "list[ServingWorker]" = field(default_factory=list)  # All of them, whether nodes or not.
    shares: dict[str, float] = field(default_factory=dict)  # Of models, that they take of what is expected.
    taken: dict[tuple[str, str, bool], int] = field(default_factory=dict)  # By what was once loaded, truly.

    @property
    def workers_there(self) -> "list[ServingWorker]":
        return [machine for machine in self.machines if machine.member]

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
        return next(one for one in self.machines if address.startswith(f"{one.machine}:"))

    def at(self, address: str) -> "Process | None":
        """The process that listens there, if it can be reached."""
        machine = self.machine_of(address)
        found = (process for process in machine.processes.values() if process.address == address)
        return next(found, None) if machine.connected else None

"""What everybody in a simulation of operations shares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from tests.sim.chance import Dice
from tests.sim.ops.pace import Pace
from tests.sim.trace import Trace
from tests.support.clocks import HostClock
from tests.support.op_tables import Tables

if TYPE_CHECKING:
    from tests.sim.ops.claims import Claims
    from tests.sim.ops.frontends import FrontendHost
    from tests.sim.ops.roster import Roster
    from tests.sim.ops.workers import SimulatedWorker


@dataclass(frozen=True, slots=True)
class Weather:
    """How likely each message, transaction or piece of work meets with trouble. All zero: calm."""

    lost: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    store_fails: float = 0.0
    store_answer_lost: float = 0.0
    frontend_dies: float = 0.0
    work_fails: float = 0.0
    other_bytes: float = 0.0
    proof_interrupted: float = 0.0


STORMY = Weather(
    lost=0.04,
    late=0.06,
    repeated=0.05,
    store_fails=0.01,
    store_answer_lost=0.01,
    frontend_dies=0.004,
    work_fails=0.15,
    other_bytes=0.02,
    proof_interrupted=0.3,
)


@dataclass(slots=True)
class Releases:
    """What the registry holds of each backend: the newest is what its tag stands for."""

    newest: dict[str, str]
    broken: set[str] = field(default_factory=set)  # Versions that do not start.


@dataclass(slots=True)
class World:
    seed: int
    dice: Dice
    pace: Pace
    trace: Trace
    tasks: TaskGroup
    store_clock: HostClock
    tables: Tables
    releases: Releases
    weather: Weather = STORMY
    bus_up: bool = True
    store_up: bool = True
    broken: BaseException | None = None  # The first claim that did not hold.
    frontends: "list[FrontendHost]" = field(default_factory=list)
    workers: "dict[str, SimulatedWorker]" = field(default_factory=dict)
    roster: "Roster" = field(init=False)
    claims: "Claims" = field(init=False)
    slow_links: dict[str, float] = field(default_factory=dict)  # Nodes that are reached late, and how late.
    when_bus_drops: list[Callable[[], None]] = field(default_factory=list)

    @property
    def up(self) -> "list[FrontendHost]":
        return [frontend for frontend in self.frontends if frontend.up]

    def violated(self, claim: str, *about: object) -> None:
        """Ends the simulation, wherever this is noticed: the code under test must not swallow it."""
        self.break_off(self.trace.violated(claim, *about))

    def break_off(self, why: BaseException) -> None:
        if self.broken is None:
            self.broken = why
            self.tasks.cancel_scope.cancel()

    def slowness_s(self, subject: str) -> float:
        """Of the way to the node that a message is for or from."""
        if not self.slow_links:
            return 0.0
        named = subject.replace(".", " ").split()
        return max((slow_s for node, slow_s in self.slow_links.items() if node in named), default=0.0)

    def drop_bus(self) -> None:
        self.bus_up = False
        for drop in list(self.when_bus_drops):
            drop()

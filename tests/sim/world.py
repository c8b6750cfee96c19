"""What everybody in a simulation shares: the dice, the weather, the database host, the bus, the truth."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from anyio.abc import TaskGroup

from remuda.bus.credentials import Account
from remuda.fleet.admission import AdmissionPolicy
from remuda.fleet.health import Thresholds
from tests.sim.chance import Dice
from tests.sim.changes import ChangeChecker
from tests.sim.identities import IdentityChecker
from tests.sim.issuer import Issuer
from tests.sim.ledger import Ledger
from tests.sim.trace import Trace
from tests.sim.verdicts import VerdictChecker
from tests.support.clocks import HostClock
from tests.support.inline_database import InlineDatabase
from tests.support.memory_bus import MemoryBroker

BUS_URL = "nats://bus:4222"
HEARTBEAT = timedelta(seconds=10)
THRESHOLDS = Thresholds(timedelta(seconds=30), timedelta(seconds=60))


@dataclass(slots=True)
class Weather:
    """How likely a message meets with trouble. All zero: calm."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    store_answer_lost: float = 0.0


STORMY = Weather(request_lost=0.02, reply_lost=0.02, repeated=0.03, late=0.03, store_answer_lost=0.01)


@dataclass(slots=True)
class DatabaseHost:
    database: InlineDatabase
    clock: HostClock
    away: bool = False
    slowness: float = 1.0


class Hearer(Protocol):
    @property
    def hears(self) -> bool: ...


@dataclass(slots=True)
class World:
    dice: Dice
    trace: Trace
    tasks: TaskGroup
    policy: AdmissionPolicy
    store: DatabaseHost
    broker: MemoryBroker
    bus_clock: HostClock
    account: Account
    issuer: Issuer
    ledger: Ledger
    changes: ChangeChecker
    verdicts: VerdictChecker
    identities: IdentityChecker
    weather: Weather = field(default_factory=Weather)
    hearers: list[Hearer] = field(default_factory=list)
    bus_up: bool = True

    def note_hearing(self) -> None:
        """To be called whenever something has changed by which frontends hear."""
        reachable = self.bus_up and not self.store.away
        self.ledger.hearing.becomes(able=reachable and any(one.hears for one in self.hearers))

"""How large a simulation of serving is, and how often those who live in it look at what there is."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from remuda.ops.commander import Timeouts
from remuda.ops.model import StepPolicy
from remuda.ops.reconciler import Pace as Looks
from tests.sim.ops.pace import Pace

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
# An hour of many machines: what is close together is dealt with together.
THINNED = replace(
    SERVING,
    name="thinned",
    heartbeat_s=20.0,
    gap_most_s=40.0,
    look_every_s=10.0,
    looks=Looks(timedelta(seconds=20), timedelta(seconds=120), timedelta(seconds=60)),
    list_every=timedelta(seconds=60),
    signal_gap=timedelta(seconds=4),
)
# A day of hundreds of them.
DAILY = replace(
    SERVING,
    name="daily",
    heartbeat_s=120.0,
    gap_most_s=250.0,
    away_most_s=7200.0,
    look_every_s=30.0,
    looks=Looks(timedelta(seconds=60), timedelta(minutes=10), timedelta(seconds=120)),
    list_every=timedelta(minutes=10),
    signal_gap=timedelta(seconds=10),
    down_most_s=900.0,
)


@dataclass(frozen=True, slots=True)
class Rests:
    """How often who looks at the fleet. `after_s` lies between two looks, whatever changes; 0: as shipped."""

    look_s: float = 6.0  # The others are in proportion to it.
    after_s: float = 0.0

    @property
    def times(self) -> float:
        """How much longer than in a small simulation all takes that waits for a look."""
        return self.look_s / 6.0

    @property
    def table_s(self) -> float:
        return 10.0 * self.times

    @property
    def known_s(self) -> float:
        """After which every frontend that reads the store knows what has changed."""
        return 15.0 * self.times

    @property
    def confirm_s(self) -> float:
        return 5.0 * self.times

    @property
    def tell_s(self) -> float:
        return 4.0 * self.times


@dataclass(frozen=True, slots=True)
class Size:
    """How many there are of everything, and how long the storm lasts at least."""

    machines: tuple[int, int] = (2, 5)
    models: tuple[int, int] = (3, 5)
    storm_s: float = 0.0
    groups: bool = False  # Some models are never loaded on one node together.
    scaled: bool = False  # Admins declare how many replicas models have, and where.
    links: bool = False  # Some machines are slow to reach.
    diurnal: bool = False  # People sleep at night.
    floods: bool = False  # One key asks much at once, and another once.
    lost: float = 0.0  # How likely a machine that dies never comes back.
    peers: float = 0.2  # How likely a machine runs LocalAI's worker.
    zoned: float = 0.5  # How likely a machine has the label that some models ask for.
    measured: tuple[float, ...] = (1.0,)  # What models take, as shares of what is expected.
    pace: Pace = SERVING
    rests: Rests = Rests()


SMALL: Final = Size()
_EVERYTHING: Final = Size(groups=True, scaled=True, links=True, floods=True, measured=(0.6, 0.8, 1.0, 1.0))
# As much as possible in little time: what is broken on purpose is to be noticed within a few dozen seeds.
DENSE: Final = replace(_EVERYTHING, machines=(3, 6), models=(4, 6), storm_s=240.0, peers=0.4)
AN_HOUR: Final = replace(
    _EVERYTHING,
    machines=(20, 20),
    models=(12, 20),
    storm_s=3600.0,
    lost=0.05,
    pace=THINNED,
    rests=Rests(look_s=12.0, after_s=4.0),
)
A_DAY: Final = replace(
    AN_HOUR,
    machines=(300, 300),
    models=(40, 60),
    storm_s=86400.0,
    diurnal=True,
    lost=0.1,
    zoned=0.1,
    pace=DAILY,
    rests=Rests(look_s=36.0, after_s=10.0),
)

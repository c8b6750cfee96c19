"""How fast a simulated fleet lives. Looks and leases keep their proportion to the work, so that an install of
two hours costs no more looks than one of two minutes."""

from dataclasses import dataclass
from datetime import timedelta

from remuda.ops.commander import Timeouts
from remuda.ops.model import StepPolicy
from remuda.ops.reconciler import Pace as Looks


@dataclass(frozen=True, slots=True)
class Pace:
    name: str
    heartbeat_s: float
    work_most_s: float  # The longest install; the shortest takes a second.
    store_most_s: float  # The longest way to the database. Slow ones make for fewer looks, with more in each.
    late_most_s: float  # The longest that a message is on its way, of those that arrive.
    gap_most_s: float  # Between two deeds of the storm.
    away_most_s: float  # How long a node stays away, unless for good.
    look_every_s: float  # At what is left to do, once it is calm.
    looks: Looks
    timeouts: Timeouts
    policy: StepPolicy
    list_every: timedelta
    write_progress_every: timedelta
    signal_gap: timedelta
    down_most_s: float = 120.0  # A frontend that died, until it is started again.

    @property
    def ended_within_s(self) -> float:
        """The longest that one operation may take on one node with nothing in its way: every attempt slow, as
        many failures as there may be with the longest wait after each, and an answer that never comes."""
        policy = self.policy
        attempt_s = self.work_most_s + policy.backoff_most.total_seconds() + policy.lease.total_seconds()
        unanswered = self.timeouts.install + policy.silence
        return 3 * policy.failures_max * attempt_s + 2 * unanswered.total_seconds()

    @property
    def listed_within_s(self) -> float:
        """The longest that an install may go on whose backend is there: the frontend that could ask has just
        been started, the question before is not answered yet, and what follows takes its usual way."""
        ask_s = 2 * self.list_every.total_seconds() + 3 * self.looks.busy_every.total_seconds()
        return ask_s + 12 * self.heartbeat_s + self.late_most_s + 10 * self.store_most_s + self.look_every_s


BRISK = Pace(
    name="brisk",
    heartbeat_s=10.0,
    work_most_s=150.0,
    store_most_s=0.5,
    late_most_s=8.0,
    gap_most_s=16.0,
    away_most_s=400.0,
    look_every_s=20.0,
    looks=Looks(timedelta(seconds=20), timedelta(seconds=60), timedelta(seconds=60)),
    timeouts=Timeouts(install=timedelta(seconds=60), upgrade=timedelta(seconds=60)),
    policy=StepPolicy(
        silence=timedelta(minutes=8),
        failures_max=6,
        backoff_first=timedelta(seconds=5),
        backoff_most=timedelta(seconds=60),
    ),
    list_every=timedelta(seconds=30),
    write_progress_every=timedelta(seconds=10),
    signal_gap=timedelta(seconds=2),
)
SLOW = Pace(
    name="slow",
    heartbeat_s=120.0,
    work_most_s=7200.0,
    store_most_s=2.0,
    late_most_s=60.0,
    gap_most_s=900.0,
    away_most_s=2 * 86400.0,
    look_every_s=900.0,
    looks=Looks(timedelta(minutes=15), timedelta(minutes=60), timedelta(minutes=20)),
    timeouts=Timeouts(),
    policy=StepPolicy(lease=timedelta(minutes=20), failures_max=6),
    list_every=timedelta(minutes=15),
    write_progress_every=timedelta(minutes=5),
    signal_gap=timedelta(seconds=10),
    down_most_s=1440.0,
)

"""How long a worker waits for its backends, in every respect. Data only."""

from dataclasses import dataclass
from datetime import timedelta

from remuda.core import limits
from remuda.host.restarts import RestartPolicy

RESTARTS = RestartPolicy(
    first=timedelta(seconds=limits.BACKEND_RESTART_FIRST_S),
    most=timedelta(seconds=limits.BACKEND_RESTART_MOST_S),
    healthy_after=timedelta(seconds=limits.BACKEND_HEALTHY_AFTER_S),
    give_up_after=limits.BACKEND_SHORT_LIVES_MAX,
)


@dataclass(frozen=True, slots=True)
class Patience:
    """`start` is for those that speak gRPC; the others say themselves how long they take."""

    start: timedelta = timedelta(seconds=limits.BACKEND_START_S)
    call: timedelta = timedelta(seconds=limits.BACKEND_HEALTH_CALL_S)
    watch: timedelta = timedelta(seconds=limits.BACKEND_WATCH_EVERY_S)  # Between two looks at a ready one.
    free: timedelta = timedelta(seconds=limits.BACKEND_FREE_S)
    grace: timedelta = timedelta(seconds=limits.BACKEND_GRACE_S)  # Between SIGTERM and SIGKILL.
    restarts: RestartPolicy = RESTARTS


USUAL = Patience()

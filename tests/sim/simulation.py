"""One simulation: builds the world of a seed, lets it storm, lets it calm down, and tells how it went."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import anyio
import structlog
from anyio.abc import TaskGroup

from remuda.bus.credentials import ClusterKeys
from remuda.fleet.admission import AdmissionPolicy
from remuda.fleet.identity import hash_of
from tests.sim.calm import settle
from tests.sim.chance import Dice
from tests.sim.changes import ChangeChecker
from tests.sim.fleet import SimulatedFleet
from tests.sim.identities import IdentityChecker
from tests.sim.issuer import Issuer
from tests.sim.ledger import Ledger
from tests.sim.machines import secret_of
from tests.sim.storm import Storm
from tests.sim.trace import Trace
from tests.sim.verdicts import VerdictChecker
from tests.sim.world import STORMY, THRESHOLDS, DatabaseHost, Weather, World
from tests.support.clocks import HostClock
from tests.support.fleet_tables import fresh_database
from tests.support.memory_bus import MemoryBroker
from tests.support.virtual_loop import run_virtually

OWN_SECRET = hash_of(secret_of(0).encode())  # That machine's worker counts as the one inside `remuda up`.
_LIFETIMES = (timedelta(seconds=90), timedelta(minutes=5), timedelta(hours=24))


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    trace: Trace
    failure: BaseException | None
    virtual_s: float
    story: str = "fleet"  # What was simulated.


def run_seed(seed: int) -> Outcome:
    """The same seed gives the same trace, whatever ran before it."""
    trace = Trace()
    failure: BaseException | None = None
    ended: list[float] = []

    async def main() -> None:
        try:
            async with anyio.create_task_group() as tasks:
                await _live_through(build_world(seed, trace, tasks))
                tasks.cancel_scope.cancel()
        finally:
            ended.append(anyio.current_time())

    with quiet_logs():
        try:
            run_virtually(main)
        except Exception as error:
            failure = _innermost(error)
    return Outcome(seed, trace, failure, ended[0])


def build_world(seed: int, trace: Trace, tasks: TaskGroup) -> World:
    dice, clock, bus_clock = Dice(seed), HostClock(), HostClock()
    database, books = fresh_database(clock)
    policy = AdmissionPolicy(auto_approve=dice.chance(0.2), own_secrets=frozenset({OWN_SECRET}))
    account = ClusterKeys.create(dice).account
    pace = dice.fork("bus")
    broker = MemoryBroker(bus_clock, lambda: pace.between(0.0005, 0.005), jwt_demanded=True)
    issuer = Issuer(account, dice.pick(_LIFETIMES), broker)
    offline_after_s = THRESHOLDS.offline_after.total_seconds()
    ledger = Ledger(policy.own_secrets, policy.auto_approve, offline_after_s)
    return World(
        dice=dice,
        trace=trace,
        tasks=tasks,
        policy=policy,
        store=DatabaseHost(database, clock),
        broker=broker,
        bus_clock=bus_clock,
        account=account,
        issuer=issuer,
        ledger=ledger,
        changes=ChangeChecker(ledger, books, issuer.public_key, trace),
        verdicts=VerdictChecker(ledger, THRESHOLDS, trace),
        identities=IdentityChecker(trace),
    )


async def _live_through(world: World) -> None:
    fleet = SimulatedFleet(world)
    fleet.start()
    world.weather = STORMY
    await Storm(world, fleet).run()
    world.weather = Weather()
    await settle(world, fleet)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Nobody reads the log of a thousand fleets; the trace tells more."""
    configured = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**configured)

"""Which replicas are used is written down soon enough to tell idle ones by, and not with each request."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

import pytest

from remuda.core.errors import StoreUnusable
from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.models.keep_alive import FOR_EVER
from remuda.router.live_table import Tables
from remuda.router.table import Route, RoutedModel, Table
from remuda.router.usage import LastUsedWriter, RequestLedger
from tests.unit.router.frontends import HandClock
from tests.unit.router.holding import holding

pytestmark = pytest.mark.anyio


def a_route(model: str) -> Route:
    return Route(ReplicaKey(model, 0), NodeId("n"), "gpu-1", ReplicaEndpoint("10.0.0.5:50052"))


LONG, BRIEF, ONCE = a_route("long"), a_route("brief"), a_route("once")
KEEP = {"long": None, "brief": timedelta(seconds=2), "once": timedelta()}


class Noting:
    """`written` is what was written: when, and how long ago each was used then."""

    def __init__(self) -> None:
        self.clock, self.ledger, tables = HandClock(), RequestLedger(), Tables()
        entries = {
            route.key.model: RoutedModel(
                ModelConfig(name=route.key.model, keep_alive=KEEP[route.key.model]), (route,)
            )
            for route in (LONG, BRIEF, ONCE)
        }
        tables.replace(Table(MappingProxyType(entries), 1))
        self.written: list[tuple[float, Mapping[str, float]]] = []
        self.store_is_away = False
        self.notes = LastUsedWriter(tables, self.ledger, self.clock, self, usual=timedelta(minutes=30))
        self._began_s = self.clock.passed_s

    async def touch(self, used: Mapping[ReplicaKey, timedelta]) -> None:
        if self.store_is_away:
            raise StoreUnusable("the database cannot be used")
        ages = {key.model: age.total_seconds() for key, age in used.items()}
        self.written.append((self.clock.passed_s - self._began_s, ages))

    def use(self, route: Route) -> None:
        with holding(self.ledger, route):
            pass

    async def looks(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.passed_s += 1
            await self.notes.note()

    @property
    def writes(self) -> list[float]:
        return [at_s for at_s, _ in self.written]


@pytest.fixture
def noting() -> Noting:
    return Noting()


async def test_what_nobody_uses_is_not_written(noting: Noting) -> None:
    await noting.looks(60)
    assert noting.written == []


async def test_use_after_a_pause_is_written_within_a_second(noting: Noting) -> None:
    noting.use(LONG)
    await noting.looks(30)
    noting.use(LONG)
    await noting.looks(30)
    assert noting.written == [(1, {"long": 0}), (31, {"long": 0})]


@pytest.mark.parametrize(("route", "every_s"), [(LONG, 10), (BRIEF, 1), (ONCE, 1)])
async def test_use_that_lasts_is_written_now_and_then_and_to_its_end(
    noting: Noting, route: Route, every_s: int
) -> None:
    with holding(noting.ledger, route):
        await noting.looks(30)
    await noting.looks(60)
    assert noting.writes[:3] == [1, 1 + every_s, 1 + 2 * every_s]
    ended_s, ages = noting.written[-1]
    assert ended_s - ages[route.key.model] == 31, "when it ended, at the first look after that"


async def test_thousands_of_short_requests_are_written_as_one_long_one(noting: Noting) -> None:
    for _ in range(20):
        for _ in range(100):
            noting.use(LONG)
        await noting.looks(1)
    assert noting.writes == [1, 11]


async def test_what_is_due_takes_along_what_is_not(noting: Noting) -> None:
    noting.use(LONG)
    await noting.looks(1)
    noting.use(LONG)
    await noting.looks(1)
    noting.use(BRIEF)
    await noting.looks(1)
    assert noting.written == [(1, {"long": 0}), (3, {"long": 1, "brief": 0})]


async def test_model_that_stays_for_ever_is_written_as_seldom_as_any(noting: Noting) -> None:
    notes = LastUsedWriter(Tables(), noting.ledger, noting.clock, noting, usual=FOR_EVER)
    noting.notes = notes
    with holding(noting.ledger, LONG):
        await noting.looks(25)
    assert noting.writes == [1, 11, 21]


async def test_use_that_could_not_be_written_is_written_later(noting: Noting) -> None:
    noting.use(LONG)
    noting.store_is_away = True
    with pytest.raises(StoreUnusable):
        await noting.looks(1)
    noting.store_is_away = False
    noting.clock.passed_s += 20
    await noting.looks(1)
    assert noting.written == [(22, {"long": 21})]


async def test_replica_that_is_no_more_is_forgotten(noting: Noting) -> None:
    noting.use(LONG)
    noting.ledger.keep(frozenset())
    await noting.looks(1)
    assert noting.written == []

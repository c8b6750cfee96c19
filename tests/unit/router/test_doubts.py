"""A replica that failed a request is looked at before anything is concluded: busy is not dead."""

from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import anyio
import pytest

from remuda.core.errors import NodeUnreachable, StoreUnusable
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import Endpoint
from remuda.models.reading import read_model
from remuda.router.current import Tables
from remuda.router.doubts import Doubts
from remuda.router.table import Entry, Route, Table
from remuda.scheduler.model import endpoint_of
from remuda.wire.models import RunningModel
from tests.support.nodes import TOKENS, node
from tests.support.virtual_loop import VirtualLoop
from tests.support.waiting import wait_until
from tests.unit.scheduler.rig import NODE, YAML, Rig

pytestmark = pytest.mark.anyio

REFUSED = UpstreamFailed(Fault.UNREACHABLE, "connection refused")
NOT_LOADED = UpstreamFailed(Fault.NOT_LOADED, "it answers as another model")


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class Doubting(Rig):
    """A frontend with one route, to a replica that serves."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.doubts = Doubts(
            self.tables,
            self.replicas,
            self.engine,
            self.worker,
            table=self,
            history=self,
        )

    async def refresh(self) -> None:
        """The table, from what is stored."""
        found = await self.replicas.replicas()
        routes = tuple(
            Route(row.key, row.node, "gpu-1", endpoint_of(row, node(), TOKENS), row.instance, row.change)
            for row in found.rows
        )
        entry = Entry(read_model(YAML), routes)
        self.tables.replace(Table(MappingProxyType({"qwen": entry}), found.change))

    @property
    def routes(self) -> tuple[Route, ...]:
        return self.tables.now.models["qwen"].routes

    def its_worker_has(self, *instances: str) -> None:
        """Without this its worker does not answer."""
        self.worker.runs[NODE] = [
            RunningModel(model_id="qwen", replica_index=0, instance=one) for one in instances
        ]


@pytest.fixture
async def doubting() -> AsyncIterator[Doubting]:
    made = Doubting()
    await made.configure()
    await made.loaded()
    await made.refresh()
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.doubts.run)
        yield made
        tasks.cancel_scope.cancel()


async def test_replica_in_doubt_is_not_chosen_until_it_has_shown_that_it_is_well(doubting: Doubting) -> None:
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert not doubting.tables.has(route)
    assert not await doubting.doubts.verdict(route)
    assert doubting.routes == (route,)
    assert len(await doubting.rows()) == 1


async def test_busy_is_not_dead(doubting: Doubting) -> None:
    doubting.engine.health = [None]
    [route] = doubting.routes
    doubting.its_worker_has(route.instance)
    doubting.doubts.add(route, REFUSED)
    assert not await doubting.doubts.verdict(route)
    assert len(doubting.engine.probed) == 1


async def test_silent_replica_that_its_worker_does_not_have_is_forgotten(doubting: Doubting) -> None:
    doubting.engine.health = [None]
    doubting.its_worker_has("another")
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert await doubting.doubts.verdict(route)
    assert await doubting.rows() == ()


async def test_replica_of_a_machine_that_answers_on_no_line_is_left_for_others_until_it_is_back(
    doubting: Doubting,
) -> None:
    doubting.engine.health = [None] * 10
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert await doubting.doubts.verdict(route)
    assert not doubting.tables.know("qwen"), "it is not waited for"
    assert doubting.doubts.nodes_out_of_reach() == {NODE: "it could not be reached a moment ago"}
    assert len(await doubting.rows()) == 1, "nobody has said that it is gone"
    await wait_until(lambda: doubting.tables.has(route))
    assert doubting.doubts.nodes_out_of_reach() == {}


async def test_replica_and_worker_are_asked_at_the_same_time(
    doubting: Doubting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(doubting.engine, "healthy", hang)
    monkeypatch.setattr(doubting.worker, "running", hang)
    [route] = doubting.routes
    began_s = anyio.current_time()
    doubting.doubts.add(route, REFUSED)
    assert await doubting.doubts.verdict(route)
    assert anyio.current_time() - began_s < 2.5, "each has two seconds"


async def test_replica_out_of_reach_is_no_longer_asked_when_the_table_has_dropped_it(
    doubting: Doubting,
) -> None:
    doubting.engine.health = [None] * 10
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert await doubting.doubts.verdict(route)
    doubting.tables.replace(Table(MappingProxyType({})))
    await wait_until(lambda: not doubting.doubts.nodes_out_of_reach())


async def test_probe_that_is_not_answered_in_time_is_busy(
    doubting: Doubting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(endpoint: Endpoint) -> bool | None:
        await anyio.sleep_forever()
        return None

    monkeypatch.setattr(doubting.engine, "healthy", hang)
    [route] = doubting.routes
    doubting.its_worker_has(route.instance)
    doubting.doubts.add(route, REFUSED)
    assert not await doubting.doubts.verdict(route)
    assert len(await doubting.rows()) == 1


async def test_refused_once_and_answered_then_is_well(doubting: Doubting) -> None:
    doubting.engine.health = [False, True]
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert not await doubting.doubts.verdict(route)
    assert doubting.routes == (route,)


async def test_refused_twice_is_forgotten_by_everybody(doubting: Doubting) -> None:
    doubting.engine.health = [False, False]
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert await doubting.doubts.verdict(route)
    assert await doubting.rows() == ()
    assert doubting.changes == 1
    assert doubting.worker.stopped == [], "there is nothing to stop"
    await wait_until(lambda: doubting.lost == [(NODE, "qwen#0: its process on gpu-1 is gone")])


async def test_process_with_another_model_is_forgotten_and_stopped(doubting: Doubting) -> None:
    [route] = doubting.routes
    doubting.doubts.add(route, NOT_LOADED)
    assert await doubting.doubts.verdict(route)
    assert doubting.engine.probed == [], "that it answers is known"
    assert await doubting.rows() == ()
    assert doubting.worker.stopped == [route.instance]


async def test_worker_that_cannot_stop_it_changes_nothing_about_that(doubting: Doubting) -> None:
    doubting.worker.stop_trouble = NodeUnreachable("nobody listens there")
    [route] = doubting.routes
    doubting.doubts.add(route, NOT_LOADED)
    assert await doubting.doubts.verdict(route)
    assert await doubting.rows() == ()


async def test_who_waits_for_the_verdict_does_not_wait_for_the_stop(doubting: Doubting) -> None:
    [route] = doubting.routes
    doubting.worker.stop_takes_s = 30.0
    doubting.doubts.add(route, NOT_LOADED)
    began_s = anyio.current_time()
    assert await doubting.doubts.verdict(route)
    assert anyio.current_time() - began_s < 1


async def test_model_whose_only_replica_is_in_doubt_is_not_loaded_once_more(doubting: Doubting) -> None:
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert (doubting.routes, doubting.tables.know("qwen")) == ((), True)
    await doubting.replicas.remove(await doubting.row())
    await doubting.refresh()
    assert not doubting.tables.know("qwen")


async def test_many_failures_are_one_look(doubting: Doubting) -> None:
    doubting.engine.health = [False, True]
    [route] = doubting.routes
    for vram_free in range(50):
        doubting.doubts.add(replace(route, vram_free=vram_free), REFUSED)
    await doubting.doubts.verdict(route)
    assert len(doubting.engine.probed) == 2


async def test_replica_that_was_loaded_again_meanwhile_is_not_forgotten(doubting: Doubting) -> None:
    doubting.engine.health = [False, False]
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert await doubting.replicas.remove(await doubting.row())
    again = await doubting.loaded()
    assert await doubting.doubts.verdict(route), "that very one is gone"
    assert await doubting.rows() == (again,)
    assert [one.change for one in doubting.routes] == [again.change]


async def test_while_the_store_is_away_nothing_is_concluded(
    doubting: Doubting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StoreUnusable("it cannot be reached")

    monkeypatch.setattr(doubting.replicas, "replicas", away)
    doubting.engine.health = [False, False]
    [route] = doubting.routes
    doubting.doubts.add(route, REFUSED)
    assert not await doubting.doubts.verdict(route)
    assert doubting.routes == (route,)


async def test_replica_without_doubts_has_its_verdict_at_once(doubting: Doubting) -> None:
    [route] = doubting.routes
    assert not await doubting.doubts.verdict(route)

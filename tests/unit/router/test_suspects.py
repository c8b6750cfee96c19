"""A replica that failed a request is looked at before anything is concluded: busy is not dead."""

from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import anyio
import pytest

from remuda.core.errors import NodeUnreachable, StoreUnusable
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import ReplicaEndpoint
from remuda.models.reading import read_model
from remuda.router.live_table import Tables
from remuda.router.suspects import Suspects
from remuda.router.table import Route, RoutedModel, Table
from remuda.scheduler.inspection import Inspector
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


class Suspecting(Rig):
    """A frontend with one route, to a replica that serves."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.suspects = Suspects(
            self.tables,
            self,
            Inspector(self.replicas, self.engine, self.worker, table=self, history=self),
        )

    async def refresh(self) -> None:
        """The table, from what is stored."""
        found = await self.replicas.replicas()
        routes = tuple(
            Route(row.key, row.node, "gpu-1", endpoint_of(row, node(), TOKENS), row.instance, row.change)
            for row in found.rows
        )
        entry = RoutedModel(read_model(YAML), routes)
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
async def rig() -> AsyncIterator[Suspecting]:
    made = Suspecting()
    await made.configure()
    await made.loaded()
    await made.refresh()
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.suspects.run)
        yield made
        tasks.cancel_scope.cancel()


async def test_replica_in_doubt_is_not_chosen_until_it_has_shown_that_it_is_well(rig: Suspecting) -> None:
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert not rig.tables.has(route)
    assert not await rig.suspects.verdict(route)
    assert rig.routes == (route,)
    assert len(await rig.rows()) == 1


async def test_busy_is_not_dead(rig: Suspecting) -> None:
    rig.engine.health = [None]
    [route] = rig.routes
    rig.its_worker_has(route.instance)
    rig.suspects.add(route, REFUSED)
    assert not await rig.suspects.verdict(route)
    assert len(rig.engine.probed) == 1


async def test_silent_replica_that_its_worker_does_not_have_is_forgotten(rig: Suspecting) -> None:
    rig.engine.health = [None]
    rig.its_worker_has("another")
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert await rig.suspects.verdict(route)
    assert await rig.rows() == ()


async def test_replica_of_a_machine_that_answers_on_no_line_is_left_for_others_until_it_is_back(
    rig: Suspecting,
) -> None:
    rig.engine.health = [None] * 10
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert await rig.suspects.verdict(route)
    assert not rig.tables.know("qwen"), "it is not waited for"
    assert rig.suspects.nodes_out_of_reach() == {NODE: "it could not be reached a moment ago"}
    assert len(await rig.rows()) == 1, "nobody has said that it is gone"
    await wait_until(lambda: rig.tables.has(route))
    assert rig.suspects.nodes_out_of_reach() == {}


async def test_answer_that_a_vanished_machine_broke_off_counts_as_well(rig: Suspecting) -> None:
    rig.engine.health = [None] * 10
    [route] = rig.routes
    rig.suspects.add(route, UpstreamFailed(Fault.BROKE, "its machine does not answer any more"))
    assert await rig.suspects.verdict(route)
    assert rig.suspects.nodes_out_of_reach() == {NODE: "it could not be reached a moment ago"}


async def test_requests_that_fail_while_it_is_out_of_reach_change_nothing_about_that(rig: Suspecting) -> None:
    rig.engine.health = [None] * 10
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert await rig.suspects.verdict(route)
    asked = len(rig.engine.probed)
    rig.suspects.add(route, REFUSED)  # A request that was sent before, and fails later.
    assert await rig.suspects.verdict(route)
    assert len(rig.engine.probed) == asked
    await wait_until(lambda: rig.tables.has(route))
    assert rig.suspects.nodes_out_of_reach() == {}


async def test_look_that_breaks_is_no_end_of_all_others(
    rig: Suspecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: object) -> bool:
        raise KeyError("a mistake of ours")

    rig.engine.health = [None] * 10
    monkeypatch.setattr(rig.suspects._inspector, "answers", broken)
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert await rig.suspects.verdict(route)
    await wait_until(lambda: rig.tables.has(route))
    assert rig.suspects.nodes_out_of_reach() == {}


async def test_replica_and_worker_are_asked_at_the_same_time(
    rig: Suspecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(rig.engine, "healthy", hang)
    monkeypatch.setattr(rig.worker, "running", hang)
    [route] = rig.routes
    began_s = anyio.current_time()
    rig.suspects.add(route, REFUSED)
    assert await rig.suspects.verdict(route)
    assert anyio.current_time() - began_s < 2.5, "each has two seconds"


async def test_replica_out_of_reach_is_no_longer_asked_when_the_table_has_dropped_it(
    rig: Suspecting,
) -> None:
    rig.engine.health = [None] * 10
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert await rig.suspects.verdict(route)
    rig.tables.replace(Table(MappingProxyType({})))
    await wait_until(lambda: not rig.suspects.nodes_out_of_reach())


async def test_probe_that_is_not_answered_in_time_is_busy(
    rig: Suspecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(endpoint: ReplicaEndpoint) -> bool | None:
        await anyio.sleep_forever()
        return None

    monkeypatch.setattr(rig.engine, "healthy", hang)
    [route] = rig.routes
    rig.its_worker_has(route.instance)
    rig.suspects.add(route, REFUSED)
    assert not await rig.suspects.verdict(route)
    assert len(await rig.rows()) == 1


async def test_refused_once_and_answered_then_is_well(rig: Suspecting) -> None:
    rig.engine.health = [False, True]
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert not await rig.suspects.verdict(route)
    assert rig.routes == (route,)


async def test_refused_twice_is_forgotten_by_everybody(rig: Suspecting) -> None:
    rig.engine.health = [False, False]
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert await rig.suspects.verdict(route)
    assert await rig.rows() == ()
    assert rig.changes == 1
    assert rig.worker.stopped == [], "there is nothing to stop"
    await wait_until(lambda: rig.lost == [(NODE, "qwen#0: its process on gpu-1 is gone")])


async def test_process_with_another_model_is_forgotten_and_stopped(rig: Suspecting) -> None:
    [route] = rig.routes
    rig.suspects.add(route, NOT_LOADED)
    assert await rig.suspects.verdict(route)
    assert rig.engine.probed == [], "that it answers is known"
    assert await rig.rows() == ()
    await wait_until(lambda: rig.worker.stopped == [route.instance])
    assert rig.lost == [(NODE, "qwen#0: taken out of service: it answers as another model")]


async def test_worker_that_cannot_stop_it_changes_nothing_about_that(rig: Suspecting) -> None:
    rig.worker.stop_trouble = NodeUnreachable("nobody listens there")
    [route] = rig.routes
    rig.suspects.add(route, NOT_LOADED)
    assert await rig.suspects.verdict(route)
    assert await rig.rows() == ()


async def test_who_waits_for_the_verdict_does_not_wait_for_the_stop(rig: Suspecting) -> None:
    [route] = rig.routes
    rig.worker.stop_takes_s = 30.0
    rig.suspects.add(route, NOT_LOADED)
    began_s = anyio.current_time()
    assert await rig.suspects.verdict(route)
    assert anyio.current_time() - began_s < 1


async def test_model_whose_only_replica_is_in_doubt_is_not_loaded_once_more(rig: Suspecting) -> None:
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert (rig.routes, rig.tables.know("qwen")) == ((), True)
    await rig.replicas.remove(await rig.row())
    await rig.refresh()
    assert not rig.tables.know("qwen")


async def test_many_failures_are_one_look(rig: Suspecting) -> None:
    rig.engine.health = [False, True]
    [route] = rig.routes
    for vram_free in range(50):
        rig.suspects.add(replace(route, vram_free=vram_free), REFUSED)
    await rig.suspects.verdict(route)
    assert len(rig.engine.probed) == 2


async def test_replica_that_was_loaded_again_meanwhile_is_not_forgotten(rig: Suspecting) -> None:
    rig.engine.health = [False, False]
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert await rig.replicas.remove(await rig.row())
    again = await rig.loaded()
    assert await rig.suspects.verdict(route), "that very one is gone"
    assert await rig.rows() == (again,)
    assert [one.change for one in rig.routes] == [again.change]


async def test_while_the_store_is_away_nothing_is_concluded(
    rig: Suspecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StoreUnusable("it cannot be reached")

    monkeypatch.setattr(rig.replicas, "replicas", away)
    rig.engine.health = [False, False]
    [route] = rig.routes
    rig.suspects.add(route, REFUSED)
    assert not await rig.suspects.verdict(route)
    assert rig.routes == (route,)


async def test_replica_without_doubts_has_its_verdict_at_once(rig: Suspecting) -> None:
    [route] = rig.routes
    assert not await rig.suspects.verdict(route)

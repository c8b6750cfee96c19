"""Models that run on adopted servers only: their requests wait for room there as for a replica."""

from collections.abc import Sequence

import anyio
import pytest

from remuda.core.errors import NoCapacity
from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.router.dispatch import RoutingRecord, WaitLimits
from remuda.router.fairness import SeatClaim
from remuda.router.loading import LoadStatus, Overloaded
from remuda.router.table import Route, RoutedModel, Table
from tests.support.answer_sinks import RelayedClient
from tests.support.waiting import wait_until
from tests.unit.router.test_dispatch import House, Replica, call

pytestmark = pytest.mark.anyio

MODEL = ModelConfig(name="qwen", upstreams=("nas", "rack"))


def server(name: str, *, parallel: int = 1) -> Route:
    return Route(
        ReplicaKey(f"{name}/qwen", 0),
        NodeId(""),
        name,
        ReplicaEndpoint(name, server=name),
        parallel=parallel,
        server=name,
    )


class ListedHouse(House):
    def __init__(self, *servers: Route, waits: WaitLimits | None = None) -> None:
        super().__init__(waits=waits)
        self.lists(servers)

    def lists(self, servers: Sequence[Route]) -> None:
        entry = RoutedModel(MODEL, listed=True, overflow=tuple(servers), ours=False)
        self.tables.replace(Table({"qwen": entry}))

    def drop(self, route: Route) -> None:
        self.lists([one for one in self.tables.now.models["qwen"].overflow if one.id != route.id])


async def _not_shown(status: LoadStatus) -> None:
    pass


async def test_a_request_waits_until_one_of_them_has_room() -> None:
    house = ListedHouse(server("nas"), server("rack"))
    names = ("nas", "rack")
    busy = [house.replicas.setdefault(name, Replica("wait")) for name in names]
    answered: list[RoutingRecord] = []

    async def ask() -> None:
        answered.append((await house.ask())[1])

    async with anyio.create_task_group() as tasks:
        for served in (1, 2):
            tasks.start_soon(ask)
            await wait_until(lambda served=served: sum(one.served for one in busy) == served)  # type: ignore[misc]
        assert [one.served for one in busy] == [1, 1], "the first of the list comes first, then the next"
        tasks.start_soon(ask)
        await wait_until(lambda: house.waiting == 1)
        busy[1].gate.set()
        await wait_until(lambda: len(answered) == 2)
        busy[0].gate.set()
    waited = next(one for one in answered if one.waits)
    assert waited.route == server("rack")
    assert waited.waits[0][0].startswith("room on a server for qwen: the servers nas, rack have as many")
    assert house.loads.brought == 0
    assert house.ledger.own() == {}
    assert house.waiting == 0


async def test_the_wait_is_bounded_in_time_and_in_number_and_says_of_what() -> None:
    house = ListedHouse(server("nas"), waits=WaitLimits(seat_s=0.0, waiting_max=1))
    house.ledger.begin(server("nas"))
    with pytest.raises(Overloaded, match="the server nas has as many requests as it may be sent") as refused:
        await house.ask()
    assert "remuda servers edit nas --parallel N" in (refused.value.hint or "")
    house = ListedHouse(server("nas"), waits=WaitLimits(waiting_max=1))
    house.ledger.begin(server("nas"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.ask)
        await wait_until(lambda: house.waiting == 1)
        with pytest.raises(Overloaded, match="1 requests wait for qwen already"):
            await house.ask()
        tasks.cancel_scope.cancel()
    assert house.waiting == 0


async def test_one_that_fails_leaves_the_request_to_the_next_though_that_is_full() -> None:
    house = ListedHouse(server("nas"), server("rack"))
    house.replicas["nas"] = Replica("refuse connection")
    house.ledger.begin(server("rack"))
    answered: list[RoutingRecord] = []

    async def ask() -> None:
        answered.append((await house.ask())[1])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await wait_until(lambda: house.waiting == 1)
        house.ledger.end(server("rack"))
    assert [one.server for one in answered[0].tried] == ["nas", "rack"]


async def test_the_batch_class_leaves_a_seat_there_too() -> None:
    house = ListedHouse(server("nas", parallel=2))
    house.ledger.begin(server("nas", parallel=2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: house.ask(claim=SeatClaim("night", batch=True)))
        await wait_until(lambda: house.waiting == 1)
        await house.ask(claim=SeatClaim("day"))
        assert house.waiting == 1
        house.ledger.end(server("nas", parallel=2))
    assert house.waiting == 0


async def test_a_request_from_another_fleet_goes_no_further_and_is_told_so() -> None:
    house = ListedHouse(server("nas"))
    with pytest.raises(NoCapacity, match="qwen runs on other servers only"):
        await house.dispatcher.answer(call(), RelayedClient(), RoutingRecord(nodes_only=True), _not_shown)
    assert house.replicas == {}

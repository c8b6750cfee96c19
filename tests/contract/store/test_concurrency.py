"""Several frontends, and several tasks of one, on the same database at once."""

from dataclasses import replace

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.admission import HeartbeatOutcome
from remuda.fleet.model import Dial, Node
from remuda.fleet.ports import FleetStore, Note
from remuda.fleet.registration import Admit
from remuda.store.database import Database, open_database
from remuda.store.fleet import SqlFleetStore
from remuda.store.schema import node_labels, nodes
from tests.contract.store.builders import admitting, candidate, registered, row_count
from tests.support.nodes import beat as beat_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def stores(database: Database, other_frontend: Database) -> tuple[FleetStore, FleetStore]:
    return SqlFleetStore(database), SqlFleetStore(other_frontend)


async def test_name_registered_at_once_by_many_is_one_node(
    database: Database, stores: tuple[FleetStore, FleetStore]
) -> None:
    got: list[NodeId] = []

    async def register(number: int) -> None:
        wanted = admitting(candidate("alpha", labels={"zone": "attic"}), f"id-{number}")
        decision = await stores[number % 2].register("alpha", wanted)
        assert isinstance(decision, Admit)
        got.append(decision.node.id)

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(register, number)
    assert len(got) == 50
    assert len(set(got)) == 1
    assert await row_count(database, nodes) == 1
    assert await row_count(database, node_labels) == len((await stores[0].one(got[0])).nodes[0].labels)


async def test_no_change_is_lost_when_two_frontends_amend_one_node(
    stores: tuple[FleetStore, FleetStore],
) -> None:
    node = await registered(stores[0])

    def add_one(known: Node) -> Node:
        return replace(known, max_replicas=known.max_replicas + 1)

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(stores[number % 2].amend, node.id, add_one)
    assert (await stores[0].one(node.id)).nodes[0].max_replicas == node.max_replicas + 40


async def test_beats_of_two_frontends_in_opposite_order_do_not_deadlock(
    stores: tuple[FleetStore, FleetStore],
) -> None:
    ids = [(await registered(stores[0], f"node-{number}")).id for number in range(30)]

    async def beat(store: FleetStore, order: list[NodeId]) -> None:
        for value in range(20):
            heard = await store.beat([beat_of(node_id, available_ram=value) for node_id in order])
            assert set(heard) == {HeartbeatOutcome.TAKEN}

    async def dial(store: FleetStore, order: list[NodeId]) -> None:
        frontend = FrontendId("frontend-1")
        for _ in range(10):
            now = (await store.fleet()).now
            await store.record_dials([Dial(node_id, frontend, "", now) for node_id in order])
            await store.amend(order[0], lambda node: node, Note("touched"))

    async with anyio.create_task_group() as tasks:
        for store, order in zip(stores, (ids, ids[::-1]), strict=True):
            tasks.start_soon(beat, store, order)
            tasks.start_soon(dial, store, order)
    heard = {node.resources.available_ram for node in (await stores[0].fleet()).nodes}
    assert heard == {19}


async def test_what_one_frontend_wrote_the_other_reads(stores: tuple[FleetStore, FleetStore]) -> None:
    node = await registered(stores[0])
    assert (await stores[1].fleet()).nodes == [node]
    await stores[1].remove(node.id, Note("removed"))
    assert await stores[0].beat([beat_of(node.id)]) == [HeartbeatOutcome.STRANGE]


async def test_of_frontends_starting_at_once_one_migrates(empty_database_url: str) -> None:
    opened: list[Database] = []

    async def start() -> None:
        opened.append(await open_database(empty_database_url, clock=SystemClock()))

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(start)
        for database in opened:
            await registered(SqlFleetStore(database))
        assert await row_count(opened[0], nodes) == 1
    finally:
        for database in opened:
            await database.close()

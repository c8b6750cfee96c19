"""Who listened when, and whose dials still count."""

from datetime import timedelta

import pytest
from sqlalchemy import BigInteger, type_coerce, update

from remuda.core import limits
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.model import Dial
from remuda.fleet.ports import FleetStore
from remuda.store.database import Database
from remuda.store.schema import hearing_spans, node_dials, nodes
from tests.contract.store.builders import let_time_pass, registered, row_count
from tests.support.nodes import beat

pytestmark = pytest.mark.anyio

ONE, TWO = FrontendId("frontend-1"), FrontendId("frontend-2")
WITHIN_THE_GAP = timedelta(seconds=limits.LIVENESS_GAP_MAX_S - 5)
BEYOND_THE_GAP = timedelta(seconds=limits.LIVENESS_GAP_MAX_S + 1)
LONG_AGO = timedelta(seconds=limits.LISTENING_LATELY_S + 1)


async def test_first_word_of_a_frontend_begins_a_span_now(fleet_store: FleetStore) -> None:
    await fleet_store.listen(ONE, resumed=False)
    fleet = await fleet_store.fleet()
    (span,) = fleet.listening.spans
    assert span.since == span.until
    assert timedelta() <= fleet.now - span.since < timedelta(seconds=5)


async def test_span_grows_while_the_frontend_goes_on_listening(
    database: Database, fleet_store: FleetStore
) -> None:
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, WITHIN_THE_GAP)
    await fleet_store.listen(ONE, resumed=False)
    (span,) = (await fleet_store.fleet()).listening.spans
    assert span.until - span.since >= WITHIN_THE_GAP


async def test_time_in_which_a_frontend_was_quiet_is_not_counted(
    database: Database, fleet_store: FleetStore
) -> None:
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, WITHIN_THE_GAP)
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, BEYOND_THE_GAP)
    await fleet_store.listen(ONE, resumed=False)
    heard, begun = (await fleet_store.fleet()).listening.spans
    assert begun.since - heard.until >= BEYOND_THE_GAP
    assert begun.since == begun.until


async def test_time_before_a_frontend_resumed_is_not_counted(
    database: Database, fleet_store: FleetStore
) -> None:
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, WITHIN_THE_GAP)
    await fleet_store.listen(ONE, resumed=True)
    assert all(span.since == span.until for span in (await fleet_store.fleet()).listening.spans)


async def test_each_frontend_has_its_own_span(database: Database, fleet_store: FleetStore) -> None:
    await fleet_store.listen(ONE, resumed=False)
    await fleet_store.listen(TWO, resumed=False)
    assert await row_count(database, hearing_spans) == 2


async def test_frontends_that_listen_are_known(database: Database, fleet_store: FleetStore) -> None:
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, WITHIN_THE_GAP)
    await fleet_store.listen(TWO, resumed=True)
    assert await fleet_store.frontends() == {ONE, TWO}


async def test_a_frontend_that_fell_quiet_is_no_longer_counted(
    database: Database, fleet_store: FleetStore
) -> None:
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, BEYOND_THE_GAP)
    assert await fleet_store.frontends() == frozenset()


async def test_clock_set_back_changes_nobodys_silence(database: Database, fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, WITHIN_THE_GAP)
    await fleet_store.listen(ONE, resumed=False)
    before = await silence(fleet_store, node.id)
    await set_clock_back(database, timedelta(hours=1))
    await fleet_store.listen(ONE, resumed=False)
    assert timedelta() <= await silence(fleet_store, node.id) - before < timedelta(seconds=5)


async def test_node_heard_after_the_clock_was_set_back_is_not_silent(
    database: Database, fleet_store: FleetStore
) -> None:
    node = await registered(fleet_store)
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, WITHIN_THE_GAP)
    await fleet_store.listen(ONE, resumed=False)
    await set_clock_back(database, timedelta(hours=1))
    await fleet_store.beat([beat(node.id)])
    assert await silence(fleet_store, node.id) < timedelta(seconds=5)
    await fleet_store.listen(TWO, resumed=True)
    assert await silence(fleet_store, node.id) < timedelta(seconds=5)


async def test_listening_before_the_clock_was_set_back_does_not_count_for_nodes_heard_since(
    database: Database, fleet_store: FleetStore
) -> None:
    node = await registered(fleet_store)
    for _ in range(4):
        await fleet_store.listen(ONE, resumed=False)
        await let_time_pass(database, WITHIN_THE_GAP)
    await set_clock_back(database, WITHIN_THE_GAP + timedelta(seconds=2))
    await fleet_store.beat([beat(node.id)])
    await move_heartbeats(database, -timedelta(seconds=15))  # Nobody has listened since.
    await fleet_store.listen(ONE, resumed=True)
    assert await silence(fleet_store, node.id) < timedelta(seconds=5)


async def silence(store: FleetStore, node_id: NodeId) -> timedelta:
    fleet = await store.one(node_id)
    return fleet.listening.silence(fleet.nodes[0].last_heartbeat, fleet.now)


async def set_clock_back(database: Database, by: timedelta) -> None:
    """Seen from the clock, all that is written moves into the future."""
    await move_heartbeats(database, by)
    await let_time_pass(database, -by)


async def move_heartbeats(database: Database, by: timedelta) -> None:
    moved = type_coerce(nodes.c.last_heartbeat, BigInteger) + by // timedelta(microseconds=1)
    await database.transact(lambda c, now: c.execute(update(nodes).values(last_heartbeat=moved)))


async def test_only_the_newest_spans_are_kept(
    database: Database, fleet_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.core.limits.LIVENESS_SPANS_MAX", 3)
    for _ in range(5):
        await fleet_store.listen(ONE, resumed=True)
    assert await row_count(database, hearing_spans) == 3


async def test_resuming_over_and_over_does_not_crowd_out_what_was_heard(
    database: Database, fleet_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.core.limits.LIVENESS_SPANS_MAX", 3)
    await fleet_store.listen(ONE, resumed=False)
    await let_time_pass(database, WITHIN_THE_GAP)
    await fleet_store.listen(ONE, resumed=False)
    for _ in range(5):
        await let_time_pass(database, BEYOND_THE_GAP)
        await fleet_store.listen(ONE, resumed=True)
    heard = (await fleet_store.fleet()).listening.spans[0]
    assert heard.until - heard.since >= WITHIN_THE_GAP


async def test_latest_dial_of_each_frontend_is_shown(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    for frontend in (ONE, TWO):
        await fleet_store.listen(frontend, resumed=False)
    by_two = Dial(node.id, TWO, "", node.created_at)
    again = Dial(node.id, ONE, "timed out", node.created_at + timedelta(seconds=9))
    await fleet_store.record_dials([Dial(node.id, ONE, "refused", node.created_at), by_two])
    await fleet_store.record_dials([again])
    assert (await fleet_store.fleet()).dials == {node.id: [again, by_two]}


async def test_dials_of_a_frontend_that_left_are_not_shown(
    database: Database, fleet_store: FleetStore
) -> None:
    node = await registered(fleet_store)
    await fleet_store.listen(ONE, resumed=False)
    await fleet_store.record_dials([Dial(node.id, ONE, "refused", node.created_at)])
    await let_time_pass(database, LONG_AGO)
    assert (await fleet_store.fleet()).dials == {}


async def test_dials_of_frontends_that_left_are_forgotten(
    database: Database, fleet_store: FleetStore
) -> None:
    node = await registered(fleet_store)
    await fleet_store.listen(ONE, resumed=False)
    await fleet_store.record_dials([Dial(node.id, ONE, "refused", node.created_at)])
    await let_time_pass(database, LONG_AGO)
    await fleet_store.listen(TWO, resumed=False)
    assert await row_count(database, node_dials) == 0


async def test_dial_of_a_node_removed_meanwhile_is_left_out(
    database: Database, fleet_store: FleetStore
) -> None:
    node = await registered(fleet_store)
    gone = Dial(NodeId("gone"), ONE, "refused", node.created_at)
    await fleet_store.record_dials([gone, Dial(node.id, ONE, "", node.created_at)])
    await fleet_store.record_dials([gone])
    assert await row_count(database, node_dials) == 1

"""FleetStore, method by method."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import Engine, event

from remuda.core.errors import Conflict, NotFound
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.admission import HeartbeatOutcome, approve, with_admin_labels, without_label
from remuda.fleet.health import Fleet
from remuda.fleet.model import (
    BusTroubleKind,
    CommandProbe,
    Dial,
    Label,
    LabelSource,
    Node,
    StoredBusTrouble,
    StoredReport,
)
from remuda.fleet.ports import FleetStore, KnownName, Note
from remuda.fleet.registration import Admit, Refuse
from remuda.store.database import Database
from remuda.store.schema import history, node_dials, node_labels, nodes
from tests.contract.store.builders import GIB, admitting, candidate, registered, row_count
from tests.support.nodes import beat

pytestmark = pytest.mark.anyio

UNKNOWN = NodeId("nobody")
FRONTEND = FrontendId("frontend-1")


async def events(store: FleetStore, name: str | None = None) -> Sequence[str]:
    return [entry.event for entry in await store.history(name, 100)]


async def queries_of_a_snapshot(store: FleetStore) -> int:
    statements: list[str] = []

    def count(_: object, __: object, statement: str, *___: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    try:
        await store.fleet()
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    return len(statements)


async def only_node(store: FleetStore) -> Node:
    (node,) = (await store.fleet()).nodes
    return node


async def test_new_node_is_read_back_as_decided(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store, labels={"zone": "attic"})
    assert await only_node(fleet_store) == node
    assert node.labels["zone"] == Label("attic", LabelSource.WORKER)


async def test_decision_is_given_the_known_node(fleet_store: FleetStore) -> None:
    first = await registered(fleet_store, labels={"zone": "attic"})
    given: list[Node | None] = []

    def decide(known: KnownName) -> Admit:
        given.append(known.node)
        assert known.node is not None
        return Admit(known.node)

    await fleet_store.register("alpha", decide)
    assert given == [first]


async def test_registration_is_noted_once_and_each_new_boot_again(fleet_store: FleetStore) -> None:
    await registered(fleet_store)
    await registered(fleet_store)

    def restart(known: KnownName) -> Admit:
        assert known.node is not None
        return Admit(replace(known.node, boot_id=BootId("boot-2")))

    await fleet_store.register("alpha", restart)
    assert await events(fleet_store) == ["restarted", "registered"]


async def test_refused_registration_changes_nothing(fleet_store: FleetStore) -> None:
    await fleet_store.register("alpha", lambda known: Refuse(Conflict("taken")))
    assert (await fleet_store.fleet()).nodes == []
    assert await events(fleet_store) == []


async def test_registration_is_judged_by_the_hearing(fleet_store: FleetStore) -> None:
    await fleet_store.listen(FRONTEND, resumed=False)
    hearings: list[Fleet] = []

    def decide(known: KnownName) -> Admit:
        hearings.append(known.fleet)
        return admitting(candidate(), "id")(known)

    await fleet_store.register("alpha", decide)
    assert len(hearings[0].listening.spans) == 1
    assert hearings[0].now >= hearings[0].listening.spans[0].until


async def test_amended_node_is_written_with_its_note(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    amended = await fleet_store.amend(
        node.id, lambda known: replace(known, drained=True), Note("drained", "for repair", "ada")
    )
    assert amended == await only_node(fleet_store)
    assert amended == replace(node, drained=True, updated_at=amended.updated_at)
    assert amended.updated_at > node.updated_at
    newest = (await fleet_store.history("alpha", 1))[0]
    assert (newest.event, newest.detail, newest.actor) == ("drained", "for repair", "ada")
    assert (newest.node_id, newest.at) == (node.id, amended.updated_at)


async def test_failed_amendment_changes_nothing(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    with pytest.raises(Exception, match="not pending approval"):
        await fleet_store.amend(node.id, approve, Note("approved"))
    assert await only_node(fleet_store) == node
    assert await events(fleet_store) == ["registered"]


async def test_labels_are_changed_one_by_one(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store, labels={"zone": "attic", "rack": "1", "gone": "soon"})

    def change(known: Node) -> Node:
        return without_label(
            with_admin_labels(known, {"zone": "cellar", "new": "1"}, keep_others=True), "gone"
        )

    await fleet_store.amend(
        node.id, lambda known: with_admin_labels(known, {"gone": "now"}, keep_others=True)
    )
    amended = await fleet_store.amend(node.id, change)
    stored = (await only_node(fleet_store)).labels
    assert stored == amended.labels
    assert stored["zone"] == Label("cellar", LabelSource.ADMIN)
    assert stored["rack"] == Label("1", LabelSource.WORKER)
    assert "gone" not in stored


async def test_unknown_ids_are_not_found(fleet_store: FleetStore) -> None:
    with pytest.raises(NotFound):
        await fleet_store.amend(UNKNOWN, lambda node: node)
    with pytest.raises(NotFound):
        await fleet_store.remove(UNKNOWN, Note("removed"))
    with pytest.raises(NotFound):
        await fleet_store.one(UNKNOWN)


async def test_removed_node_leaves_no_labels_and_no_dials(
    database: Database, fleet_store: FleetStore
) -> None:
    node = await registered(fleet_store, labels={"zone": "attic"})
    kept = await registered(fleet_store, "beta")
    await fleet_store.record_dials([Dial(node.id, FRONTEND, "refused", node.created_at)])
    assert await fleet_store.remove(node.id, Note("removed", actor="ada")) == node
    assert await row_count(database, nodes) == 1
    assert await row_count(database, node_labels) == len(kept.labels)
    assert await row_count(database, node_dials) == 0


async def test_history_outlives_the_node_under_its_name(database: Database, fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    await fleet_store.remove(node.id, Note("removed", actor="ada"))
    entries = await fleet_store.history("alpha", 10)
    assert [(entry.event, entry.node_id, entry.node_name) for entry in entries] == [
        ("removed", None, "alpha"),
        ("registered", None, "alpha"),
    ]


async def test_history_is_newest_first_bounded_and_by_name(fleet_store: FleetStore) -> None:
    alpha, beta = await registered(fleet_store), await registered(fleet_store, "beta")
    for word in ("one", "two"):
        await fleet_store.amend(alpha.id, lambda node: node, Note(word))
        await fleet_store.amend(beta.id, lambda node: node, Note(word))
    assert await events(fleet_store, "beta") == ["two", "one", "registered"]
    assert [entry.node_name for entry in await fleet_store.history(None, 3)] == ["beta", "alpha", "beta"]


async def test_history_forgets_its_oldest_entries(
    database: Database, fleet_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.core.limits.HISTORY_ROWS_MAX", 3)
    node = await registered(fleet_store)
    for word in ("one", "two", "three", "four"):
        await fleet_store.amend(node.id, lambda known: known, Note(word))
    assert await events(fleet_store) == ["four", "three", "two"]
    assert await row_count(database, history) == 3


async def test_keys_of_removed_nodes_stay_revoked(fleet_store: FleetStore) -> None:
    alpha, beta = await registered(fleet_store), await registered(fleet_store, "beta")
    await fleet_store.remove(alpha.id, Note("removed"), ["UKEY1", "UKEY2"])
    await fleet_store.remove(beta.id, Note("removed"), ["UKEY2"])
    revoked = await fleet_store.revoked()
    assert revoked.keys() == {"UKEY1", "UKEY2"}
    assert revoked["UKEY2"] > revoked["UKEY1"]


async def test_beat_changes_what_it_says_and_nothing_else(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store, labels={"zone": "attic"})
    await fleet_store.amend(node.id, lambda known: replace(known, departed=True, drained=True))
    report = StoredReport(BootId("boot-1"), 7, '{"replicas": []}')
    assert await fleet_store.beat([beat(node.id, available_vram=3 * GIB, report=report)]) == [
        HeartbeatOutcome.TAKEN
    ]
    after = await only_node(fleet_store)
    assert after.last_heartbeat > node.last_heartbeat
    assert after.updated_at == after.last_heartbeat
    assert after == replace(
        node,
        drained=True,
        resources=replace(node.resources, available_vram=3 * GIB),
        report=report,
        last_heartbeat=after.last_heartbeat,
        updated_at=after.updated_at,
    )


async def test_bus_trouble_is_kept_through_heartbeats_and_ended_by_their_reports(
    fleet_store: FleetStore,
) -> None:
    node = await registered(fleet_store)
    kind = BusTroubleKind.CANNOT_CONNECT
    trouble = StoredBusTrouble(node.boot_id, 3, "no answer", heard_at=node.updated_at, kind=kind)
    await fleet_store.amend(node.id, lambda known: replace(known, bus_trouble=trouble))
    assert (await only_node(fleet_store)).cut_off == "no answer"
    await fleet_store.beat([beat(node.id, report=StoredReport(node.boot_id, 4, "{}"))])
    after = await only_node(fleet_store)
    assert (after.bus_trouble, after.cut_off) == (trouble, "")


async def test_an_outage_and_its_end_are_noted_once_whoever_saw_them(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    gone, back = (node.id, Note("offline", "no heartbeat for 60 s")), (node.id, Note("online"))
    for note in (back, gone, gone, back, back, gone):
        await fleet_store.note_outages([note, (UNKNOWN, Note("offline"))])
    events = [entry.event for entry in await fleet_store.history(node.name, 10)]
    assert [event for event in events if event in ("offline", "online")] == ["offline", "online", "offline"]


async def test_beats_of_one_node_are_applied_in_order(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    newer, older = StoredReport(node.boot_id, 2, "{}"), StoredReport(node.boot_id, 1, "{}")
    await fleet_store.beat(
        [
            beat(node.id, available_vram=1, available_ram=5, report=newer),
            beat(node.id, available_vram=2, report=older),
        ]
    )
    after = await only_node(fleet_store)
    assert (after.resources.available_vram, after.resources.available_ram) == (2, 5)
    assert after.report == newer


async def test_unknown_nodes_are_named_and_the_others_still_heard(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    heard = await fleet_store.beat([beat(UNKNOWN), beat(node.id, available_ram=9)])
    assert heard == [HeartbeatOutcome.STRANGE, HeartbeatOutcome.TAKEN]
    assert (await only_node(fleet_store)).resources.available_ram == 9


async def test_sender_of_another_boot_has_to_register_and_is_no_sign_of_life(fleet_store: FleetStore) -> None:
    node = await registered(fleet_store)
    overtaken = beat(node.id, available_ram=9, report=StoredReport(BootId("another"), 7, "{}"))
    assert await fleet_store.beat([overtaken]) == [HeartbeatOutcome.STRANGE]
    assert await only_node(fleet_store) == node


async def test_no_beats_mean_no_work(fleet_store: FleetStore) -> None:
    assert not await fleet_store.beat([])


async def test_what_was_found_before_a_restart_says_nothing_of_the_worker_now(
    fleet_store: FleetStore,
) -> None:
    await fleet_store.listen(FRONTEND, resumed=True)
    node = await registered(fleet_store)
    refused = Dial(node.id, FRONTEND, "refused", node.created_at, node.boot_id, bus_closed=True)
    unheard = CommandProbe(node.id, FRONTEND, "nobody listens", node.created_at, node.boot_id)
    await fleet_store.record_dials([refused])
    await fleet_store.record_probes([unheard])
    found = await fleet_store.one(node.id)
    assert found.dials == {node.id: [replace(refused, boot_id=None)]}
    assert found.probes == {node.id: [replace(unheard, boot_id=None)]} == (await fleet_store.fleet()).probes

    def restart(known: KnownName) -> Admit:
        assert known.node is not None
        return Admit(replace(known.node, boot_id=BootId("boot-2")))

    await fleet_store.register("alpha", restart)
    for again in range(2):
        after = await fleet_store.one(node.id)
        assert (after.dials, after.probes) == ({}, {}), again
        await fleet_store.record_dials([refused])  # It was under way when the worker came back.
        await fleet_store.record_probes([unheard])


async def test_snapshot_of_one_holds_that_one_with_labels_and_dials(fleet_store: FleetStore) -> None:
    alpha = await registered(fleet_store, labels={"zone": "attic"})
    beta = await registered(fleet_store, "beta")
    await fleet_store.listen(FRONTEND, resumed=False)
    dials = [Dial(node.id, FRONTEND, "refused", node.created_at) for node in (alpha, beta)]
    await fleet_store.record_dials(dials)
    snapshot = await fleet_store.one(alpha.id)
    assert snapshot.nodes == [alpha]
    assert snapshot.dials == {alpha.id: [dials[0]]}


async def test_snapshot_takes_as_many_queries_for_many_nodes_as_for_one(
    database: Database, fleet_store: FleetStore
) -> None:
    await registered(fleet_store, "node-0", labels={"number": "0"})
    few = await queries_of_a_snapshot(fleet_store)
    for number in range(1, 20):
        await registered(fleet_store, f"node-{number}", labels={"number": str(number)})
    assert await queries_of_a_snapshot(fleet_store) == few
    fleet = await fleet_store.fleet()
    assert {node.labels["number"].value for node in fleet.nodes} == {str(number) for number in range(20)}

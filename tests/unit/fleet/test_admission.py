"""What registrations, heartbeats and an admin's words turn a node into."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from remuda.core.errors import Conflict, Invalid, NotFound
from remuda.core.ids import BootId, NodeId
from remuda.fleet.admission import (
    AdmissionPolicy,
    HeartbeatOutcome,
    admit,
    approve,
    cut_off,
    depart,
    heard,
    hears,
    leave,
    readmit,
    with_admin_labels,
    with_budget_override,
    with_max_replicas_override,
    without_label,
    worker_ended,
    worker_starts,
)
from remuda.fleet.health import Fleet, ListeningPeriods, NodeStatus
from remuda.fleet.model import Candidate, Label, LabelSource, Node, Resources, StoredBusTrouble, StoredReport
from tests.support.nodes import CLOSED, NOON, OPEN, THRESHOLDS, beat, candidate, node

LATER = NOON + timedelta(minutes=5)


def test_with_approval_on_a_new_node_waits() -> None:
    assert not admit(candidate(), NOON, NodeId("n"), CLOSED).approved


def test_the_machines_own_worker_never_waits() -> None:
    own = AdmissionPolicy(auto_approve=False, own_secrets=frozenset({"its-hash"}))

    assert admit(candidate(secret_hash="its-hash"), NOON, NodeId("n"), own).approved


def test_a_worker_without_a_secret_is_nobodys_own() -> None:
    own = AdmissionPolicy(auto_approve=False, own_secrets=frozenset({""}))

    assert not admit(candidate(secret_hash=""), NOON, NodeId("n"), own).approved


def test_a_restart_keeps_what_the_admin_decided() -> None:
    known = with_budget_override(
        with_admin_labels(node(drained=True), {"rack": "7"}, keep_others=True), "50%"
    )

    back = readmit(candidate(boot_id=BootId("boot-2")), known, LATER, CLOSED)

    assert (back.id, back.approved, back.drained) == (known.id, True, True)
    assert back.labels["rack"].value == "7"
    assert back.vram_budget_override == "50%"


def test_a_pending_node_is_still_pending_when_it_returns() -> None:
    assert not readmit(candidate(), node(approved=False), LATER, CLOSED).approved


def test_a_registration_ends_the_workers_own_drain() -> None:
    back = readmit(candidate(), node(leaving=True, departed=True), LATER, CLOSED)

    assert (back.leaving, back.departed) == (False, False)


def test_zero_from_a_foreign_worker_means_not_said_except_for_the_disk() -> None:
    known = node(resources=Resources(total_vram=8, total_ram=9, total_disk=10, gpu_vendor="nvidia"))

    back = readmit(candidate(version="", resources=Resources()), known, LATER, OPEN)

    assert (back.resources.total_vram, back.resources.total_ram) == (8, 9)
    assert (back.resources.gpu_vendor, back.resources.total_disk) == ("nvidia", 0)


def test_zero_from_our_worker_is_a_fact() -> None:
    known = node(resources=Resources(total_vram=8, gpu_vendor="nvidia"))

    back = readmit(candidate(resources=Resources()), known, LATER, OPEN)

    assert back.resources == Resources()


def test_removing_the_workers_budget_clears_the_cap() -> None:
    back = readmit(candidate(vram_budget=""), node(vram_budget="80%"), LATER, OPEN)

    assert back.effective_budget == ""


def test_a_worker_label_that_is_no_longer_sent_disappears() -> None:
    known = readmit(candidate(labels={"zone": "a"}), node(), NOON, OPEN)

    back = readmit(candidate(labels={}), known, LATER, OPEN)

    assert "zone" not in back.labels


def test_a_heartbeat_of_a_pending_node_is_only_a_sign_of_life() -> None:
    after = heard(node(approved=False), beat(NodeId("node-1"), available_ram=7), LATER)

    assert after.last_heartbeat == LATER
    assert after.resources.available_ram == 1 << 33


def test_a_heartbeat_says_only_what_it_says() -> None:
    after = heard(node(), beat(NodeId("node-1"), available_disk=0), LATER)

    assert (after.resources.available_disk, after.resources.available_ram) == (0, 1 << 33)


def test_a_departed_node_that_beats_is_back() -> None:
    assert not heard(node(departed=True), beat(NodeId("node-1")), LATER).departed


def report(sequence: int, boot: str = "boot-1") -> StoredReport:
    return StoredReport(BootId(boot), sequence, "{}")


def test_an_overtaken_report_changes_nothing() -> None:
    known = node(report=report(5))

    assert heard(known, beat(NodeId("node-1"), report=report(4)), LATER).report == report(5)


def test_a_heartbeat_of_another_boot_does_not_speak_for_the_node() -> None:
    assert hears(beat(NodeId("node-1"), report=report(9, "boot-0")), node()) is HeartbeatOutcome.STRANGE
    assert hears(beat(NodeId("node-1"), report=report(9)), node()) is HeartbeatOutcome.TAKEN
    assert hears(beat(NodeId("node-1")), node()) is HeartbeatOutcome.TAKEN, (
        "a peer without reports names no boot"
    )


@pytest.mark.parametrize("word", [leave, depart])
def test_the_late_farewell_of_an_earlier_boot_changes_nothing(
    word: Callable[[Node, BootId | None], Node],
) -> None:
    with pytest.raises(NotFound, match="restarted since"):
        word(node(), BootId("boot-0"))


def test_a_farewell_is_taken_from_the_boot_it_names_or_from_whoever_is_there() -> None:
    assert leave(node(), node().boot_id).leaving
    assert depart(node(), None).departed
    assert not depart(node(), None).left


def test_a_node_that_left_for_good_can_come_back() -> None:
    left = depart(node(), None, for_good=True)
    assert left.left
    assert not readmit(candidate(), left, LATER, CLOSED).left
    assert not heard(left, beat(NodeId("node-1")), LATER).left


def peer(boot: str, body_hash: str) -> Candidate:
    """A registration of a LocalAI worker, for which a boot was made up."""
    return candidate(boot_id=BootId(boot), body_hash=body_hash, version="", machine_id="")


def boot_after(*registrations: Candidate, **meanwhile: Any) -> str:
    known = admit(registrations[0], NOON, NodeId("node-1"), OPEN)
    for again in registrations[1:]:
        known = readmit(again, replace(known, **meanwhile), LATER, OPEN)
    return known.boot_id


def test_a_peer_that_sends_its_last_registration_again_has_not_restarted() -> None:
    assert boot_after(peer("b1", "same"), peer("b2", "same"), peer("b3", "same")) == "b1"


def test_a_peer_that_sends_another_registration_has_restarted() -> None:
    assert boot_after(peer("b1", "one"), peer("b2", "two")) == "b2"
    assert boot_after(peer("b1", "one"), peer("b2", "two"), peer("b3", "one")) == "b3"
    assert boot_after(peer("b1", ""), peer("b2", "")) == "b2", "nobody has noted what it sent"


@pytest.mark.parametrize("word", ["leaving", "departed"])
def test_a_peer_that_registers_after_its_goodbye_has_restarted(word: str) -> None:
    assert boot_after(peer("b1", "same"), peer("b2", "same"), **{word: True}) == "b2"


def test_our_worker_says_itself_which_boot_it_is() -> None:
    ours = [candidate(boot_id=BootId(boot), body_hash="same", version="0.1.0") for boot in ("b1", "b2")]
    assert boot_after(*ours) == "b2"


def test_a_new_boot_starts_with_no_report() -> None:
    known = node(report=report(5))

    assert readmit(candidate(boot_id=BootId("b2")), known, LATER, OPEN).report is None
    assert readmit(candidate(), known, LATER, OPEN).report == report(5)


def test_only_a_pending_node_can_be_approved() -> None:
    assert approve(node(approved=False)).approved
    with pytest.raises(Invalid, match="pending"):
        approve(node())


def test_an_admins_label_outlives_the_workers_word() -> None:
    known = with_admin_labels(node(), {"zone": "admin"}, keep_others=True)

    back = readmit(candidate(labels={"zone": "worker"}), known, LATER, OPEN)

    assert back.labels["zone"].value == "admin"


def test_replacing_labels_replaces_all_of_them() -> None:
    assert set(with_admin_labels(node(), {"a": "1"}, keep_others=False).labels) == {"a"}


def test_labels_that_describe_the_node_cannot_be_changed_by_an_admin() -> None:
    known = replace(node(), labels={"node.name": Label("gpu-1", LabelSource.AUTO)})
    with pytest.raises(Invalid, match=r"node\.name is reserved"):
        with_admin_labels(known, {"node.name": "x"}, keep_others=True)
    sent_back = with_admin_labels(known, {"node.name": "gpu-1", "rack": "7"}, keep_others=False)
    assert sent_back.labels["node.name"].source is LabelSource.AUTO


def test_an_admins_label_can_be_removed() -> None:
    labelled = with_admin_labels(node(), {"zone": "attic"}, keep_others=True)

    assert "zone" not in without_label(labelled, "zone").labels


@pytest.mark.parametrize(
    ("label", "complaint"),
    [
        (Label("attic", LabelSource.WORKER), "own settings have the label zone=attic"),
        (Label("attic", LabelSource.AUTO), "derives the label zone=attic"),
    ],
)
def test_a_label_that_the_next_registration_brings_back_is_not_removed(label: Label, complaint: str) -> None:
    with pytest.raises(Conflict, match=complaint):
        without_label(node(labels={"zone": label}), "zone")


@pytest.mark.parametrize(("version", "setting"), [("0.2.0", "--labels"), ("", "LOCALAI_NODE_LABELS")])
def test_where_to_change_a_label_is_told_in_the_words_of_that_worker(version: str, setting: str) -> None:
    labelled = node(version=version, labels={"zone": Label("attic", LabelSource.WORKER)})

    with pytest.raises(Conflict) as refused:
        without_label(labelled, "zone")

    assert refused.value.hint.startswith(f"change {setting} there")


def test_an_absurd_budget_is_refused() -> None:
    with pytest.raises(Invalid, match="200%"):
        with_budget_override(node(), "200%")


def test_the_replica_override_shows_in_the_slots_label_and_resets() -> None:
    raised = with_max_replicas_override(node(), 4)
    reset = with_max_replicas_override(raised, None)

    assert (raised.effective_max_replicas, raised.labels["node.replica-slots"].value) == (4, "4")
    assert (reset.effective_max_replicas, reset.labels["node.replica-slots"].value) == (1, "1")


def test_slots_label_keeps_the_override_across_a_restart() -> None:
    raised = with_max_replicas_override(node(), 4)

    back = readmit(candidate(max_replicas=2), raised, LATER, OPEN)

    assert back.labels["node.replica-slots"].value == "4"


def test_registering_twice_changes_nothing_but_the_time() -> None:
    once = readmit(candidate(), node(), LATER, OPEN)
    twice = readmit(candidate(), once, LATER, OPEN)

    assert twice == once
    assert replace(once, last_heartbeat=NOON, updated_at=NOON, registered_at=NOON) == node()


TROUBLE = StoredBusTrouble(BootId("boot-1"), 3, "no answer from nats://10.0.0.1:4222")


def test_a_worker_that_cannot_be_commanded_is_not_made_healthy_by_registering_again() -> None:
    told = cut_off(node(), TROUBLE, NOON)

    back = readmit(candidate(), told, LATER, OPEN)

    assert (back.cut_off, back.last_heartbeat) == (TROUBLE.reason, told.last_heartbeat)
    assert back.last_heard == LATER, "but it lives"


def test_a_worker_that_says_it_cannot_be_commanded_is_heard_without_a_heartbeat() -> None:
    told = cut_off(node(), TROUBLE, LATER)

    assert (told.last_heartbeat, told.last_heard) == (NOON, LATER)
    assert replace(told, boot_id=BootId("boot-2")).last_heard == NOON, "that was another life"
    assert node(bus_trouble=TROUBLE).last_heard == NOON, "it was not noted when"


def test_a_new_boot_begins_without_the_trouble_of_the_one_before() -> None:
    told = cut_off(node(), TROUBLE, NOON)

    back = readmit(candidate(boot_id=BootId("boot-2")), told, LATER, OPEN)

    assert (back.cut_off, back.last_heartbeat) == ("", LATER)


def test_trouble_that_was_overtaken_on_the_way_changes_nothing() -> None:
    told = cut_off(node(), TROUBLE, NOON)

    assert cut_off(told, replace(TROUBLE, sequence=2, reason="older"), LATER) == told


def test_trouble_of_a_boot_that_is_over_is_refused() -> None:
    with pytest.raises(NotFound):
        cut_off(node(boot_id=BootId("boot-2")), TROUBLE, NOON)


def test_a_worker_that_its_parent_saw_end_is_gone_at_once_and_back_when_it_registers() -> None:
    ended = worker_ended(node(), node().boot_id, "it was killed")
    standing = Fleet(NOON, ListeningPeriods(), [ended]).standing(ended, THRESHOLDS)
    assert (standing.status, standing.reasons) == (NodeStatus.OFFLINE, ("it was killed",))

    back = readmit(candidate(boot_id=BootId("boot-2")), ended, LATER, CLOSED)
    assert (back.departed, back.ended) == (False, "")
    assert worker_ended(back, node().boot_id, "late") == back, "it is another boot by now"


def test_a_worker_that_said_goodbye_stays_as_it_said() -> None:
    departed = node(departed=True)
    assert worker_ended(departed, departed.boot_id, "it ended") == departed
    starting = worker_starts(departed, departed.boot_id, "it was just started")
    assert (starting.departed, starting.ended) == (True, "it was just started")
    assert worker_starts(departed, BootId("an earlier one"), "late") == departed


@pytest.mark.parametrize("key", ["gpu.vendor", "gpu.vram"])
def test_without_an_admins_label_the_derived_one_is_back(key: str) -> None:
    resources = Resources(gpu_vendor="nvidia", total_vram=24 << 30)
    before = admit(candidate(resources=resources), NOON, NodeId("n"), OPEN)
    named = with_admin_labels(before, {key: "x"}, keep_others=True)

    assert named.labels[key] == Label("x", LabelSource.ADMIN)
    assert without_label(named, key).labels == before.labels

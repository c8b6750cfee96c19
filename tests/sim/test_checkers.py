"""The checkers can fail: one decision is broken at a time, and a simulation notices, by the right claim."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from remuda.core.ids import NodeId
from remuda.fleet import admission, identity, registration
from remuda.fleet.admission import AdmissionPolicy, Beat, HeartbeatOutcome
from remuda.fleet.health import ListeningPeriods, NodeStatus, Reachability, Standing
from remuda.fleet.model import Candidate, Node, StoredReport
from remuda.fleet.ports import Note
from remuda.fleet.registration import Decision, Desk, Supersede
from remuda.fleet.registry import Registry
from remuda.store.fleet import SqlFleetStore
from remuda.wire.nodes import Departure
from remuda.worker.bus_session import BusSession
from remuda.worker.ports import WorkerBus
from tests.sim.simulation import run_seed

SEEDS_MOST = 10
_readmit, _standings, _remove = admission.readmit, Registry.standings, SqlFleetStore.remove
_hears, _recognised, _may_speak, _receive = (
    admission.hears,
    identity.recognised,
    identity.may_speak,
    registration.receive,
)


def coming_back(change: Callable[[Node, Node], Node]) -> object:
    """A registration under a known name that makes `change` of the outcome; it also gets the row before."""

    def readmit(candidate: Candidate, known: Node, now: datetime, policy: AdmissionPolicy) -> Node:
        return change(_readmit(candidate, known, now, policy), known)

    return readmit


def silence_on_the_wall_clock(_: ListeningPeriods, last_heard: datetime, now: datetime) -> timedelta:
    return now - last_heard


def newest_arrival_wins(held: StoredReport | None, report: StoredReport | None) -> StoredReport | None:
    return report or held


def any_boot_is_heard(beat: Beat, node: Node | None) -> HeartbeatOutcome:
    return _hears(replace(beat, report=None), node)


def name_is_enough(candidate: Candidate, known: Node) -> bool:
    return _recognised(candidate, known) or not candidate.machine_id


def machine_id_proves(candidate: Candidate, known: Node) -> bool:
    return candidate.machine_id == known.machine_id


def place_is_taken_at_once(candidate: Candidate, known: Node, now: datetime, new_id: NodeId) -> Decision:
    return Supersede(known, admission.succeed(candidate, known, now, new_id, approved=True))


def nobody_is_heard(candidate: Candidate, desk: Desk, new_id: NodeId, policy: AdmissionPolicy) -> Decision:
    return _receive(candidate, replace(desk, heard=Reachability.GONE), new_id, policy)


def status_of_the_heard(node: Node, reachability: Reachability) -> NodeStatus:
    return NodeStatus.HEALTHY if reachability is Reachability.UP else NodeStatus.OFFLINE


async def kept_verdicts(registry: Registry) -> list[Standing]:
    if not hasattr(registry, "kept"):
        registry.kept = await _standings(registry)  # type: ignore[attr-defined]
    kept: list[Standing] = registry.kept  # type: ignore[attr-defined]
    return kept


async def remove_without_revoking(store: SqlFleetStore, node_id: NodeId, note: Note, revoke: object) -> Node:
    return await _remove(store, node_id, note)


def reachable_whatever_happens(line: BusSession, bus: WorkerBus, node: NodeId) -> None:
    line.reachable_as.set(node)


@dataclass(frozen=True, slots=True)
class Break:
    target: str
    instead: Any  # Whatever stands at the target.
    noticed_by: str
    first_seed: int = 0  # Nearer to where it is noticed, for those that take a rare chain of events.


BREAKS = {
    "time in which nobody listened counts": Break(
        "remuda.fleet.health.ListeningPeriods.silence",
        silence_on_the_wall_clock,
        "silence_was_listened_to",
        first_seed=1,
    ),
    "a clock that was set back is not followed": Break(
        "remuda.store.fleet_rows._follow_clock",
        lambda connection, now: None,
        "settles_in_time",
        first_seed=288,
    ),
    "nobody is ever gone": Break(
        "remuda.fleet.health.judge", lambda *_: Reachability.UP, "settles_in_time", first_seed=4
    ),
    "the status forgets approval": Break(
        "remuda.fleet.health.wire_status", status_of_the_heard, "unapproved_is_pending"
    ),
    "frontends keep what they once concluded": Break(
        "remuda.fleet.registry.Registry.standings", kept_verdicts, "frontends_agree"
    ),
    "coming back is as good as approval": Break(
        "remuda.fleet.admission.readmit",
        coming_back(lambda node, _: replace(node, approved=True)),
        "approval_is_given",
    ),
    "a registration ends an admin's drain": Break(
        "remuda.fleet.admission.readmit",
        coming_back(lambda node, _: replace(node, drained=False)),
        "drain_is_an_admins",
        first_seed=7,
    ),
    "a registration drops an admin's override": Break(
        "remuda.fleet.admission.readmit",
        coming_back(lambda node, _: replace(node, vram_budget_override=None)),
        "overrides_are_an_admins",
    ),
    "a registration drops an admin's labels": Break(
        "remuda.fleet.admission.merged_labels",
        lambda existing, worker, automatic: {},
        "labels_are_an_admins",
        first_seed=2,
    ),
    "a name without a machine id is enough": Break(
        "remuda.fleet.registration.recognised", name_is_enough, "rows_keep_their_machine"
    ),
    "a machine id proves who one is": Break(
        "remuda.fleet.registration.recognised", machine_id_proves, "ids_stay_with_their_machine"
    ),
    "the shared token speaks for every node": Break(
        "remuda.fleet.admission.may_speak",
        lambda caller, node: caller.shared or _may_speak(caller, node),
        "only_the_node_speaks_for_itself",
    ),
    "the token of another node will do": Break(
        "remuda.fleet.identity.may_speak", lambda caller, node: True, "farewells_are_of_this_boot"
    ),
    "another machine takes a gone one's place unasked": Break(
        "remuda.fleet.registration._claimed", place_is_taken_at_once, "ids_are_stable", first_seed=13
    ),
    "a name can be taken from the living": Break(
        "remuda.fleet.registry.receive", nobody_is_heard, "ids_are_stable"
    ),
    "an overtaken report wins": Break(
        "remuda.fleet.admission._newer", newest_arrival_wins, "reports_go_forward"
    ),
    "a late farewell drains the next boot": Break(
        "remuda.fleet.admission._still",
        lambda node, boot_id: node,
        "farewells_are_of_this_boot",
        first_seed=14,
    ),
    "a worker takes leave without its boot": Break(
        "remuda.worker.membership.Departure",
        lambda **said: Departure(for_good=said["for_good"]),
        "farewells_are_of_this_boot",
        first_seed=14,
    ),
    "a late registration keeps the next boot out": Break(
        "remuda.fleet.admission.hears", any_boot_is_heard, "reports_go_forward", first_seed=93
    ),
    "a removed node keeps its bus key": Break(
        "remuda.store.fleet.SqlFleetStore.remove", remove_without_revoking, "removed_keys_are_revoked"
    ),
    "a worker believes its own clock": Break(
        "remuda.worker.enrolment.refresh_after",
        lambda jwt, now: timedelta(seconds=1),
        "registers_in_moderation",
        first_seed=8,
    ),
    "heartbeats go on without the bus": Break(
        "remuda.worker.bus_session.BusSession._note",
        reachable_whatever_happens,
        "no_heartbeat_without_the_bus",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_decision_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BREAKS[name]
    monkeypatch.setattr(broken.target, broken.instead)
    seeds = range(broken.first_seed, broken.first_seed + SEEDS_MOST)
    failures = (run_seed(seed).failure for seed in seeds)
    noticed = next((str(failure) for failure in failures if failure is not None), "nothing")
    assert noticed.startswith(broken.noticed_by)

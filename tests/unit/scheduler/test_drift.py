"""Replicas against what workers say of their processes, and processes against replicas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.fleet.verdicts import ObservedNode
from remuda.router.table import _routable
from remuda.scheduler.drift import Asked, Drift, DriftMemory, Scene, Stray, compare, stands_for, to_ask
from remuda.scheduler.model import Replica, ReplicaState
from remuda.wire.models import RunningModel
from remuda.wire.nodes import StoppedReplica
from tests.support.nodes import NOON
from tests.unit.scheduler.standing import a_row, a_view, ago, its_process, rows

NODE = NodeId("id-gpu-1")


def look(
    *replicas: Replica,
    nodes: Sequence[ObservedNode] = (),
    before: Drift | None = None,
    now: datetime = NOON,
    loading: Sequence[Replica] = (),
    answers: Mapping[NodeId, Sequence[RunningModel]] | None = None,
) -> Drift:
    scene = Scene(
        rows(*replicas, now=now),
        {view.standing.node.id: view for view in nodes},
        loading={(row.node, row.key) for row in loading},
        asked=(answers or {}).keys(),
        answers=answers or {},
    )
    return compare(scene, DriftMemory() if before is None else before.memory)


def reasons(found: Drift) -> list[str]:
    return [drop.why for drop in found.drops]


# Rows.


def test_replica_whose_process_is_reported_stays() -> None:
    row = a_row()
    assert look(row, nodes=[a_view("gpu-1", its_process(row))]).drops == ()


def test_replica_of_a_removed_node_goes_at_once() -> None:
    assert reasons(look(a_row())) == ["its node was removed"]


def test_replica_of_the_workers_former_life_goes_at_once() -> None:
    row = a_row(boot=BootId("former"))
    assert reasons(look(row, nodes=[a_view()])) == ["the worker on gpu-1 was started anew"]


def test_replica_missing_in_two_reports_goes() -> None:
    row = a_row()
    first = look(row, nodes=[a_view(sequence=4)])
    assert first.drops == ()
    second = look(row, nodes=[a_view(sequence=5)], before=first)
    assert reasons(second) == ["its process on gpu-1 is gone"]


def test_one_report_looked_at_twice_is_one_report() -> None:
    row = a_row()
    first = look(row, nodes=[a_view(sequence=4)])
    again = look(row, nodes=[a_view(sequence=4)], before=first)
    assert again.drops == ()
    assert reasons(look(row, nodes=[a_view(sequence=5)], before=again)) != []


def test_replica_that_comes_back_in_between_begins_anew() -> None:
    row = a_row()
    first = look(row, nodes=[a_view(sequence=4)])
    back = look(row, nodes=[a_view("gpu-1", its_process(row), sequence=5)], before=first)
    assert look(row, nodes=[a_view(sequence=6)], before=back).drops == ()


def test_row_written_after_the_report_is_not_judged_by_it() -> None:
    row = a_row(since_s=3)
    first = look(row, nodes=[a_view(sequence=4, heard_s=1)])
    assert look(row, nodes=[a_view(sequence=5, heard_s=0)], before=first).drops == ()


def test_row_written_again_begins_anew() -> None:
    row = a_row()
    first = look(row, nodes=[a_view(sequence=4)])
    assert look(replace(row, change=8), nodes=[a_view(sequence=5)], before=first).drops == ()


@pytest.mark.parametrize("told", [{"instance": "another"}, {"state": "waiting"}, {"state": "failed"}])
def test_process_that_ended_by_itself_takes_its_row_along_at_once(told: dict[str, str]) -> None:
    row = a_row()
    ended = a_view("gpu-1", its_process(row, **told, trouble="it was killed"))
    [drop] = look(row, nodes=[ended]).drops
    assert (drop.why, drop.reload) == ("its process on gpu-1 ended: it was killed", True)


def stopped(row: Replica, **told: str) -> ObservedNode:
    """Its node right after an install has ended its process."""
    view, why = a_view(heard_s=0), "the install of x stopped it"
    entry = StoppedReplica(
        model_id=row.key.model, replica_index=row.key.index, instance=row.instance, why=why
    )
    assert view.report is not None
    report = view.report.model_copy(update={"stopped": (entry.model_copy(update=told),)})
    return replace(view, report=report)


def test_process_that_was_stopped_takes_its_row_along_at_the_first_report_which_says_why() -> None:
    row = a_row(since_s=1)
    [drop] = look(row, nodes=[stopped(row)]).drops
    assert (drop.why, drop.reload, drop.noted) == ("the install of x stopped it", False, True)
    assert _routable(row, a_view("gpu-1", its_process(row)), {})
    assert not _routable(row, stopped(row), {})
    assert look(row, nodes=[stopped(row, instance="another")]).drops == ()
    assert look(replace(row, state=ReplicaState.UNLOADING), nodes=[stopped(row)]).drops == ()


def test_process_that_ended_is_not_told_by_a_report_older_than_the_row() -> None:
    row = a_row(since_s=3)
    assert look(row, nodes=[a_view("gpu-1", its_process(row, instance="another"))]).drops == ()


def test_process_that_ended_while_it_was_unloaded_is_left_to_the_unload() -> None:
    row = a_row(state=ReplicaState.UNLOADING)
    assert look(row, nodes=[a_view("gpu-1", its_process(row, instance="another"))]).drops == ()


def test_replica_that_crashes_over_and_over_is_reloaded_once_in_five_minutes() -> None:
    row = a_row(since_s=3000)
    ended = a_view("gpu-1", its_process(row, "failed"))
    found = look(row, nodes=[ended])
    reloaded = [found.drops[0].reload]
    for minutes in (1, 4, 5):
        found = look(row, nodes=[ended], before=found, now=NOON + timedelta(minutes=minutes))
        reloaded.append(found.drops[0].reload)
    assert reloaded == [True, False, False, True]


def test_replica_of_a_node_that_went_is_not_reloaded() -> None:
    """The next request has it loaded, if somebody wants it."""
    drops = [*look(a_row()).drops, *look(a_row(boot=BootId("former")), nodes=[a_view()]).drops]
    assert [drop.reload for drop in drops] == [False, False]


@pytest.mark.parametrize("state", ["unresponsive", "starting", "ready", "stopping"])
def test_process_that_is_there_in_whatever_state_keeps_its_row(state: str) -> None:
    row = a_row()
    first = look(row, nodes=[a_view("gpu-1", its_process(row, state), sequence=4)])
    assert look(row, nodes=[a_view("gpu-1", its_process(row, state), sequence=5)], before=first).drops == ()


def test_node_that_has_not_reported_in_this_life_says_nothing() -> None:
    row, untold = a_row(), replace(a_view(), report=None)
    assert look(row, nodes=[untold], before=look(row, nodes=[untold])).drops == ()


@pytest.mark.parametrize("heard_s", [40, 90, 590])
def test_replica_of_a_node_that_is_not_heard_stays_for_ten_minutes(heard_s: float) -> None:
    row = a_row(since_s=3000)
    silent = a_view("gpu-1", its_process(row), heard_s=heard_s)
    assert look(row, nodes=[silent], before=look(row, nodes=[silent])).drops == ()


@pytest.mark.parametrize("departed", [True, False])
def test_replica_of_a_node_that_is_away_for_long_goes(departed: bool) -> None:
    away = a_view(heard_s=601, departed=departed)
    assert reasons(look(a_row(since_s=3000), nodes=[away])) == ["gpu-1 is away"]


@pytest.mark.parametrize("state", [ReplicaState.STAGING, ReplicaState.LOADING])
def test_replica_on_its_way_is_its_operations_concern_however_long_it_takes(state: ReplicaState) -> None:
    row = a_row(state=state, since_s=5000)
    first = look(row, nodes=[a_view(sequence=1)])
    later = look(row, nodes=[a_view(sequence=9)], before=first, now=NOON + timedelta(hours=1))
    assert (first.drops, later.drops) == ((), ())


# Peers without reports.


def peer(heard_s: float = 1) -> ObservedNode:
    return a_view(reports=False, heard_s=heard_s)


def asking(
    row: Replica, view: ObservedNode, memory: DriftMemory | None = None, now: datetime = NOON
) -> list[NodeId]:
    """About its rows: about what it may have besides, it was asked just now."""
    about_rows = replace(memory or DriftMemory(), asked={NODE: Asked(now, answered=True)})
    return to_ask(rows(row, now=now), {NODE: view}, about_rows)


def test_peer_is_asked_about_rows_that_nothing_has_confirmed_for_two_minutes() -> None:
    assert asking(a_row(since_s=119), peer()) == []
    assert asking(a_row(since_s=120), peer()) == [NODE]
    assert asking(a_row(since_s=120), a_view()) == [], "it reports by itself"
    assert asking(a_row(since_s=120), peer(heard_s=40)) == [], "it would not answer"


def test_peer_is_asked_as_soon_as_it_has_registered_again() -> None:
    row = a_row(since_s=30, instance="")
    assert asking(row, a_view(reports=False, registered_at=ago(40))) == [], "it was loaded since"
    back = a_view(reports=False, registered_at=ago(20))
    assert asking(row, back) == [NODE]
    runs = [RunningModel(model_id="qwen", replica_index=0)]
    assert asking(row, back, look(row, nodes=[back], answers={NODE: runs}).memory) == []


def test_peer_that_confirmed_is_not_asked_for_another_two_minutes() -> None:
    row = a_row(since_s=500, instance="")
    runs = [RunningModel(model_id="qwen", replica_index=0)]
    found = look(row, nodes=[peer()], answers={NODE: runs})
    later = look(row, nodes=[peer()], before=found, now=NOON + timedelta(seconds=60))
    assert asking(row, peer(), later.memory, NOON + timedelta(seconds=119)) == []
    assert asking(row, peer(), later.memory, NOON + timedelta(seconds=120)) == [NODE]


def test_replica_that_a_peer_denies_twice_goes() -> None:
    row = a_row(since_s=500)
    first = look(row, nodes=[peer()], answers={NODE: []})
    assert first.drops == ()
    unanswered = look(row, nodes=[peer()], before=first)
    assert unanswered.drops == ()
    second = look(row, nodes=[peer()], before=unanswered, answers={NODE: []})
    assert reasons(second) == ["the worker on gpu-1 says that it does not run"]


def test_peer_that_confirms_in_between_clears_the_doubt() -> None:
    row = a_row(since_s=500)
    runs = [RunningModel(model_id="qwen", replica_index=0)]
    first = look(row, nodes=[peer()], answers={NODE: []})
    confirmed = look(row, nodes=[peer()], before=first, answers={NODE: runs})
    assert look(row, nodes=[peer()], before=confirmed, answers={NODE: []}).drops == ()


def test_other_replica_of_the_model_confirms_nothing() -> None:
    row = a_row(since_s=500)
    other = [RunningModel(model_id="qwen", replica_index=1)]
    first = look(row, nodes=[peer()], answers={NODE: other})
    assert reasons(look(row, nodes=[peer()], before=first, answers={NODE: other})) != []


# Processes that nobody knows.

LATER = NOON + timedelta(seconds=30)


def stray(row: Replica) -> Stray:
    return Stray(row.node, row.key, row.instance, row.address)


def test_process_that_no_row_stands_for_is_stopped_when_seen_twice() -> None:
    lost = a_row()
    first = look(nodes=[a_view("gpu-1", its_process(lost), sequence=1)])
    soon = look(
        nodes=[a_view("gpu-1", its_process(lost), sequence=3)], before=first, now=LATER - timedelta(seconds=1)
    )
    assert (first.strays, soon.strays) == ((), ())
    late = look(nodes=[a_view("gpu-1", its_process(lost), sequence=4)], before=soon, now=LATER)
    assert late.strays == (stray(lost),)


def test_one_report_is_not_enough_however_old_it_is() -> None:
    view = a_view("gpu-1", its_process(a_row()), sequence=1)
    assert look(nodes=[view], before=look(nodes=[view]), now=LATER).strays == ()


def test_other_instance_than_the_row_stands_for_is_a_stray() -> None:
    row = a_row()
    successor = replace(row, instance="old")
    views = [a_view("gpu-1", its_process(row), its_process(successor), sequence=n) for n in (1, 2)]
    found = look(row, nodes=[views[1]], before=look(row, nodes=[views[0]]), now=LATER)
    assert found.strays == (stray(successor),)


def never_stopped(row: Replica | None, process: Replica, **told: str) -> bool:
    known = [] if row is None else [row]
    views = [a_view("gpu-1", its_process(process, **told), sequence=n) for n in (1, 2)]
    found = look(*known, nodes=[views[1]], before=look(*known, nodes=[views[0]]), now=LATER)
    return found.strays == ()


def test_processes_that_have_their_reasons_are_left_alone() -> None:
    row = a_row()
    assert never_stopped(row, row)
    assert never_stopped(replace(row, instance="", state=ReplicaState.STAGING), row), "it is about to be told"
    assert never_stopped(None, row, state="stopping")
    assert never_stopped(None, row, model_id="llama-cpp"), "a backend without a model"
    assert never_stopped(None, row, instance=""), "nobody could say which one is meant"
    assert not never_stopped(None, row)


def test_process_that_a_live_operation_is_loading_is_left_alone() -> None:
    row = a_row()
    views = [a_view("gpu-1", its_process(row), sequence=n) for n in (1, 2)]
    first = look(nodes=[views[0]], loading=[row])
    assert look(nodes=[views[1]], before=first, loading=[row], now=LATER).strays == ()


def test_stray_on_a_silent_node_waits_for_its_next_report() -> None:
    view = [a_view("gpu-1", its_process(a_row()), sequence=n, heard_s=40) for n in (1, 2)]
    assert look(nodes=[view[1]], before=look(nodes=[view[0]]), now=LATER).strays == ()


def test_what_is_no_longer_there_is_not_remembered() -> None:
    row = a_row()
    seen = look(row, nodes=[a_view("gpu-1", its_process(a_row("lost")), sequence=1)])
    assert seen.memory.missing.keys() == {(ReplicaKey("qwen", 0), 7)}
    assert len(seen.memory.strays) == 1
    assert look(nodes=[a_view()], before=seen).memory == DriftMemory()


# Processes of peers that nobody knows.

PROCESS = RunningModel(model_id="qwen", replica_index=0, address="127.0.0.1:50052")
STRAY = Stray(NODE, ReplicaKey("qwen", 0), "", "127.0.0.1:50052")


def asked_of(view: ObservedNode, before: Drift | None = None, after_s: float = 0) -> bool:
    now, memory = NOON + timedelta(seconds=after_s), DriftMemory() if before is None else before.memory
    return to_ask(rows(now=now), {NODE: view}, memory) == [NODE]


def test_peer_without_rows_is_asked_when_it_joins_and_every_two_minutes() -> None:
    assert asked_of(peer())
    assert not asked_of(a_view()), "it reports by itself"
    assert not asked_of(peer(heard_s=40)), "it would not answer"
    idle = look(nodes=[peer()], answers={NODE: []})
    assert [asked_of(peer(), idle, seconds) for seconds in (119, 120)] == [False, True]
    assert asked_of(a_view(reports=False, registered_at=NOON + timedelta(seconds=1)), idle, 2), (
        "it joined again"
    )


def test_peer_that_does_not_answer_is_asked_again_in_half_a_minute() -> None:
    untold = compare(Scene(rows(), {NODE: peer()}, asked=[NODE]), DriftMemory())
    assert [asked_of(peer(), untold, seconds) for seconds in (29, 30)] == [False, True]


def test_many_peers_are_asked_some_at_a_time() -> None:
    views = {NodeId(f"id-n{number}"): a_view(f"n{number}", reports=False) for number in range(100)}
    assert len(to_ask(rows(), views, DriftMemory())) == 64


def test_process_of_a_peer_that_no_row_stands_for_is_stopped_when_told_twice() -> None:
    first = look(nodes=[peer()], answers={NODE: [PROCESS]})
    assert first.strays == ()
    between = look(nodes=[peer()], before=first, now=NOON + timedelta(seconds=5))
    assert [asked_of(peer(), between, seconds) for seconds in (29, 30)] == [False, True]
    second = look(nodes=[peer()], before=between, answers={NODE: [PROCESS]}, now=LATER)
    assert second.strays == (STRAY,)
    again = LATER + timedelta(seconds=30)
    third = look(nodes=[peer()], before=second, answers={NODE: [PROCESS]}, now=again)
    assert third.strays == (STRAY,), "it did not go, and is told again"
    gone = look(nodes=[peer()], before=third, answers={NODE: []}, now=again + timedelta(seconds=30))
    assert gone.memory.strays == {}


def left_alone(process: RunningModel = PROCESS, *known: Replica, loading: Sequence[Replica] = ()) -> bool:
    view, answers = a_view(reports=False, installed=["llama-cpp"]), {NODE: [process]}
    first = look(*known, nodes=[view], answers=answers, loading=loading)
    return not look(*known, nodes=[view], before=first, answers=answers, loading=loading, now=LATER).strays


def test_processes_of_peers_that_have_their_reasons_are_left_alone() -> None:
    row = a_row(instance="")
    assert not left_alone()
    assert left_alone(PROCESS, row)
    assert left_alone(PROCESS, replace(row, state=ReplicaState.STAGING)), "its address is about to be told"
    assert left_alone(PROCESS, loading=[row])
    assert left_alone(PROCESS.model_copy(update={"model_id": "llama-cpp"})), "a backend without a model"
    assert left_alone(PROCESS.model_copy(update={"address": ""})), "nobody could say which one is meant"


def test_peer_whose_backends_are_not_known_is_not_judged() -> None:
    unlisted = replace(peer(), inventory=None)
    first = look(nodes=[unlisted], answers={NODE: [PROCESS]})
    assert look(nodes=[unlisted], before=first, answers={NODE: [PROCESS]}, now=LATER).strays == ()


def test_stray_is_spared_once_a_row_stands_for_it() -> None:
    assert stands_for([a_row(instance="")], STRAY)
    assert not stands_for([a_row(index=1, instance="")], STRAY)
    assert not stands_for([a_row(on="gpu-2", instance="")], STRAY)

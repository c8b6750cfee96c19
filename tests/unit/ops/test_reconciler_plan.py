"""One pass, decided from data alone."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from remuda.core import limits
from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import NodeStatus, Reachability, Standing
from remuda.fleet.verdicts import BackendInventory, ObservedNode
from remuda.ops.model import Dispatch, Kind, Moment, Operation, OpId, RollOut, Stage, State, Step, Verb
from remuda.ops.planning import PassPlan, Room, attempts_at_work, plan, telling, to_hold, unwanted
from remuda.ops.ports import Live, OpenRequest
from remuda.ops.progress import summarise
from remuda.ops.reasons import StepCause, because
from remuda.wire.nodes import InstalledArtifact, Report, Work
from tests.support.nodes import node
from tests.unit.ops.build import BOOT, NODE, NOW, OP, a_step, an_operation, at, running

ROOM = Room(1000)
THERE = InstalledArtifact(name="cpu-llama-cpp")


NO_BUS = because(StepCause.BUS_DOWN, "the bus is down")


def a_view(
    node_id: str = NODE,
    *,
    reports: bool = True,
    away: str = "",
    silent_s: float = 0,
    work: tuple[Work, ...] = (),
    **more: Any,
) -> ObservedNode:
    reach, status = Reachability.UP, NodeStatus.HEALTHY
    if away:
        reach, status = Reachability.GONE, NodeStatus.OFFLINE
    who = node(id=NodeId(node_id), boot_id=BOOT)
    standing = Standing(who, reach, status, timedelta(seconds=silent_s), (away,) if away else ())
    report = Report(boot_id=BOOT, sequence=1, work=work) if reports else None
    return replace(ObservedNode(standing, reports, report, None), **more)


def a_request(step: Step, begun_s: float = 0, **more: Any) -> OpenRequest:
    begun_at = NOW + timedelta(seconds=begun_s)
    made = OpenRequest(step.op, step.node, step.attempt, begun_at, begun_at + timedelta(seconds=60))
    return replace(made, **more)


def a_pass(
    *steps: Step,
    views: tuple[ObservedNode, ...] = (a_view(),),
    operations: tuple[Operation, ...] = (an_operation(),),
    requests: tuple[OpenRequest, ...] = (),
    after_s: float = 0,
    room: Room = ROOM,
) -> PassPlan:
    live = Live(NOW + timedelta(seconds=after_s), operations, steps, requests, ())
    nodes = {view.standing.node.id: view for view in views}
    return plan(live, nodes, lambda step: Moment(live.now, 0.0), room)


def test_an_operation_on_many_nodes_begins_on_all_at_once() -> None:
    ids = [f"node-{number}" for number in range(50)]
    steps = [a_step(node=one) for one in ids]
    operation = an_operation(roll_out=RollOut(at_once=100))
    decided = a_pass(*steps, views=tuple(map(a_view, ids)), operations=(operation,))
    assert len(decided.dispatches) == 50


def test_no_more_begin_than_there_is_room_for_and_the_others_say_why() -> None:
    ids = ["node-1", "node-2", "node-3"]
    decided = a_pass(*(a_step(node=one) for one in ids), views=tuple(map(a_view, ids)), room=Room(2))
    assert len(decided.dispatches) == 2
    assert [after.reason for _, after in decided.changes if after.state is State.PENDING] == [
        "as many nodes are busy as may be at once"
    ]


def test_while_the_bus_is_down_nothing_begins_and_no_attempt_is_spent() -> None:
    decided = a_pass(a_step(), room=Room(0, NO_BUS))
    (_, after), *_ = decided.changes
    assert (after.attempt, after.reason) == (0, "nothing can be sent now: the bus is down")


def test_an_offline_node_keeps_its_step_queued_with_the_reason_and_is_sent_nothing() -> None:
    decided = a_pass(a_step(), views=(a_view(away="no heartbeat for 90 s"),))
    (_, after), *_ = decided.changes
    assert after.state is State.PENDING
    assert after.reason.startswith("no heartbeat for 90 s")
    assert not decided.dispatches


def test_how_long_a_node_is_away_is_not_written_again_and_again() -> None:
    step = a_step(why=because(StepCause.NODE_AWAY, "no heartbeat for 90 s; continues when it returns"))
    assert a_pass(step, views=(a_view(away="no heartbeat for 95 s"),)).changes == ()
    assert a_pass(step, views=(a_view(away="its worker was stopped"),)).changes != ()


def test_a_second_pass_over_the_same_picture_changes_nothing() -> None:
    step = running()
    views = (a_view(work=(Work(op_id=OP, attempt=1),)),)
    assert a_pass(step, views=views) == replace(PassPlan(), wake_at=step.wait_until)


def test_a_failure_stops_a_roll_out_before_the_next_node_begins() -> None:
    roll_out = RollOut(at_once=2, proves=True)
    failed = a_step(Kind.UPGRADE, node="node-1", state=State.FAILED, attempt=1, reason="it does not start")
    fresh = a_step(Kind.UPGRADE, node="node-2")
    decided = a_pass(
        failed,
        fresh,
        views=(a_view("node-1"), a_view("node-2")),
        operations=(an_operation(kind=Kind.UPGRADE, roll_out=roll_out),),
    )
    assert not decided.dispatches
    assert [(after.node, after.state) for _, after in decided.changes] == [("node-2", State.CANCELLED)]


def test_a_failure_found_in_this_very_pass_stops_the_roll_out_too() -> None:
    spent = running(Kind.UPGRADE, node="node-1", failures=9, boot=BootId("an earlier life"))
    decided = a_pass(
        spent,
        a_step(Kind.UPGRADE, node="node-2"),
        views=(a_view("node-1"), a_view("node-2")),
        operations=(an_operation(kind=Kind.UPGRADE, roll_out=RollOut(at_once=2, proves=True)),),
    )
    assert {after.node: after.state for _, after in decided.changes} == {
        "node-1": State.FAILED,
        "node-2": State.CANCELLED,
    }


def test_an_old_list_says_nothing_about_a_step_that_has_not_begun() -> None:
    listed = BackendInventory(NODE, BOOT, NOW - timedelta(hours=1), (THERE,))
    decided = a_pass(a_step(), views=(a_view(reports=False, inventory=listed),))
    assert len(decided.dispatches) == 1


def test_a_worker_without_reports_is_asked_for_its_list_during_an_install() -> None:
    """Its reply may be lost on its side of the bus, which nobody here would notice."""
    step = running(wait_until=NOW + timedelta(hours=3))
    request = a_request(step, open_until=NOW + timedelta(hours=1))
    assert a_pass(step, views=(a_view(reports=False),), requests=(request,), after_s=60).list_from
    assert not a_pass(step, views=(a_view(),), requests=(request,), after_s=60).list_from


def test_a_list_with_the_backend_ends_an_install_whose_request_is_still_open() -> None:
    step = running(wait_until=NOW + timedelta(hours=3))
    request = a_request(step, open_until=NOW + timedelta(hours=1))
    listed = BackendInventory(NODE, BOOT, NOW + timedelta(seconds=31), (THERE,))
    view = a_view(reports=False, inventory=listed)
    (_, after), *_ = a_pass(step, views=(view,), requests=(request,), after_s=35).changes
    assert (after.state, after.attempt) == (State.SUCCEEDED, 1)


def test_a_list_without_the_backend_says_nothing_while_the_request_is_open() -> None:
    step = running(wait_until=NOW + timedelta(hours=3))
    request = a_request(step, open_until=NOW + timedelta(hours=1))
    view = a_view(reports=False, inventory=BackendInventory(NODE, BOOT, NOW + timedelta(seconds=31), ()))
    decided = a_pass(step, views=(view,), requests=(request,), after_s=35)
    assert not decided.dispatches
    assert all(after.attempt == 1 for _, after in decided.changes)


@pytest.mark.parametrize("kind", [Kind.UPGRADE, Kind.REMOVE])
def test_a_worker_without_reports_is_asked_for_its_list_once_its_reply_is_overdue(kind: Kind) -> None:
    step = running(kind, wait_until=NOW + timedelta(hours=3))
    request, view = a_request(step, open_until=NOW + timedelta(hours=1)), a_view(reports=False)
    assert not a_pass(step, views=(view,), requests=(request,), after_s=60).list_from
    late = a_pass(step, views=(view,), requests=(request,), after_s=901)
    assert late.list_from == {(NODE, BOOT)}


def test_a_list_with_the_backend_ends_an_overdue_install_without_another_attempt() -> None:
    step = running(wait_until=NOW + timedelta(hours=3))
    listed = BackendInventory(NODE, BOOT, NOW + timedelta(seconds=905), (THERE,))
    view = a_view(reports=False, inventory=listed)
    (_, after), *_ = a_pass(step, views=(view,), requests=(a_request(step),), after_s=910).changes
    assert (after.state, after.attempt, after.failures) == (State.SUCCEEDED, 1, 0)


# A reply that nobody will hear: its frontend is gone, or has lost its connection meanwhile.

HELD = timedelta(seconds=20)


def missed(*steps: Step, after_s: float = 25, listed_s: float | None = None, there: bool = False) -> PassPlan:
    """A pass over steps of workers without reports, whose replies were missed after twenty seconds."""
    rows = (THERE,) if there else ()
    listed = (
        None if listed_s is None else BackendInventory(NODE, BOOT, NOW + timedelta(seconds=listed_s), rows)
    )
    requests = tuple(a_request(step, open_until=NOW + HELD) for step in steps)
    view = a_view(reports=False, inventory=listed)
    return a_pass(*steps, views=(view,), requests=requests, after_s=after_s)


def test_after_a_missed_reply_the_worker_is_asked_for_its_list_at_once() -> None:
    step = running(Kind.UPGRADE, wait_until=NOW + timedelta(hours=3))
    assert not missed(step, after_s=19).list_from
    assert missed(step, after_s=20).list_from == {(NODE, BOOT)}


def test_after_a_missed_reply_a_list_ends_an_install_at_once() -> None:
    [(_, after)] = missed(running(wait_until=NOW + timedelta(hours=3)), listed_s=21, there=True).changes
    assert (after.state, after.attempt, after.failures) == (State.SUCCEEDED, 1, 0)


def test_after_a_missed_reply_an_install_that_is_not_there_is_asked_for_again_and_no_failure() -> None:
    step = running(wait_until=NOW + timedelta(hours=3))
    decided = missed(step, after_s=55, listed_s=51)
    [(_, after)] = decided.changes
    assert (after.state, after.attempt, after.failures) == (State.RUNNING, 2, 0)
    assert decided.dispatches[step.key] == Dispatch(step.op, step.node, Verb.INSTALL, 2)
    assert not missed(step, listed_s=19).changes, "a list from before says nothing"
    assert not missed(step, after_s=55, listed_s=49).changes, "it may have been about to end"
    assert not missed(replace(step, kind=Kind.UPGRADE), listed_s=21, there=True).dispatches


OLD = InstalledArtifact(name="cpu-llama-cpp", installed_at="2026-02-01T10:00:00Z")
NEW = OLD.model_copy(update={"installed_at": "2026-02-01T09:00:00Z"})  # Its clock was set back.


def listing(artifact: InstalledArtifact, seconds: float) -> ObservedNode:
    listed = BackendInventory(NODE, BOOT, NOW + timedelta(seconds=seconds), (artifact,))
    return a_view(reports=False, inventory=listed)


def upgraded(before: InstalledArtifact, after: InstalledArtifact, *, open_s: float = 20) -> Step:
    """An upgrade whose request is open for so long, before and after a list half a minute later."""
    [(_, begun)] = a_pass(a_step(Kind.UPGRADE), views=(listing(before, -5),)).changes
    request = a_request(begun, open_until=NOW + timedelta(seconds=open_s))
    changes = a_pass(begun, views=(listing(after, 30),), requests=(request,), after_s=35).changes
    return changes[0][1] if changes else begun


def test_after_a_missed_reply_a_new_installation_ends_an_upgrade() -> None:
    done = upgraded(OLD, NEW)
    assert (done.state, done.reason) == (
        State.SUCCEEDED,
        "the node lists a new installation of cpu-llama-cpp; its reply was lost",
    )
    other_bytes = OLD.model_copy(update={"digest": "sha256:b"})
    assert upgraded(OLD.model_copy(update={"digest": "sha256:a"}), other_bytes).state is State.SUCCEEDED


def test_an_upgrade_is_not_ended_by_what_was_there_before_nor_while_its_reply_is_awaited() -> None:
    assert upgraded(OLD, OLD).state is State.RUNNING
    assert upgraded(OLD, OLD.model_copy(update={"digest": "sha256:b"})).state is State.RUNNING
    assert upgraded(OLD, NEW, open_s=60).state is State.RUNNING
    untold = OLD.model_copy(update={"installed_at": ""})
    assert upgraded(untold, NEW).state is State.RUNNING, "nothing is known of what was there"


def test_what_was_listed_before_something_else_ended_there_is_not_what_an_upgrade_found() -> None:
    live = Live(
        NOW,
        (an_operation(kind=Kind.UPGRADE),),
        (a_step(Kind.UPGRADE),),
        (),
        (),
        {NODE: NOW - timedelta(seconds=1)},
    )
    [(_, begun)] = plan(live, {NODE: listing(OLD, -5)}, lambda _: at(), Room(9)).changes
    assert (begun.state, begun.listed_before) == (State.RUNNING, None)


PIN = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("digest", "ended_s", "force", "state"),
    [
        (PIN, None, False, State.SUCCEEDED),
        ("", None, False, State.RUNNING),
        ("sha256:b", None, False, State.RUNNING),
        (PIN, -1, False, State.RUNNING),
        (PIN, None, True, State.RUNNING),
    ],
)
def test_a_peer_is_told_to_upgrade_unless_it_lists_the_pinned_digest(
    digest: str, ended_s: int | None, force: bool, state: State
) -> None:
    step = a_step(Kind.UPGRADE, digest=PIN)
    step = replace(step, goal=replace(step.goal, replaces=force))
    ended = {} if ended_s is None else {NODE: NOW + timedelta(seconds=ended_s)}
    live = Live(NOW, (an_operation(kind=Kind.UPGRADE),), (step,), (), (), ended)
    listed = listing(OLD.model_copy(update={"digest": digest}), -5)
    [(_, after)] = plan(live, {NODE: listed}, lambda _: at(), Room(9)).changes
    assert after.state is state
    assert ("already lists this version" in after.reason) is (state is State.SUCCEEDED)


def test_after_a_missed_reply_a_removal_is_asked_for_again_only_when_it_should_be_over() -> None:
    step = running(Kind.REMOVE, wait_until=NOW + timedelta(hours=3), answer_by=NOW + timedelta(minutes=2))
    assert not missed(step, listed_s=21, there=True).dispatches
    assert missed(step, after_s=121, listed_s=121, there=True).dispatches


def test_nothing_is_asked_for_again_while_nothing_can_be_sent() -> None:
    step = running(wait_until=NOW + timedelta(hours=3))
    view = a_view(reports=False, inventory=BackendInventory(NODE, BOOT, NOW + timedelta(seconds=51), ()))
    requests, room = (a_request(step, open_until=NOW + HELD),), Room(0, NO_BUS)
    assert not a_pass(step, views=(view,), requests=requests, after_s=55, room=room).changes


def test_progress_is_listened_to_while_somebody_may_tell_it_whoever_sent_the_request() -> None:
    assert telling([running()])
    assert telling([running(Kind.UPGRADE, stage=Stage.PROVE)])
    assert not telling([a_step(), running(Kind.REMOVE), running(Kind.UPGRADE, stage=Stage.ROLL_BACK)])


def test_presence_on_one_node_ends_nothing_on_another() -> None:
    first = running(wait_until=NOW + timedelta(hours=3))
    second = replace(first, node=NodeId("node-2"))
    listed = BackendInventory(NODE, BOOT, NOW + timedelta(seconds=905), (THERE,))
    decided = a_pass(
        first,
        second,
        views=(a_view(reports=False, inventory=listed), a_view("node-2", reports=False)),
        requests=(a_request(first), a_request(second)),
        after_s=910,
    )
    assert [after.node for _, after in decided.changes if after.state is State.SUCCEEDED] == [NODE]


def test_a_pass_is_due_when_the_soonest_wait_is_over() -> None:
    waits = a_step(wait_until=NOW + timedelta(seconds=30), reason="waiting to retry", attempt=1)
    assert a_pass(waits).wake_at == NOW + timedelta(seconds=30)


# What workers have in hand.


def in_hand(*steps: Step, work: Work) -> frozenset[tuple[OpId, NodeId, int]]:
    return unwanted(Live(NOW, (an_operation(),), steps, (), ()), {NODE: a_view(work=(work,))})


def test_work_whose_step_is_over_is_unwanted() -> None:
    over = a_step(state=State.CANCELLED, attempt=1)
    assert in_hand(over, work=Work(op_id=OP, attempt=1)) == {(OP, NODE, 1)}


def test_work_of_an_operation_that_is_no_longer_known_is_unwanted() -> None:
    assert in_hand(work=Work(op_id="forgotten", attempt=3)) == {("forgotten", NODE, 3)}


def test_work_of_a_running_step_and_work_of_no_operation_are_left_alone() -> None:
    assert in_hand(running(), work=Work(op_id=OP, attempt=1)) == frozenset()
    assert in_hand(running(), work=Work(op_id="", attempt=0)) == frozenset()


def test_an_older_attempt_is_left_alone_while_a_newer_one_runs() -> None:
    assert in_hand(running(attempt=2), work=Work(op_id=OP, attempt=1)) == frozenset()


# Requests that are kept open.


def test_a_request_is_held_when_half_of_its_time_is_used_up() -> None:
    step = running()
    nodes = {NODE: a_view(reports=False)}
    awaited = attempts_at_work([step])

    def held(after_s: float) -> int:
        live = Live(NOW + timedelta(seconds=after_s), (), (step,), (a_request(step),), ())
        return len(to_hold(live, nodes, awaited, timedelta(seconds=60)))

    assert (held(20), held(40)) == (0, 1)


def test_a_request_to_a_worker_that_reports_is_held_too() -> None:
    """Its report may be quicker than a reply that says that it failed."""
    step = running()
    live = Live(NOW + timedelta(seconds=50), (), (step,), (a_request(step),), ())
    assert len(to_hold(live, {NODE: a_view()}, attempts_at_work([step]), timedelta(seconds=60))) == 1


# Roll-outs whose first node goes away.

ROLLING = an_operation(kind=Kind.UPGRADE, roll_out=RollOut(2, canary=True, proves=True))


def begins_beside(first: Step, view: ObservedNode) -> bool:
    """Whether the next node goes first in its place."""
    views = (view, a_view("node-2"))
    request = (a_request(first),) if first.state is State.RUNNING else ()
    decided = a_pass(
        first, a_step(Kind.UPGRADE, node="node-2"), views=views, operations=(ROLLING,), requests=request
    )
    return (OP, "node-2") in decided.dispatches


@pytest.mark.parametrize(
    "first",
    [running(Kind.UPGRADE), a_step(Kind.UPGRADE, attempt=1, stage=Stage.PROVE)],
    ids=["at work", "midway"],
)
def test_another_node_goes_first_when_the_canary_stays_away(first: Step) -> None:
    assert not begins_beside(first, a_view(away="not heard", silent_s=limits.CANARY_AWAY_S - 1))
    assert begins_beside(first, a_view(away="not heard", silent_s=limits.CANARY_AWAY_S))


def test_another_node_goes_first_when_the_canary_is_kept_from_going_on() -> None:
    drained = a_view()
    drained = replace(drained, standing=replace(drained.standing, status=NodeStatus.DRAINING))
    assert begins_beside(a_step(Kind.UPGRADE, attempt=1, stage=Stage.PROVE), drained)
    assert not begins_beside(running(Kind.UPGRADE), drained), "what it has in hand it finishes"


def test_a_canary_that_is_away_is_named_with_the_reason() -> None:
    first, views = running(Kind.UPGRADE), (a_view(away="no heartbeat for 60 s"), a_view("node-2"))
    waiting = a_step(Kind.UPGRADE, node="node-2")
    decided = a_pass(first, waiting, views=views, operations=(ROLLING,), requests=(a_request(first),))
    steps = [after for _, after in decided.changes]
    assert [step.node for step in steps] == [NODE, "node-2"]
    assert "name-of-node-1 has to succeed first and is offline" in steps[1].reason
    assert "name-of-node-1: no heartbeat for 60 s" in summarise(ROLLING, steps, {}).message

"""Steps that frontends carry out for themselves: no node has a say in them, nor has the bus."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from remuda.core.errors import PeerFailed, Problem
from remuda.core.ids import NodeId
from remuda.fleet.health import Fleet, ListeningPeriods
from remuda.fleet.verdicts import ObservedNode
from remuda.ops import concurrency
from remuda.ops.commander import Timeouts
from remuda.ops.model import (
    FRONTENDS,
    Goal,
    Kind,
    ModelSpec,
    Moment,
    Operation,
    OpId,
    RollOut,
    Source,
    State,
    Step,
    StepPolicy,
    Verb,
    Wish,
)
from remuda.ops.planning import PassPlan, Room, attempts_at_work, plan, to_hold
from remuda.ops.ports import Live, OpenRequest
from remuda.ops.progress import summarise
from remuda.ops.reasons import StepCause, because, reason_in_words
from remuda.wire.models import ModelDeleteReply
from remuda.wire.nodes import Report
from tests.support.nodes import THRESHOLDS, node
from tests.support.virtual_ops import World, time_passes, virtually
from tests.unit.ops.build import NODE, NOW

OPEN_FOR = timedelta(seconds=20)
NO_BUS = Room(0, because(StepCause.BUS_DOWN, "no server"), 3)
SOURCE = Source("", uri="https://a/m.gguf", name="m", model=ModelSpec())


def a_step(
    kind: Kind = Kind.INSTALL_MODEL, node: NodeId = FRONTENDS, op: str = "op-1", **more: object
) -> Step:
    if "reason" in more:
        more["why"] = reason_in_words(str(more.pop("reason")))
    made = Step(OpId(op), node, str(node), kind, SOURCE, Goal(("model m",)))
    return replace(made, **more)  # type: ignore[arg-type]


def an_operation(kind: Kind = Kind.INSTALL_MODEL, op: str = "op-1", wish: Wish = Wish.RUN) -> Operation:
    return Operation(OpId(op), kind, SOURCE, RollOut(64), "admin", NOW, wish=wish)


def passed(
    step: Step, *requests: OpenRequest, at_s: float = 0, wish: Wish = Wish.RUN, room: Room = NO_BUS
) -> PassPlan:
    now = NOW + timedelta(seconds=at_s)
    live = Live(now, (an_operation(step.kind, wish=wish),), (step,), requests, ())
    return plan(live, {}, lambda one: Moment(now, 0.5, Timeouts().policy(one, StepPolicy())), room)


def begun() -> tuple[Step, OpenRequest]:
    decided = passed(a_step())
    (_, step) = decided.changes[0]
    return step, OpenRequest(step.op, step.node, step.attempt, NOW, NOW + OPEN_FOR)


def test_it_begins_without_a_bus_and_without_a_node() -> None:
    decided = passed(a_step())
    assert [one.verb for one in decided.dispatches.values()] == [Verb.INSTALL_MODEL]
    assert passed(a_step(), room=Room(9, own=0)).dispatches == {}


def test_it_goes_on_as_long_as_a_frontend_holds_it() -> None:
    step, request = begun()
    held = replace(request, open_until=NOW + timedelta(hours=9))
    (change,) = passed(step, held, at_s=8 * 3600).changes or ((step, step),)
    assert change[1].state is State.RUNNING
    live = Live(NOW + timedelta(seconds=15), (), (step,), (request,), ())
    assert to_hold(live, {}, {(step.op, FRONTENDS, 1)}, OPEN_FOR) == [(step.op, FRONTENDS, 1)]


def test_another_takes_over_at_once_when_nobody_holds_it_and_that_is_no_failure() -> None:
    step, request = begun()
    for attempt in range(1, 30):
        (_, lost) = passed(step, replace(request, attempt=attempt), at_s=21).changes[0]
        assert (lost.state, lost.failures) == (State.PENDING, 0)
        (_, step) = passed(lost, at_s=22).changes[0]
        assert (step.state, step.attempt) == (State.RUNNING, attempt + 1)


def test_a_frontend_that_dies_over_it_again_and_again_ends_it() -> None:
    step, request = begun()
    step, request = replace(step, attempt=100), replace(request, attempt=100)
    (_, after) = passed(step, request, at_s=21).changes[0]
    assert (after.state, after.failures) == (State.PENDING, 1)


def test_a_failure_is_tried_again_and_a_refusal_is_not() -> None:
    step, request = begun()
    for retryable, state in ((True, State.PENDING), (False, State.FAILED)):
        problem = Problem("registry_failed", "no answer", retryable=retryable)
        (_, after) = passed(step, replace(request, ended=True, ending=problem), at_s=1).changes[0]
        assert after.state is state


def test_what_is_unwanted_is_stopped_by_whoever_is_at_it() -> None:
    step, request = begun()
    (_, stopping) = passed(step, request, at_s=1, wish=Wish.PAUSE).changes[0]
    assert stopping.state is State.STOPPING
    assert attempts_at_work([step]) == {(*step.key, 1)}
    assert attempts_at_work([stopping]) == frozenset()


# Removals.


def test_nodes_are_asked_after_the_frontends_and_not_if_those_kept_it() -> None:
    own, other = a_step(Kind.REMOVE_MODEL), a_step(Kind.REMOVE_MODEL, NodeId(NODE))
    operation = an_operation(Kind.REMOVE_MODEL)
    waits = concurrency.blocked([operation], [own, other], ())
    assert waits == {other.key: because(StepCause.FRONTENDS_FIRST)}
    done = replace(own, state=State.SUCCEEDED)
    assert concurrency.blocked([operation], [done, other], ()) == {}
    assert concurrency.halted(operation, [done, other]) is None
    kept = replace(own, state=State.CANCELLED, why=because(StepCause.CANCELLED))
    assert concurrency.halted(operation, [kept, other]) == because(StepCause.MODEL_KEPT, "cancelled")


@pytest.mark.parametrize(("kind", "begins"), [(Kind.REMOVE_MODEL, True), (Kind.REMOVE, False)])
def test_files_of_a_removed_model_go_from_a_drained_node_too(kind: Kind, begins: bool) -> None:
    who = replace(node(id=NodeId(NODE), last_heartbeat=NOW), drained=True)
    standing = Fleet(NOW, ListeningPeriods(), [who]).standing(who, THRESHOLDS)
    view = ObservedNode(standing, True, Report(boot_id=who.boot_id, sequence=1), None)
    live = Live(NOW, (an_operation(kind),), (a_step(kind, NodeId(NODE)),), (), ())
    decided = plan(live, {NodeId(NODE): view}, lambda one: Moment(NOW, 0.5), Room(9))
    assert bool(decided.dispatches) is begins


def test_an_install_ends_what_would_remove_it_from_nodes_later() -> None:
    away = a_step(Kind.REMOVE_MODEL, NodeId(NODE), "op-0")
    other_model = replace(away, goal=Goal(("model other",)))
    new = a_step(op="op-2")
    assert [one.key for one in concurrency.replaced([new], [away, other_model])] == [away.key]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.PENDING, "waiting"),
        (State.RUNNING, "at work"),
        (State.SUCCEEDED, "done"),
        (State.FAILED, "failed. why"),
    ],
)
def test_no_node_is_counted_where_none_is_meant(state: State, words: str) -> None:
    step = a_step(state=state, reason="why" if state is State.FAILED else "", attempt=1, wait_until=NOW)
    assert summarise(an_operation(), [step], {}).message == words


def test_a_node_is_told_which_files_of_a_model_to_remove_until_it_has() -> None:
    source = Source("", name="m", model=ModelSpec(files=("m/m.gguf",), any_files=True))
    replies = iter([ModelDeleteReply(error="it is busy"), ModelDeleteReply(success=True)])

    async def test(world: World) -> None:
        async def answer(_: bytes) -> ModelDeleteReply:
            return next(replies)

        await world.worker.on("model.delete", answer)
        await world.frontend.submit([world.worker.node], Kind.REMOVE_MODEL, source=source)
        await time_passes(30)
        step = await world.frontend.step()
        assert (step.state, step.attempt) == (State.SUCCEEDED, 2)
        assert [json.loads(payload) for _, payload in world.worker.heard] == [
            {"model_name": "m", "files": ["m/m.gguf"], "any_files": True}
        ] * 2

    virtually(test, reconciles=True)


class BrokenWork:
    """Implements ops.ports.FrontendWork, with a bug."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault
        self.tries = 0

    async def carry_out(self, step: Step) -> None:
        self.tries += 1
        raise self.fault


@pytest.mark.parametrize("kind", [Kind.INSTALL_MODEL, Kind.REMOVE_MODEL])
@pytest.mark.parametrize(
    "fault", [ValueError("longer than 255 bytes"), ExceptionGroup("x", [ValueError("longer than 255 bytes")])]
)
def test_defect_ends_the_attempt_as_failed_with_its_text(kind: Kind, fault: Exception) -> None:
    work = BrokenWork(fault)

    async def test(world: World) -> None:
        await world.frontend.store.submit(an_operation(kind), [a_step(kind)])
        world.frontend.signal.notify()
        with capture_logs() as lines:
            await time_passes(600)
        step = await world.frontend.step()
        assert (step.state, step.problem and step.problem.code) == (State.FAILED, "internal")
        assert "ValueError: longer than 255 bytes" in step.reason
        assert [line["event"] for line in lines].count("dispatch_broke") == work.tries == 1

    virtually(test, reconciles=True, frontend_work=lambda store, board: work)


def test_peer_that_fails_a_frontends_work_is_named_and_the_attempts_are_bounded() -> None:
    work = BrokenWork(PeerFailed("the storage does not answer"))

    async def test(world: World) -> None:
        await world.frontend.store.submit(an_operation(), [a_step()])
        world.frontend.signal.notify()
        await time_passes(24 * 3600)
        step = await world.frontend.step()
        assert (step.state, step.reason) == (State.FAILED, "the storage does not answer")
        assert 1 < work.tries <= StepPolicy().failures_max

    virtually(test, reconciles=True, frontend_work=lambda store, board: work)


ASKED_TO_WAIT = Problem("registry_failed", "asked too often, and asks to wait 3600 s", "", True, wait_s=3600)


def test_next_attempt_is_not_before_the_server_wants_it_and_the_step_says_so_at_once() -> None:
    step, request = begun()
    ended = replace(request, open_until=NOW + OPEN_FOR, ended=True, ending=ASKED_TO_WAIT)
    (_, waits) = passed(step, ended).changes[0]
    assert (waits.state, waits.wait_until) == (State.PENDING, NOW + timedelta(hours=1))
    assert waits.reason.startswith("the server asks to wait: next attempt at ")
    assert not passed(waits, at_s=3599).changes
    assert passed(waits, at_s=3601).dispatches
    summary = summarise(an_operation(), [waits], {})
    assert "asks to wait 3600 s; the server asks to wait: next attempt at" in summary.message


def test_wait_that_a_server_asks_for_is_bounded_and_ends_with_a_retry_or_a_cancellation() -> None:
    step, request = begun()
    ended = replace(request, ended=True, ending=replace(ASKED_TO_WAIT, wait_s=10**9))
    (_, waits) = passed(step, ended).changes[0]
    assert waits.wait_until == NOW + StepPolicy().server_wait_most
    assert passed(concurrency.asked_again(waits)).dispatches
    assert passed(waits, wish=Wish.CANCEL).changes[0][1].state is State.CANCELLED

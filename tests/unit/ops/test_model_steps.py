"""Loads and unloads are steps like any other; but a frontend is at work on them, and somebody waits."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.errors import Problem
from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods
from remuda.fleet.verdicts import ObservedNode
from remuda.ops import concurrency
from remuda.ops.commander import Timeouts
from remuda.ops.concurrency import replaced, wish_for
from remuda.ops.model import (
    Kind,
    Moment,
    Operation,
    OpId,
    ReplicaTarget,
    Source,
    State,
    Step,
    StepKey,
    StepPolicy,
    Verb,
    Wish,
)
from remuda.ops.planning import PassPlan, Room, attempts_at_work, plan, to_hold
from remuda.ops.ports import Live, OpenRequest
from remuda.ops.reconciler import Pace
from remuda.scheduler.model import load_operation, unload_operation
from remuda.wire.nodes import Report
from tests.support.examples import examples
from tests.support.nodes import THRESHOLDS, node
from tests.unit.ops.build import BOOT, NODE, NOW, a_step, an_operation

OPEN_FOR = Pace().open_for
OWNERS_MOST = 3
QWEN = ReplicaKey("qwen", 0)


def asked_for(kind: Kind, op: str = "op-1", key: ReplicaKey = QWEN) -> tuple[Operation, Step]:
    make = load_operation if kind is Kind.LOAD else unload_operation
    target = ReplicaTarget(key, "abc")
    return make(OpId(op), target, Source("llama-cpp"), NodeId(NODE), "gpu-1", by="test", now=NOW)


def a_view(now: datetime, *, silent_s: float = 0, boot: str = BOOT, **facts: Any) -> ObservedNode:
    who = node(id=NODE, boot_id=BootId(boot), last_heartbeat=now - timedelta(seconds=silent_s))
    who = replace(who, **facts)
    hearing = ListeningPeriods((ListeningPeriod(NOW - timedelta(hours=2), now),))
    standing = Fleet(now, hearing, [who]).standing(who, THRESHOLDS)
    return ObservedNode(standing, True, Report(boot_id=boot, sequence=1), None)


class Course:
    """One step over time: the plan of each pass is carried out at once."""

    def __init__(self, kind: Kind) -> None:
        self.operation, self.step = asked_for(kind)
        self.now = NOW
        self.request: OpenRequest | None = None
        self.sent: list[Verb] = []
        self.loads: dict[StepKey, BootId | None] = {}

    def pass_once(self, after_s: float = 0, view: ObservedNode | None = None, *, there: bool = True) -> Step:
        self.now += timedelta(seconds=after_s)
        requests = () if self.request is None else (self.request,)
        live = Live(self.now, (self.operation,), (self.step,), requests, (), loads=self.loads)
        seen = view or a_view(self.now)
        decided = plan(live, {seen.standing.node.id: seen} if there else {}, self._moment, Room(9))
        self._take(decided)
        return self.step

    def _moment(self, step: Step) -> Moment:
        return Moment(self.now, 0.5, Timeouts().policy(step, StepPolicy()))

    def _take(self, decided: PassPlan) -> None:
        for _, after in decided.changes:
            begun = after.attempt > self.step.attempt
            self.step = after
            if begun:
                self.request = OpenRequest(
                    after.op, after.node, after.attempt, self.now, open_until=self.now + OPEN_FOR
                )
            elif after.state not in (State.RUNNING, State.STOPPING):
                self.request = None
        self.sent += [dispatch.verb for dispatch in decided.dispatches.values()]

    def hold(self) -> None:
        """Its owner lives."""
        if self.request is not None and not self.request.ended:
            self.request = replace(self.request, open_until=self.now + OPEN_FOR)

    def answer(self, problem: Problem | None = None) -> None:
        if self.request is not None:
            self.request = replace(self.request, ended=True, ending=problem)


# Whatever happens.

problems = st.sampled_from(
    (None, Problem("backend_failed", "it crashed"), Problem("node_unreachable", "gone", retryable=True))
)
events = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from((0.0, 1.0, 7.0, 31.0, 61.0, 121.0, 1000.0))),
    st.tuples(st.just("hold"), st.none()),
    st.tuples(st.just("answer"), problems),
    st.tuples(st.just("silent"), st.sampled_from((0.0, 0.0, 35.0, 70.0))),
    st.tuples(st.just("drained"), st.booleans()),
    st.tuples(st.just("boot"), st.sampled_from((BOOT, "boot-2"))),
    st.tuples(st.just("wish"), st.sampled_from((Wish.RUN, Wish.RUN, Wish.RUN, Wish.CANCEL))),
    st.tuples(st.just("removed"), st.sampled_from((False,) * 9 + (True,))),
)


class Whims:
    """What is so at the moment, as the events have it."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.facts: dict[str, Any] = {"silent_s": 0.0, "drained": False, "boot": BOOT}
        self.there = True

    def meet(self, what: str, how: Any) -> None:
        course = self.course
        match what:
            case "pass":
                facts = dict(self.facts)
                view = a_view(course.now + timedelta(seconds=how), **facts)
                course.pass_once(how, view, there=self.there)
            case "hold":
                course.hold()
            case "answer":
                course.answer(how)
            case "silent":
                self.facts["silent_s"] = how
            case "wish":
                course.operation = replace(course.operation, wish=how)
            case "removed":
                self.there = not how
            case _:
                self.facts[what] = how


@settings(max_examples=examples(400))
@given(st.sampled_from((Kind.LOAD, Kind.UNLOAD)), st.lists(events, max_size=60))
def test_every_history_keeps_the_rules(kind: Kind, history: list[tuple[str, Any]]) -> None:
    course = Course(kind)
    whims = Whims(course)
    for what, how in history:
        before = course.step
        sent = len(course.sent)
        whims.meet(what, how)
        after = course.step
        if before.state.final:
            assert after == before, "what is final stays as it is"
            assert len(course.sent) == sent
        assert after.attempt in (before.attempt, before.attempt + 1)
        assert after.attempt <= OWNERS_MOST, "nobody tries for ever"
        assert after.failures <= OWNERS_MOST
        assert set(course.sent) <= {Verb(kind.value), Verb.CANCEL}


@given(st.sampled_from((Kind.LOAD, Kind.UNLOAD)), st.lists(events, max_size=40))
def test_once_the_world_is_kind_it_ends(kind: Kind, history: list[tuple[str, Any]]) -> None:
    course = Course(kind)
    whims = Whims(course)
    for what, how in history:
        whims.meet(what, how)
    for _ in range(20):
        course.pass_once(31)
        course.answer()
    assert course.step.state.final


@settings(max_examples=examples(200))
@given(st.lists(events, max_size=40))
def test_on_a_node_that_stays_away_a_load_ends(history: list[tuple[str, Any]]) -> None:
    course = Course(Kind.LOAD)
    whims = Whims(course)
    for what, how in history:
        whims.meet(what, how)
    for _ in range(5):
        course.pass_once(31, a_view(course.now, silent_s=600))
    assert course.step.state.final, "another node may take the model"


# One by one.


def test_load_that_was_begun_fails_when_its_node_goes_away() -> None:
    course = Course(Kind.LOAD)
    assert course.pass_once(1).state is State.RUNNING
    step = course.pass_once(1, a_view(course.now, silent_s=65))
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "node_unreachable")


def test_load_survives_some_missed_heartbeats() -> None:
    course = Course(Kind.LOAD)
    course.pass_once(1)
    assert course.pass_once(1, a_view(course.now, silent_s=35)).state is State.RUNNING
    course.hold()
    step = course.pass_once(1)
    assert (step.state, step.attempt) == (State.RUNNING, 1)


def test_load_that_could_not_begin_within_a_minute_fails() -> None:
    course = Course(Kind.LOAD)
    drained = a_view(course.now, drained=True)
    assert course.pass_once(59, drained).state is State.PENDING
    step = course.pass_once(1, drained)
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "expired")


def test_load_whose_owner_holds_it_lasts_as_long_as_it_takes() -> None:
    course = Course(Kind.LOAD)
    for _ in range(1000):
        course.pass_once(5)
        course.hold()
    assert (course.step.state, course.step.attempt) == (State.RUNNING, 1)


def test_load_of_a_dead_owner_is_taken_over_within_a_minute() -> None:
    course = Course(Kind.LOAD)
    course.pass_once(1)
    while course.step.attempt < 2:
        course.pass_once(5)
    assert (course.step.state, course.step.attempt) == (State.RUNNING, 2)
    assert course.now - NOW <= timedelta(minutes=1)


def test_load_is_not_taken_over_more_often_than_three_owners_have_died() -> None:
    course = Course(Kind.LOAD)
    for _ in range(200):
        course.pass_once(5)
    assert (course.step.state, course.step.attempt) == (State.FAILED, OWNERS_MOST)


def test_load_whose_worker_was_restarted_fails_for_that_has_forgotten_it() -> None:
    course = Course(Kind.LOAD)
    course.pass_once(1)
    step = course.pass_once(1, a_view(course.now, boot="boot-2"))
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "node_unreachable")


def copying() -> Course:
    """A load whose files are on their way to its node."""
    course = Course(Kind.LOAD)
    course.loads = {course.step.key: None}
    course.pass_once(1)
    return course


def test_load_whose_files_are_copied_goes_on_with_a_worker_that_was_restarted() -> None:
    course = copying()
    for _ in range(20):
        course.hold()
        step = course.pass_once(10, a_view(course.now, boot="boot-2"))
    assert (step.state, step.attempt) == (State.RUNNING, 1)


def test_what_was_started_by_the_worker_that_came_back_counts_as_its_own() -> None:
    course = copying()
    course.loads = {course.step.key: BootId("boot-2")}
    step = course.pass_once(1, a_view(course.now, boot="boot-2"))
    assert (step.state, step.attempt) == (State.RUNNING, 1)
    step = course.pass_once(1, a_view(course.now, boot="boot-3"))
    assert (step.state, step.reason) == (State.FAILED, "the worker on gpu-1 was restarted")


def test_load_whose_files_are_copied_waits_for_a_killed_worker_until_it_counts_as_offline() -> None:
    course = copying()
    for _ in range(5):
        course.hold()
        step = course.pass_once(10, a_view(course.now + timedelta(seconds=10), silent_s=45))
    assert step.state is State.RUNNING
    course.hold()
    step = course.pass_once(1, a_view(course.now, silent_s=100))
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "node_unreachable")


def test_load_whose_files_are_copied_ends_when_its_loader_says_that_the_worker_is_gone() -> None:
    course = copying()
    course.hold()
    course.answer(Problem("node_unreachable", "gpu-1 answers neither over HTTP nor over the bus"))
    assert course.pass_once(1, a_view(course.now, silent_s=45)).state is State.FAILED


@pytest.mark.parametrize(
    "facts", [{"drained": True}, {"leaving": True}, {"departed": True}, {"drained": True, "silent_s": 45}]
)
def test_load_whose_files_are_copied_leaves_a_node_that_says_it_goes(facts: dict[str, Any]) -> None:
    course = copying()
    step = course.pass_once(1, a_view(course.now, **facts))
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "node_unreachable")


def test_frontends_that_die_while_files_are_copied_do_not_use_up_the_load() -> None:
    course = copying()
    while course.step.attempt <= 2 * OWNERS_MOST:
        assert course.step.state in (State.RUNNING, State.PENDING)
        course.pass_once(5)
    course.loads = {course.step.key: BootId(BOOT)}
    for _ in range(200):
        course.pass_once(5)
    assert course.step.state is State.FAILED, "one that kills them once it runs is not begun for ever"


def test_unload_whose_worker_was_restarted_goes_on() -> None:
    course = Course(Kind.UNLOAD)
    course.pass_once(1)
    step = course.pass_once(1, a_view(course.now, boot="boot-2"))
    assert (step.state, step.attempt) == (State.RUNNING, 1)


def test_unload_is_done_on_a_draining_node() -> None:
    course = Course(Kind.UNLOAD)
    assert course.pass_once(1, a_view(course.now, drained=True)).state is State.RUNNING
    course.answer()
    assert course.pass_once(1, a_view(course.now, drained=True)).state is State.SUCCEEDED


def test_load_is_not_begun_on_a_draining_node() -> None:
    course = Course(Kind.LOAD)
    assert course.pass_once(1, a_view(course.now, drained=True)).state is State.PENDING


def test_unload_waits_for_a_node_that_is_away() -> None:
    course = Course(Kind.UNLOAD)
    for _ in range(10):
        assert course.pass_once(600, a_view(course.now, silent_s=600)).state is State.PENDING
    assert course.pass_once(1).state is State.RUNNING


@pytest.mark.parametrize(("first", "then"), [(Kind.LOAD, Kind.UNLOAD), (Kind.UNLOAD, Kind.LOAD)])
def test_the_newest_of_two_opposite_wishes_counts(first: Kind, then: Kind) -> None:
    operation, old = asked_for(first)
    _, new = asked_for(then, "op-2")
    [marked] = replaced([new], [old])
    assert marked.replaced_by == "op-2"
    assert wish_for(marked, operation) is Wish.CANCEL


def test_loads_of_other_replicas_replace_nothing() -> None:
    _, old = asked_for(Kind.UNLOAD)
    _, new = asked_for(Kind.LOAD, "op-2", ReplicaKey("qwen", 1))
    assert replaced([new], [old]) == []


def test_load_waits_for_an_unload_at_the_same_place_to_end() -> None:
    unload, going = asked_for(Kind.UNLOAD)
    load, coming = asked_for(Kind.LOAD, "op-2")
    going = replace(going, state=State.RUNNING, attempt=1)
    waits = concurrency.blocked([unload, load], [going, coming], ())
    assert set(waits) == {coming.key}


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE, Kind.REMOVE])
def test_loads_and_what_is_done_to_backends_do_not_wait_for_each_other(kind: Kind) -> None:
    load, loading = asked_for(Kind.LOAD)
    work = an_operation("op-2", kind)
    for mine, others in ((State.RUNNING, State.PENDING), (State.PENDING, State.RUNNING)):
        steps = [replace(loading, state=mine), a_step(kind, op="op-2", state=others)]
        assert concurrency.blocked([load, work], steps, ()) == {}
    assert replaced([a_step(kind, op="op-2")], [loading]) == []


def test_what_we_load_is_held_also_on_nodes_that_report() -> None:
    operation, step = asked_for(Kind.LOAD)
    step = replace(step, state=State.RUNNING, attempt=1)
    request = OpenRequest(step.op, step.node, 1, NOW, open_until=NOW + OPEN_FOR / 3)
    live = Live(NOW, (operation,), (step,), (request,), ())
    key = (step.op, step.node, 1)
    nodes = {NodeId(NODE): a_view(NOW)}
    assert to_hold(live, nodes, {key}, OPEN_FOR) == [key]
    assert to_hold(live, nodes, (), OPEN_FOR) == [], "somebody else's"


def test_load_that_nobody_wants_is_dropped_at_once() -> None:
    _, step = asked_for(Kind.LOAD)
    running = replace(step, state=State.RUNNING, attempt=1)
    assert attempts_at_work([running]) == {(step.op, step.node, 1)}
    assert attempts_at_work([replace(running, state=State.STOPPING)]) == frozenset()

"""What may go to make room: never the least that is to stay, nor a pinned one; a busy one in its turn."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.verdicts import ObservedNode
from remuda.models.config import ModelConfig
from remuda.scheduler.eviction import (
    BESIDE,
    FIRST,
    SETTLING,
    TURN_LEAST,
    TURN_MOST,
    WAITED_LEAST,
    Turn,
    WaitedFor,
    asked_again,
    excludes,
    groups_of,
    may_go,
    spares,
    staying,
    turn_in_line,
    turn_of,
)
from remuda.scheduler.model import Placed, Replica, ReplicaState, Unplaceable
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import place
from tests.support.nodes import NOON
from tests.unit.scheduler.offering import a_need
from tests.unit.scheduler.standing import a_row, a_view, ago
from tests.unit.scheduler.test_offers import the_fleet

NODE = NodeId("id-gpu-1")
LONG = SETTLING.total_seconds() + 100
IN_TURN = Turn(WAITED_LEAST)
CONFIG = ModelConfig(name="a", backend="llama-cpp")


def idle(key: ReplicaKey) -> int:
    return 0


def busy(key: ReplicaKey) -> int:
    return 1


def test_idle_one_goes_once_it_has_served_those_it_was_loaded_for() -> None:
    assert may_go(a_row(since_s=LONG), NOON, idle, FIRST)
    assert not may_go(a_row(since_s=SETTLING.total_seconds() - 1), NOON, idle, FIRST)


def test_busy_one_goes_only_in_its_turn() -> None:
    row = a_row(since_s=TURN_LEAST.total_seconds() + 1)
    assert not may_go(row, NOON, busy, FIRST)
    assert not may_go(row, NOON, busy, Turn(WAITED_LEAST - timedelta(seconds=1)))
    assert may_go(row, NOON, busy, IN_TURN)
    assert not may_go(a_row(since_s=TURN_LEAST.total_seconds() - 1), NOON, busy, IN_TURN)


def test_turn_is_as_long_as_its_load_took_within_bounds() -> None:
    loaded = ago(10)
    assert turn_of(a_row(created_at=loaded - timedelta(seconds=30), updated_at=loaded)) == timedelta(
        seconds=30
    )
    assert turn_of(a_row(created_at=loaded, updated_at=loaded)) == TURN_LEAST
    assert turn_of(a_row(created_at=loaded - timedelta(hours=1), updated_at=loaded)) == TURN_MOST


@pytest.mark.parametrize("turn", [BESIDE, Turn(WAITED_LEAST, frozenset({NODE}))])
def test_nothing_goes_for_one_more_nor_before_those_who_have_waited_longer(turn: Turn) -> None:
    assert not may_go(a_row(since_s=LONG), NOON, idle, turn)


@pytest.mark.parametrize("state", set(ReplicaState) - {ReplicaState.LOADED})
def test_only_what_is_loaded_goes(state: ReplicaState) -> None:
    assert not may_go(a_row(since_s=LONG, state=state), NOON, idle, IN_TURN)


def test_of_more_than_the_least_those_used_longest_ago_may_go() -> None:
    three = [a_row("a", index, last_used=ago(10 - index)) for index in range(3)]
    assert staying(three, {"a": 1}) == {ReplicaKey("a", 1), ReplicaKey("a", 2)}
    assert staying(three, {"a": 0}) == {row.key for row in three}
    assert staying(three, {}) == frozenset()


STATES = st.sampled_from(list(ReplicaState))


@given(st.lists(STATES, max_size=6), st.integers(0, 5), st.booleans(), st.booleans())
def test_the_least_stays_wherever_something_is_evicted(
    states: list[ReplicaState], least: int, pinned: bool, everywhere: bool
) -> None:
    """However many of a model may go from a node, its minimum is left."""
    counts = {"replicas": "all"} if everywhere else {"min_replicas": least}
    config = CONFIG.model_copy(update={"pinned": pinned, **counts})
    rows = [a_row("a", index, state=state, revision=config.revision) for index, state in enumerate(states)]
    stay = staying(rows, spares({"a": config}, rows))
    loaded = {row.key for row in rows if row.state is ReplicaState.LOADED}
    if not (pinned or everywhere or least):
        assert not stay
    elif pinned or everywhere:
        assert stay >= loaded
    else:
        assert len(stay & loaded) == min(len(loaded), least)


# In placement.


def evicted(*rows: Replica, gb: float = 6, **facts: Any) -> tuple[ReplicaKey, ...] | Unplaceable:
    [offer] = offers(a_need(gb), the_fleet(*rows, nodes=(full(),), **facts))
    found = place(a_need(gb), [replace(offer, has_backend=True, has_file=True)])
    return found.evict if isinstance(found, Placed) else found


def full() -> ObservedNode:
    view = a_view()
    node = view.standing.node
    resources = replace(node.resources, available_vram=0)
    return replace(view, standing=replace(view.standing, node=replace(node, resources=resources)))


def test_vram_shortage_alone_evicts() -> None:
    """No candidate is out of slots and none is idle: memory is reason enough."""
    assert evicted(a_row("a", gb=7, since_s=LONG)) == (ReplicaKey("a", 0),)


def test_minimum_is_not_evicted_and_not_waited_for() -> None:
    refused = evicted(a_row("a", gb=7, since_s=LONG), spare={"a": 0})
    assert isinstance(refused, Unplaceable)
    assert not refused.waiting_helps


def test_those_who_have_waited_longer_come_first() -> None:
    refused = evicted(a_row("a", gb=7, since_s=LONG), turn=Turn(reserved=frozenset({NODE})))
    assert isinstance(refused, Unplaceable)
    assert refused.waiting_helps
    assert "models that have waited longer come first" in refused.reasons["gpu-1"]
    assert refused.room_on == {NODE}


def test_one_more_replica_evicts_nothing() -> None:
    refused = evicted(a_row("a", gb=7, since_s=LONG), turn=BESIDE)
    assert isinstance(refused, Unplaceable)
    assert "nothing is unloaded for one more replica of qwen" in refused.reasons["gpu-1"]


GROUPS = {"qwen": frozenset({"big"}), "a": frozenset({"big", "other"}), "b": frozenset({"other"})}


def test_concurrency_groups_are_hard() -> None:
    """There is room for both, and yet the other goes, or is waited for, or its node is not an option."""
    small = a_row("a", gb=1, since_s=LONG)
    need = a_need(1)

    def look(row: Replica, **facts: Any) -> Placed | Unplaceable:
        [offer] = offers(need, the_fleet(row, groups=GROUPS, **facts))
        return place(need, [replace(offer, has_backend=True, has_file=True)])

    gone = look(small)
    assert isinstance(gone, Placed)
    assert gone.evict == (small.key,)
    waits = look(small, in_flight=busy)
    assert isinstance(waits, Unplaceable)
    assert waits.waiting_helps
    assert "a is in use, and shares a concurrency group with qwen" in waits.reasons["gpu-1"]
    never = look(small, spare={"a": 0})
    assert isinstance(never, Unplaceable)
    assert not never.waiting_helps
    beside = look(a_row("b", gb=1, since_s=LONG))
    assert isinstance(beside, Placed)
    assert beside.evict == ()


def test_replicas_of_one_model_do_not_exclude_each_other() -> None:
    configs = {"a": CONFIG.model_copy(update={"concurrency_groups": ("big",)}), "b": CONFIG}
    assert groups_of(configs) == {"a": frozenset({"big"})}
    assert not excludes("a", a_row("a"), groups_of(configs))
    assert not excludes("a", a_row("b"), groups_of(configs))


def test_replica_keeps_its_groups_when_its_model_is_removed() -> None:
    left = replace(a_row("removed"), concurrency_groups=("big",))
    assert excludes("qwen", left, GROUPS)
    assert not excludes("b", left, GROUPS)
    assert not excludes("removed", left, GROUPS)


# The line.


def test_longest_waiting_one_is_not_held_back_by_anybody() -> None:
    line = {
        "a": WaitedFor(0, 100, frozenset({NODE})),
        "b": WaitedFor(50, 100),
        "gone": WaitedFor(0, 10, frozenset({NodeId("id-gpu-2")})),
    }
    assert turn_in_line("a", line, 100) == Turn(timedelta(seconds=100))
    assert turn_in_line("b", line, 100) == Turn(timedelta(seconds=50), frozenset({NODE}))
    assert turn_in_line("nobody", line, 100) == FIRST


def test_who_stops_asking_loses_their_place() -> None:
    line = asked_again({"a": WaitedFor(0, 10)}, "b", 20)
    assert line == {"b": WaitedFor(20, 20)}
    assert asked_again(line, "b", 21) == {"b": WaitedFor(20, 21)}


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.builds(WaitedFor, st.integers(0, 50), st.integers(50, 60), st.frozensets(st.sampled_from("xyz"))),
        min_size=1,
    )
)
def test_somebody_in_the_line_is_never_held_back(line: dict[str, WaitedFor]) -> None:
    assert any(not turn_in_line(model, line, 60).reserved for model in line)

"""Which replicas are missing, and which are too many."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.fleet.verdicts import ObservedNode
from remuda.models.config import ModelConfig
from remuda.ops.model import UnloadCause
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.replica_goals import (
    BUSY_FOR,
    IDLE_FOR,
    GoalInputs,
    Goals,
    cooldown_after,
    cools_down,
    counting,
    goals,
    may_be_replaced,
    may_be_spared,
    spare,
    still_wanted,
    why_not_there,
)
from remuda.scheduler.upkeep_rules import kept_for_minimum
from tests.support.nodes import NOON
from tests.unit.scheduler.standing import a_row, a_view, ago

BASE = ModelConfig(name="qwen", backend="llama-cpp")


def config(**said: object) -> ModelConfig:
    return BASE.model_copy(update=said)


def current(model: ModelConfig, *replicas: Replica) -> list[Replica]:
    return [replace(row, revision=model.revision) for row in replicas]


def look(
    model: ModelConfig,
    *replicas: Replica,
    nodes: Sequence[ObservedNode] = (),
    busy: Mapping[ReplicaKey, int] | None = None,
    before: Goals | None = None,
    now: datetime = NOON,
    hot: int = 0,
) -> Goals:
    return goals(
        GoalInputs(
            now,
            {model.id: model},
            current(model, *replicas),
            {view.standing.node.id: view for view in nodes or (a_view(), a_view("gpu-2"))},
            lambda key: (busy or {}).get(key, 0),
            {} if before is None else before.busy_since,
            {model.id: hot},
        )
    )


def test_model_that_declares_nothing_is_left_alone() -> None:
    assert look(config()) == Goals((), (), {})


def test_restart_forgets_no_minimum() -> None:
    """No row is left, as after a restart of everything: the wish is not kept in rows."""
    found = look(config(min_replicas=2))
    assert [(one.model, one.beside) for one in found.add] == [("qwen", 0), ("qwen", 1)]


def test_what_is_on_its_way_counts() -> None:
    on_its_way = a_row(state=ReplicaState.STAGING, boot=None)
    assert [one.beside for one in look(config(min_replicas=2), on_its_way).add] == [1]


@pytest.mark.parametrize(
    "lost",
    [
        a_view(heard_s=300),
        a_view(drained=True),
        a_view(boot_id=BootId("another")),
        a_view(approved=False),
    ],
)
def test_replica_on_a_node_that_is_lost_is_replaced(lost: ObservedNode) -> None:
    found = look(config(min_replicas=1), a_row(), nodes=(lost, a_view("gpu-2")))
    assert len(found.add) == 1


def test_node_that_missed_one_heartbeat_is_not_lost() -> None:
    assert look(config(min_replicas=1), a_row(), nodes=(a_view(heard_s=40),)).add == ()


def test_replica_of_an_older_configuration_does_not_count() -> None:
    wanted = config(min_replicas=1)
    nodes = {NodeId("id-gpu-1"): a_view()}
    assert counting([a_row(revision="old")], wanted, nodes) == []


def test_node_without_the_labels_asked_for_does_not_count() -> None:
    wanted = config(min_replicas=1, selector={"rack": "1"})
    assert len(look(wanted, a_row(), nodes=(a_view(), a_view("gpu-2", labels={"rack": "1"}))).add) == 1


def test_one_on_every_node_that_matches() -> None:
    wanted = config(replicas="all", selector={"rack": "1"})
    nodes = [a_view(f"gpu-{number}", labels={"rack": "1"}) for number in (1, 2, 3)]
    found = look(wanted, a_row(), a_row(index=1, on="gpu-3"), nodes=[*nodes, a_view("other")])
    assert [set(one.has_one) for one in found.add] == [{"id-gpu-1", "id-gpu-3"}]
    everywhere = [a_row(index=number, on=f"gpu-{number + 1}", since_s=9999) for number in range(3)]
    assert look(wanted, *everywhere, nodes=nodes) == Goals((), (), {}, frozenset({"qwen"}))


def test_one_on_every_node_is_not_two_on_one() -> None:
    wanted = config(replicas="all", pinned=True)
    twice = [a_row(), a_row(index=1, on="gpu-2"), a_row(index=2, on="gpu-2"), a_row(index=3, on="gpu-2")]
    assert [one.replica.key.index for one in look(wanted, *twice).remove] == [3]
    busy = {ReplicaKey("qwen", 3): 1}
    assert [one.replica.key.index for one in look(wanted, *twice, busy=busy).remove] == [2]
    on_its_way = replace(twice[2], state=ReplicaState.LOADING)
    assert look(wanted, *twice[:2], on_its_way).remove == ()
    rows = current(wanted, *twice)
    assert [may_be_spared(row, wanted, rows) for row in rows] == [False, True, True, True]
    assert not may_be_spared(rows[1], wanted, rows[:2]), "the other has gone"


BUSY = {ReplicaKey("qwen", 0): 1, ReplicaKey("qwen", 1): 1}


def test_one_is_added_when_all_have_been_busy_for_a_while() -> None:
    wanted, rows = config(max_replicas=3), (a_row(), a_row(index=1, on="gpu-2"))
    first = look(wanted, *rows, busy=BUSY)
    assert first.add == ()
    later = look(wanted, *rows, busy=BUSY, before=first, now=NOON + BUSY_FOR)
    assert [one.why for one in later.add] == ["all 2 are busy"]
    assert look(wanted, *rows, busy={}, before=first, now=NOON + BUSY_FOR).busy_since == {}


def test_no_more_are_added_than_declared_nor_while_one_is_on_its_way() -> None:
    rows = (a_row(), a_row(index=1, on="gpu-2"))
    first = look(config(max_replicas=2), *rows, busy=BUSY)
    assert look(config(max_replicas=2), *rows, busy=BUSY, before=first, now=NOON + BUSY_FOR).add == ()
    coming = a_row(index=2, on="gpu-2", state=ReplicaState.LOADING)
    assert look(config(max_replicas=9), *rows, coming, busy=BUSY, before=first, now=NOON + BUSY_FOR).add == ()


def idle(index: int) -> Replica:
    return a_row(index=index, since_s=IDLE_FOR.total_seconds() + 1)


def test_last_added_goes_first_when_it_is_idle() -> None:
    found = look(config(max_replicas=3), idle(0), idle(1), idle(2))
    assert [one.replica.key.index for one in found.remove] == [2]
    used = replace(idle(2), last_used=ago(5))
    assert [one.replica.key.index for one in look(config(max_replicas=3), idle(0), idle(1), used).remove] == [
        1
    ]
    assert look(config(max_replicas=3), idle(0)).remove == (), "the last one is up to keep_alive"
    assert look(config(min_replicas=3), idle(0), idle(1), idle(2)).remove == ()


def test_limit_that_was_lowered_is_kept_to_at_once_but_for_the_busy() -> None:
    rows = (a_row(), a_row(index=1, on="gpu-2"))
    assert [one.replica.key.index for one in look(config(max_replicas=1), *rows).remove] == [1]
    busy = {ReplicaKey("qwen", 1): 1}
    assert [one.replica.key.index for one in look(config(max_replicas=1), *rows, busy=busy).remove] == [0]


def test_one_that_serves_is_not_given_up_for_one_that_is_still_being_loaded() -> None:
    coming = a_row(index=1, on="gpu-2", state=ReplicaState.LOADING)
    assert look(config(max_replicas=1), a_row(), coming).remove == ()
    there = a_row(index=1, on="gpu-2")
    [removal] = look(config(max_replicas=1), a_row(), there).remove
    assert (removal.replica.key, removal.cause) == (there.key, UnloadCause.SURPLUS)
    assert look(config(max_replicas=3), idle(0), replace(idle(1), state=ReplicaState.STAGING)).remove == ()


STATES = st.sampled_from(list(ReplicaState))
ROWS = st.lists(
    st.tuples(STATES, st.sampled_from(["gpu-1", "gpu-2", "gone"]), st.integers(0, 600), st.integers(0, 2)),
    max_size=6,
)


@given(ROWS, st.integers(0, 4), st.integers(0, 6))
def test_minimum_is_asked_for_exactly_and_never_undercut(
    drawn: list[tuple[ReplicaState, str, int, int]], least: int, more: int
) -> None:
    wanted = config(min_replicas=least, max_replicas=least + more)
    drawn_rows = [
        a_row(index=index, on=on, state=state, since_s=since)
        for index, (state, on, since, _) in enumerate(drawn)
    ]
    busy = {row.key: load for row, (*_, load) in zip(drawn_rows, drawn, strict=True)}
    nodes = {view.standing.node.id: view for view in (a_view(), a_view("gpu-2"))}
    rows = current(wanted, *drawn_rows)
    found = look(wanted, *drawn_rows, busy=busy)
    counted = counting(rows, wanted, nodes)
    assert len(found.add) == max(least - len(counted), 0)
    for removal in found.remove:
        assert sum(row.state is ReplicaState.LOADED for row in counted) > max(least, 1)
        assert not busy[removal.replica.key]
    for one in found.add:
        assert still_wanted(one, wanted, rows, nodes)
        twice = [*rows, *current(wanted, *(a_row(index=9 + n) for n in range(one.beside + 1)))]
        assert not still_wanted(one, wanted, twice, nodes), "another frontend has added it"


@given(ROWS, st.integers(0, 4))
def test_spare_replicas_and_those_kept_are_all_there_are(
    drawn: list[tuple[ReplicaState, str, int, int]], least: int
) -> None:
    wanted = config(min_replicas=least)
    rows = current(wanted, *(a_row(index=i, on=on, state=s) for i, (s, on, _, _) in enumerate(drawn)))
    loaded = sum(row.state is ReplicaState.LOADED for row in rows)
    kept = kept_for_minimum(rows, {"qwen": wanted})
    assert len(kept) + spare("qwen", wanted, rows) == loaded
    assert len(kept) == min(loaded, least)


def test_replica_on_a_drained_node_is_kept_only_until_another_is_loaded() -> None:
    wanted = config(min_replicas=2)
    drained = {NodeId("id-gpu-1"), NodeId("id-gpu-2")}
    rows = current(wanted, a_row(), a_row(index=1, on="gpu-2"), a_row(index=2, on="gpu-3"))
    kept = kept_for_minimum(rows, {"qwen": wanted}, drained)
    assert {key.index for key in kept} == {2, 0}
    enough = [*rows, *current(wanted, a_row(index=3, on="gpu-4"))]
    assert {key.index for key in kept_for_minimum(enough, {"qwen": wanted}, drained)} == {2, 3}


def test_why_a_replica_does_not_count_is_told() -> None:
    wanted = config(min_replicas=1, selector={"rack": "1"})
    assert why_not_there(a_row(), config(), a_view()) == ""
    assert why_not_there(a_row(), config(), None) == "its node was removed"
    assert why_not_there(a_row(), config(), a_view(drained=True)) == "drained"
    assert why_not_there(a_row(), config(), a_view(heard_s=300)) == "offline"
    assert why_not_there(a_row(), config(), a_view(leaving=True)) == "shutting down"
    assert why_not_there(a_row(), config(), a_view(boot_id=BootId("b"))) == "its worker was restarted"
    assert why_not_there(a_row(), wanted, a_view()) == "without the labels that it asks for"


def test_cooldown_grows_and_ends_when_the_fleet_changes() -> None:
    cooldown, spans = None, []
    for _ in range(4):
        cooldown = cooldown_after(cooldown, NOON, "fleet", "full", waiting_helps=False)
        spans.append(cooldown.until - NOON)
    assert spans == [timedelta(seconds=10), timedelta(seconds=30), *[timedelta(minutes=5)] * 2]
    assert cools_down(cooldown, NOON, "fleet")
    assert not cools_down(cooldown, NOON, "another fleet")
    assert not cools_down(cooldown, NOON + timedelta(minutes=5), "fleet")
    assert not cools_down(None, NOON, "fleet")
    busy = cooldown_after(cooldown, NOON, "fleet", "busy", waiting_helps=True)
    assert busy.until - NOON == timedelta(seconds=30)


def test_one_more_is_added_where_one_replica_is_long_too_busy_for_its_prompts() -> None:
    two = (a_row("qwen", 0), a_row("qwen", 1, on="gpu-2"))
    [added] = look(config(max_replicas=3), *two, hot=2).add
    assert (added.beside, added.evicts) == (2, False)
    assert "too busy for the prompts" in added.why
    assert look(config(max_replicas=2), *two, hot=2).add == ()
    assert look(config(max_replicas=3), *two, hot=1).add == (), "that was before the last was added"
    coming = (two[0], a_row("qwen", 1, on="gpu-2", state=ReplicaState.LOADING))
    assert look(config(max_replicas=3), *coming, hot=2).add == ()


def test_what_was_lost_is_not_replaced_above_the_most_nor_where_each_node_has_one() -> None:
    rows = [
        a_row(index=0),
        a_row(index=1, state=ReplicaState.STAGING),
        a_row(index=2, state=ReplicaState.UNLOADING),
    ]
    for declared, may in (
        ({}, True),
        ({"max_replicas": 3}, True),
        ({"max_replicas": 2}, False),
        ({"replicas": "all"}, False),
    ):
        model = config(**declared)
        assert may_be_replaced(model, current(model, *rows)) is may, declared
    former = config(max_replicas=1)
    assert may_be_replaced(former, [replace(row, revision="former") for row in rows])

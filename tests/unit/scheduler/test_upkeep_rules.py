"""What is done about replicas that are not wanted, without being asked."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from remuda.core.ids import NodeId, ReplicaKey
from remuda.models.config import ModelConfig
from remuda.models.keep_alive import FOR_EVER
from remuda.ops.model import OpId, UnloadCause, UnloadReason
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.upkeep_rules import Forget, Unload, UpkeepInputs, actions, idle_next

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEEP = timedelta(minutes=30)
QWEN = ModelConfig(name="qwen", backend="echo")


def row(state: ReplicaState = ReplicaState.LOADED, *, age: timedelta = KEEP, revision: str = "") -> Replica:
    return Replica(
        ReplicaKey("qwen", 0),
        NodeId("n1"),
        state,
        OpId("op-1"),
        "echo",
        revision or QWEN.revision,
        updated_at=NOW - age,
    )


def around(
    config: ModelConfig | None = QWEN,
    *,
    live: tuple[str, ...] = (),
    leaving: tuple[tuple[NodeId, ReplicaKey], ...] = (),
    busy: int = 0,
    unreadable: tuple[str, ...] = (),
) -> UpkeepInputs:
    configs = {} if config is None else {config.id: config}
    return UpkeepInputs(NOW, configs, unreadable, {OpId(op) for op in live}, leaving, KEEP, lambda key: busy)


def test_idle_replica_is_unloaded_after_its_time() -> None:
    assert actions([row()], around()) == [Unload(row(), UnloadReason(UnloadCause.IDLE))]


def test_replica_that_was_used_lately_stays() -> None:
    assert actions([row(age=KEEP - timedelta(seconds=1))], around()) == []


@pytest.mark.parametrize(("used_s", "goes"), [(3, True), (1, False)])
def test_model_that_is_kept_no_longer_than_its_requests_take_goes_after_the_last(
    used_s: float, goes: bool
) -> None:
    """In use it would have been noted again by now, whoever uses it."""
    brief = QWEN.model_copy(update={"keep_alive": timedelta()})
    used = replace(row(), last_used=NOW - timedelta(seconds=used_s))
    assert bool(actions([used], around(brief))) is goes
    assert actions([used], around(brief, busy=1)) == []


def test_model_that_nobody_has_used_yet_waits_for_those_it_was_loaded_for() -> None:
    brief = QWEN.model_copy(update={"keep_alive": timedelta()})
    assert actions([row(age=timedelta(seconds=9))], around(brief)) == []
    assert actions([row(age=timedelta(seconds=10))], around(brief)) == [
        Unload(row(age=timedelta(seconds=10)), UnloadReason(UnloadCause.IDLE))
    ]


def test_next_look_is_when_the_first_may_be_idle() -> None:
    young, used = row(age=timedelta(seconds=5)), replace(row(), last_used=NOW - timedelta(seconds=8))
    assert idle_next([young, used, row(ReplicaState.LOADING)], around()) == NOW + KEEP - timedelta(seconds=8)
    assert idle_next([row(ReplicaState.UNLOADING)], around()) is None


def test_replica_with_a_request_in_flight_is_not_idle() -> None:
    assert actions([row()], around(busy=1)) == []


@pytest.mark.parametrize(
    "config",
    [
        QWEN.model_copy(update={"pinned": True}),
        QWEN.model_copy(update={"keep_alive": timedelta(hours=2)}),
        QWEN.model_copy(update={"keep_alive": FOR_EVER}),
    ],
    ids=["pinned", "kept for longer", "kept for ever"],
)
def test_model_says_itself_how_long_it_stays(config: ModelConfig) -> None:
    assert actions([row()], around(config)) == []


def test_replica_of_another_configuration_goes_at_once() -> None:
    old = row(age=timedelta(), revision="older")
    assert actions([old], around()) == [Unload(old, UnloadReason(UnloadCause.OUTDATED))]


def test_replica_of_a_model_that_a_later_release_understands_is_left_to_it() -> None:
    assert actions([row()], around(None, unreadable=("qwen",))) == []


def test_replica_of_a_removed_model_goes() -> None:
    assert actions([row()], around(None)) == [Unload(row(), UnloadReason(UnloadCause.MODEL_REMOVED))]


@pytest.mark.parametrize("state", [ReplicaState.STAGING, ReplicaState.LOADING])
def test_load_of_what_the_model_was_is_given_up_for_what_it_is(state: ReplicaState) -> None:
    old = row(state, age=timedelta(), revision="older")
    assert actions([old], around(live=("op-1",))) == [Unload(old, UnloadReason(UnloadCause.OUTDATED))]
    removed = UnloadReason(UnloadCause.MODEL_REMOVED)
    assert actions([old], around(None, live=("op-1",))) == [Unload(old, removed)]


def test_load_that_nobody_carries_out_any_more_is_forgotten() -> None:
    loading = row(ReplicaState.LOADING)
    assert actions([loading], around()) == [Forget(loading)]
    assert actions([loading], around(live=("op-1",))) == []


def test_load_that_has_just_begun_is_left_alone() -> None:
    assert actions([row(ReplicaState.STAGING, age=timedelta(seconds=1))], around()) == []


def test_unload_that_failed_is_asked_for_again_and_not_all_the_time() -> None:
    asked = UnloadReason(UnloadCause.ASKED, by="ada")
    stuck = replace(row(ReplicaState.UNLOADING, age=timedelta(minutes=1)), why=asked)
    assert actions([stuck], around()) == [Unload(stuck, asked)]
    assert actions([stuck], around(leaving=((stuck.node, stuck.key),))) == []
    elsewhere = (NodeId("n2"), stuck.key)
    assert actions([stuck], around(leaving=(elsewhere,))) == [Unload(stuck, asked)], "that is another's"
    assert actions([row(ReplicaState.UNLOADING, age=timedelta(seconds=30))], around()) == []


def test_unload_that_another_load_waits_for_is_asked_for_soon_if_nobody_did() -> None:
    """Marking it and asking for it are two writes; whoever was to make the second may be dead."""
    makes_room = UnloadReason(UnloadCause.MAKES_ROOM, for_replica=ReplicaKey("big", 0))
    evicted = replace(row(ReplicaState.UNLOADING, age=timedelta(seconds=10)), why=makes_room)
    assert actions([evicted], around()) == [Unload(evicted, makes_room)]
    assert actions([evicted], around(leaving=((evicted.node, evicted.key),))) == []
    assert actions([replace(evicted, updated_at=NOW - timedelta(seconds=9))], around()) == []


def test_an_idle_model_leaves_a_gpu_that_its_owner_uses_even_one_that_is_to_be_kept() -> None:
    kept = QWEN.model_copy(update={"min_replicas": 1})
    here = replace(row(age=timedelta(seconds=1), revision=kept.revision), in_vram=True)
    inputs = replace(around(kept), claimed=frozenset({here.node}))
    assert actions([here], inputs) == [Unload(here, UnloadReason(UnloadCause.GIVES_WAY))]
    assert actions([here], replace(inputs, in_flight=lambda key: 1)) == []
    assert actions([replace(here, in_vram=False)], inputs) == []
    pinned = kept.model_copy(update={"pinned": True})
    assert actions([here], replace(around(pinned), claimed=frozenset({here.node}))) == []

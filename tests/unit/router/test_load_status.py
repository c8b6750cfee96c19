"""How far a load is, in the contract's words."""

from dataclasses import replace
from datetime import timedelta

import pytest

from remuda.core.ids import NodeId
from remuda.ops.model import Kind, Operation, OpId, ReplicaTarget, Source, State, Step
from remuda.ops.ports import Progress, View
from remuda.router.cold_path import status_of
from remuda.router.loading import LoadStatus
from remuda.scheduler.model import ReplicaState, load_operation
from tests.support.nodes import NOON
from tests.unit.scheduler.standing import a_row

STAGING = a_row(state=ReplicaState.STAGING)
NODE = NodeId("id-gpu-1")


def its_load() -> tuple[Operation, Step]:
    target = ReplicaTarget(STAGING.key, "abc")
    return load_operation(OpId("load-1"), target, Source("llama-cpp"), NODE, "gpu-1", by="test", now=NOON)


def a_view(state: State, *heard: Progress) -> View:
    operation, step = its_load()
    assert operation.kind is Kind.LOAD
    step = replace(step, state=state, attempt=2)
    return View(operation, (step,), 1, progress=tuple((NODE, one) for one in heard))


def test_load_that_was_just_made_is_pending() -> None:
    assert status_of(STAGING, None) == LoadStatus("qwen", "pending", placed=True)


def test_load_that_waits_for_its_turn_says_where() -> None:
    assert status_of(STAGING, a_view(State.PENDING)) == LoadStatus("qwen", "pending", "gpu-1")


@pytest.mark.parametrize(
    ("state", "told"), [(State.FAILED, "failed"), (State.CANCELLED, "pending"), (State.STOPPING, "pending")]
)
def test_load_that_is_over_says_so(state: State, told: str) -> None:
    assert status_of(STAGING, a_view(state)).state == told


def test_bytes_of_the_backend_are_the_first_four_fifths() -> None:
    heard = Progress(2, fraction=0.25, current_bytes=10, total_bytes=40)
    assert status_of(STAGING, a_view(State.RUNNING, heard)) == LoadStatus(
        "qwen", "installing", "gpu-1", 20.0, 10, 40, 1, 1
    )


@pytest.mark.parametrize(
    ("phase", "told"),
    [("resolving", "pending"), ("downloading", "pending"), ("starting", "loading"), ("loading", "loading")],
)
def test_a_backend_that_is_there_is_not_said_to_be_installed(phase: str, told: str) -> None:
    heard = Progress(2, fraction=1.0, phase=phase)
    assert status_of(STAGING, a_view(State.RUNNING, heard)).state == told


def test_what_an_earlier_attempt_had_is_no_news() -> None:
    heard = Progress(1, fraction=0.9, current_bytes=36, total_bytes=40)
    assert status_of(STAGING, a_view(State.RUNNING, heard)).progress == 0.0


def test_process_that_takes_in_its_model_is_loading() -> None:
    loading = replace(STAGING, state=ReplicaState.LOADING)
    assert status_of(loading, a_view(State.RUNNING)) == LoadStatus("qwen", "loading", "gpu-1", 80.0)


def test_files_on_their_way_are_told_as_such() -> None:
    heard = Progress(
        2, fraction=0.2, phase="staging", file_name="Copying 2/3 q.gguf", current_bytes=10, total_bytes=40
    )
    assert status_of(STAGING, a_view(State.RUNNING, heard)) == LoadStatus(
        "qwen", "staging", "gpu-1", 25.0, 10, 40, 2, 3
    )


def test_bytes_are_of_one_file_and_the_share_of_all_and_the_time_left_is_told() -> None:
    heard = Progress(
        2,
        phase="staging",
        file_name="Copying 2/3 q.gguf",
        current_bytes=10,
        total_bytes=40,
        file_number=2,
        file_count=3,
        file_bytes=4,
        file_size=20,
        left=timedelta(seconds=6.2),
    )
    assert status_of(STAGING, a_view(State.RUNNING, heard)) == LoadStatus(
        "qwen", "staging", "gpu-1", 25.0, 4, 20, 2, 3, eta_seconds=7
    )


def test_hashing_is_a_part_of_staging_in_which_nothing_is_sent() -> None:
    heard = Progress(2, phase="hashing", file_name="Hashing q.gguf", current_bytes=10, total_bytes=40)
    assert status_of(STAGING, a_view(State.RUNNING, heard)) == LoadStatus(
        "qwen", "staging", "gpu-1", 0.0, 0, 40, 1, 1
    )

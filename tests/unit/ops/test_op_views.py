"""Operations in the contract's shapes: exact words, and nothing that is not stored."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest

from remuda.core.errors import Problem
from remuda.core.ids import NodeId, ReplicaKey
from remuda.ops import op_views
from remuda.ops.model import Kind, OpId, ReplicaTarget, Source, State, Step, Wish
from remuda.ops.op_views import grouped_failures, with_steps
from remuda.ops.ports import Progress, View
from remuda.ops.progress import NOTHING_LIVE, LiveProgress, overlaid
from remuda.wire.broadcasts import StagingStatus
from remuda.wire.codec import encode
from tests.unit.ops.build import NOW, a_step, an_operation, running

MIB = 1 << 20


def seen(*steps: Step, progress: dict[str, Progress] | None = None, **operation: Any) -> View:
    heard = tuple((NodeId(node), one) for node, one in (progress or {}).items())
    return View(an_operation(**operation), steps, 7, progress=heard)


def item(view: View) -> dict[str, Any]:
    [shown] = op_views.operation_items([view], NOW)
    decoded: dict[str, Any] = json.loads(encode(shown))
    return decoded


def test_a044_the_contract_has_five_words_for_a_node() -> None:
    assert set(get_args(op_views.ContractStatus)) == {
        "queued",
        "downloading",
        "running_on_worker",
        "success",
        "error",
    }


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (a_step(), "queued"),
        (running(), "downloading"),
        (running(answer_by=NOW - timedelta(seconds=1)), "running_on_worker"),
        (running(wait_until=None), "running_on_worker"),
        (replace(running(), state=State.STOPPING), "running_on_worker"),
        (a_step(state=State.SUCCEEDED), "success"),
        (a_step(state=State.FAILED), "error"),
        (a_step(state=State.SKIPPED, reason="no build"), "error"),
        (a_step(state=State.CANCELLED, reason="cancelled"), "error"),
    ],
)
def test_a044_every_state_has_one_of_those_words(step: Step, status: str) -> None:
    assert op_views.node_status(step, NOW) == status


def test_skipped_cancelled_and_paused_are_said_in_the_message() -> None:
    steps = [
        a_step(node="a", state=State.SKIPPED, reason="no build"),
        a_step(node="b", state=State.CANCELLED, reason="the node was removed"),
        a_step(node="c"),
    ]
    nodes = item(seen(*steps, wish=Wish.PAUSE))["nodes"]
    assert [node["error"] for node in nodes] == [
        "skipped: no build",
        "cancelled: the node was removed",
        "paused",
    ]
    assert {node["status"] for node in nodes} == {"error"}


def test_a045_a_node_at_work_shows_file_sizes_share_and_phase() -> None:
    tick = Progress(1, 0.25, "downloading", "Downloading 1/2 x", 5 * MIB, 20 * MIB)
    [node] = item(seen(running(), progress={"node-1": tick}))["nodes"]
    assert node == {
        "node_id": "node-1",
        "node_name": "name-of-node-1",
        "status": "downloading",
        "file_name": "Downloading 1/2 x",
        "current": "5.0 MiB",
        "total": "20.0 MiB",
        "percentage": 25,
        "phase": "downloading",
    }


def test_a046_there_is_one_entry_per_node_and_the_latest_counts() -> None:
    view = seen(running(), progress={"node-1": Progress(1, 0.2)})
    live = {("op-1", "node-1"): LiveProgress(1, fraction=0.6)}
    [node] = item(overlaid(view, _Overlay(live), NOW))["nodes"]
    assert node["percentage"] == 60


class _Overlay:
    def __init__(self, live: dict[tuple[str, str], LiveProgress]) -> None:
        self._live = live

    def of(self, op: OpId, node: NodeId) -> LiveProgress | None:
        return self._live.get((op, node))


def test_a047_the_last_tick_is_mirrored_to_the_fields_of_the_whole() -> None:
    early = Progress(1, 0.1, "downloading", "a", 1 * MIB, 10 * MIB, NOW)
    late = Progress(1, 0.5, "extracting", "b", 5 * MIB, 10 * MIB, NOW + timedelta(seconds=1))
    view = seen(running(node="a"), running(node="b"), progress={"a": late, "b": early})
    shown = item(view)
    assert (shown["phase"], shown["currentBytes"], shown["totalBytes"]) == ("extracting", 5 * MIB, 10 * MIB)
    raw = op_views.raw_status(view, NOW)
    assert (raw.file_name, raw.downloaded_size, raw.file_size) == ("b", "5.0 MiB", "10.0 MiB")


def test_a051_nodes_are_sorted_by_name() -> None:
    steps = [replace(a_step(node=f"n{place}"), node_name=name) for place, name in enumerate("cab")]
    assert [node["node_name"] for node in item(seen(*steps))["nodes"]] == ["a", "b", "c"]


def test_a052_nodes_are_there_for_a_single_node_too() -> None:
    assert len(item(seen(a_step()))["nodes"]) == 1


def test_a055_every_final_state_of_a_node_is_shown() -> None:
    finals = [state for state in State if state.final]
    steps = [a_step(node=state, state=state, reason="why") for state in finals]
    nodes = item(seen(*steps, a_step()))["nodes"]
    expected = {"success" if state is State.SUCCEEDED else "error" for state in finals} | {"queued"}
    assert {node["status"] for node in nodes} == expected


def test_a063_a_node_that_is_away_is_queued_with_the_reason() -> None:
    [node] = item(seen(a_step(reason="it is draining; continues when it is resumed")))["nodes"]
    assert (node["status"], node["error"]) == ("queued", "it is draining; continues when it is resumed")


def test_a069_only_hard_failures_are_in_the_error_of_the_whole() -> None:
    steps = [
        a_step(node="a", state=State.FAILED, reason="disk full"),
        a_step(node="b", reason="it is away"),
        running(node="c"),
        a_step(node="d", state=State.FAILED, reason="no such image"),
    ]
    assert item(seen(*steps))["error"] == "name-of-a: disk full; name-of-d: no such image"


def test_equal_failures_are_told_once() -> None:
    failed = {"a": "disk full", "b": "no such image", "c": "disk full"}
    steps = [a_step(node=node, state=State.FAILED, reason=why) for node, why in failed.items()]
    assert grouped_failures(steps) == "name-of-a, name-of-c: disk full; name-of-b: no such image"


def test_a166_a_tick_of_an_ended_attempt_changes_nothing() -> None:
    done = a_step(state=State.SUCCEEDED, attempt=1)
    late = seen(done, running(node="other"), progress={"node-1": Progress(1, 0.4, "downloading", "x", 4, 9)})
    live = _Overlay({("op-1", "node-1"): LiveProgress(1, fraction=0.4)})
    node = next(one for one in item(overlaid(late, live, NOW))["nodes"] if one["node_id"] == "node-1")
    assert node == {
        "node_id": "node-1",
        "node_name": "name-of-node-1",
        "status": "success",
        "percentage": 100,
    }


def test_a_tick_of_an_earlier_attempt_is_not_shown() -> None:
    [node] = item(seen(running(attempt=2), progress={"node-1": Progress(1, 0.9, "downloading")}))["nodes"]
    assert node["percentage"] == 0


def test_what_is_heard_does_not_fall_behind_what_was_shown() -> None:
    view = seen(running(), progress={"node-1": Progress(1, 0.5)})
    live = _Overlay({("op-1", "node-1"): LiveProgress(1, fraction=0.2)})
    assert dict(overlaid(view, live, NOW).progress)[NodeId("node-1")].fraction == 0.5


def test_an_operation_has_the_fields_of_the_contract() -> None:
    shown = item(seen(a_step(), source=Source("localai@llama-cpp"), selection="node gpu-1"))
    assert shown == {
        "id": "localai@llama-cpp",
        "fullName": "localai@llama-cpp",
        "name": "llama-cpp",
        "jobID": "op-1",
        "progress": 0,
        "taskType": "Installation",
        "isDeletion": False,
        "isBackend": True,
        "isQueued": True,
        "cancellable": True,
        "message": "queued",
        "nodeID": "node-1",
        "phase": "queued",
        "nodes": [{"node_id": "node-1", "node_name": "name-of-node-1", "status": "queued", "percentage": 0}],
    }


def test_a_removal_is_told_as_a_deletion() -> None:
    shown = item(seen(a_step(Kind.REMOVE), kind=Kind.REMOVE))
    assert (shown["taskType"], shown["isDeletion"]) == ("deletion", True)


def test_what_succeeded_or_was_cancelled_is_no_longer_listed_and_what_failed_is() -> None:
    ended = {state: seen(a_step(state=state, reason="why")) for state in State if state.final}
    listed = {state for state, view in ended.items() if op_views.operation_items([view], NOW)}
    assert listed == {State.FAILED}


def test_those_least_far_come_first() -> None:
    views = [
        seen(running(), op="b", progress={"node-1": Progress(1, 0.9)}),
        seen(running(), op="a", progress={"node-1": Progress(1, 0.1)}),
    ]
    assert [one.jobID for one in op_views.operation_items(views, NOW)] == ["a", "b"]


# Jobs.


def test_a_job_under_way_is_not_processed_also_when_the_reply_is_overdue() -> None:
    job = op_views.job(seen(running(answer_by=NOW - timedelta(hours=1))))
    assert (job.processed, job.queued, job.error, job.completed) == (False, False, "", False)


def test_a_job_that_is_done_says_completed() -> None:
    job = json.loads(encode(op_views.job(seen(a_step(state=State.SUCCEEDED)))))
    assert job == {
        "progress": 100,
        "message": "completed",
        "galleryElementName": "llama-cpp",
        "processed": True,
        "deletion": False,
        "queued": False,
        "completed": True,
    }


def test_a_job_that_failed_says_why() -> None:
    job = op_views.job(seen(a_step(state=State.FAILED, reason="disk full")))
    assert (job.processed, job.error, job.completed) == (True, "name-of-node-1: disk full", False)


def test_a_past_operation_has_its_outcome() -> None:
    ends = {State.SUCCEEDED: "completed", State.FAILED: "failed", State.CANCELLED: "cancelled"}
    for state, outcome in ends.items():
        past = op_views.past_item(seen(a_step(state=state, reason="why"), finished_at=NOW))
        assert (past.outcome, past.taskType) == (outcome, "installation")


# Our own.


def test_our_view_has_everything_a_person_may_ask_about() -> None:
    problem = Problem("install_failed", "disk full", "free some", retryable=True)
    waiting = a_step(
        digest="sha256:" + "a" * 64, attempt=2, failures=2, problem=problem, wait_until=NOW, reason="later"
    )
    [step] = with_steps(seen(waiting), NOW).steps or ()
    assert (step.state, step.attempt, step.pinned, step.not_before) == ("pending", 2, True, NOW)
    assert step.problem is not None
    assert (step.problem.code, step.problem.hint, step.problem.retryable) == (
        "install_failed",
        "free some",
        True,
    )


def test_progress_that_was_heard_a_while_ago_is_shown_with_its_age() -> None:
    quiet = _Overlay({("op-1", "node-1"): LiveProgress(1, fraction=0.5, age_s=45)})
    noted = seen(running(), progress={"node-1": Progress(1, 0.5, at=NOW - timedelta(seconds=40))})
    new = seen(running(), progress={"node-1": Progress(1, 0.5, at=NOW - timedelta(seconds=5))})
    for view, overlay, age_s in (
        (seen(running()), quiet, 45),
        (noted, NOTHING_LIVE, 40),
        (new, NOTHING_LIVE, None),
    ):
        assert (
            json.loads(encode(with_steps(view, NOW, overlay)))["steps"][0]["progress"].get("age_s") == age_s
        )


def test_rate_and_remaining_time_are_shown_when_they_were_measured_and_left_out_when_not() -> None:
    measured = LiveProgress(1, fraction=0.5, rate_bytes_s=1000.4, left=timedelta(seconds=12))
    for live, rate, left in ((measured, 1000, 12), (LiveProgress(1), None, None)):
        shown = with_steps(seen(running()), NOW, _Overlay({("op-1", "node-1"): live}))
        progress = json.loads(encode(shown))["steps"][0]["progress"]
        assert (progress.get("rate_bytes_s"), progress.get("left_s")) == (rate, left)


def test_load_whose_files_are_on_their_way_is_listed_as_staging() -> None:
    target = ReplicaTarget(ReplicaKey("qwen", 0), "r1")
    step = replace(running(), kind=Kind.LOAD, target=target)
    heard = Progress(step.attempt, 0.2, "staging", "Copying 1/2 q.gguf", 10, 40)
    (shown,) = op_views.staging_items([seen(step, progress={step.node: heard})])
    decoded = json.loads(encode(shown))
    assert decoded == {
        "id": "staging:qwen",
        "fullName": "qwen",
        "name": "qwen",
        "jobID": "staging:qwen",
        "progress": 25,
        "taskType": "staging",
        "isDeletion": False,
        "isBackend": False,
        "isQueued": False,
        "cancellable": False,
        "message": "Copying 1/2 q.gguf",
        "nodeID": step.node,
        "nodeName": step.node_name,
        "phase": "staging",
        "currentBytes": 10,
        "totalBytes": 40,
        "nodes": [],
    }
    installing = replace(heard, phase="downloading")
    assert op_views.staging_items([seen(step, progress={step.node: installing})]) == ()
    assert op_views.staging_items([seen(step)]) == ()


def test_bytes_of_staging_are_always_there_and_of_others_where_there_are_any() -> None:
    step = replace(running(), kind=Kind.LOAD, target=ReplicaTarget(ReplicaKey("qwen", 0), "r1"))
    hashing = Progress(step.attempt, 0.0, "hashing", "Hashing q.gguf", 0, 40)
    (shown,) = op_views.staging_items([seen(step, progress={step.node: hashing})])
    decoded = json.loads(encode(shown))
    assert (decoded["progress"], decoded["currentBytes"], decoded["totalBytes"]) == (0, 0, 40)
    (other,) = op_views.operation_items([seen(running())], NOW)
    assert not {"currentBytes", "totalBytes"} & set(json.loads(encode(other)))


def test_staging_that_another_frontend_tells_of_is_listed_unless_it_is_known_here() -> None:
    step = replace(running(), kind=Kind.LOAD, target=ReplicaTarget(ReplicaKey("qwen", 0), "r1"))
    own = Progress(step.attempt, 0.2, "staging", "Copying 1/2 q.gguf", 10, 40)
    told = [
        StagingStatus(model_id="qwen", node_name="elsewhere", progress=99),
        StagingStatus(model_id="bge", node_name="theirs", progress=7.9, bytes_sent=3, total_bytes=9),
        StagingStatus(model_id="odd", progress=-1),
    ]
    items = op_views.staging_items([seen(step, progress={step.node: own})], told)
    assert [(item.id, item.progress, item.nodeName) for item in items] == [
        ("staging:odd", 0, ""),
        ("staging:bge", 7, "theirs"),
        ("staging:qwen", 25, step.node_name),
    ]
    theirs = json.loads(encode(items[1]))
    assert (theirs["currentBytes"], theirs["totalBytes"], theirs["cancellable"]) == (3, 9, False)
    assert "nodeID" not in theirs


def test_staging_of_a_model_on_several_nodes_is_one_entry_by_the_contracts_id() -> None:
    target = ReplicaTarget(ReplicaKey("qwen", 0), "r1")
    step = replace(running(), kind=Kind.LOAD, target=target)
    far = Progress(step.attempt, 0.8, "staging", "Copying 1/1 q.gguf", 30, 40)
    near = replace(far, current_bytes=10)
    views = [seen(step, progress={step.node: heard}) for heard in (far, near)]
    assert [item.progress for item in op_views.staging_items(views)] == [25]


@pytest.mark.parametrize(
    ("kind", "state", "retryable"),
    [
        (Kind.INSTALL, State.FAILED, True),
        (Kind.INSTALL, State.SUCCEEDED, False),
        (Kind.LOAD, State.FAILED, False),
    ],
)
def test_only_what_a_retry_would_begin_is_retryable(kind: Kind, state: State, retryable: bool) -> None:
    assert op_views.op_view(seen(a_step(state=state), kind=kind)).retryable is retryable

"""What needs a person, and the request that would solve it."""

from datetime import UTC, datetime, timedelta

import pytest

from remuda.gateway.attention import DISK_FULL_BYTES, DISK_LOW_BYTES, needed, shown_status
from remuda.wire.nodes import NodeFacts, NodeView
from remuda.wire.operations import OpView, RollOutView


def node(status: str = "healthy", free: int = 1 << 40, **facts: object) -> NodeView:
    told = NodeFacts.model_validate({"version": "1", **facts})
    return NodeView(
        id="n1", name="gpu-1", status=status, total_disk=1 << 41, available_disk=free, remuda=told
    )


def codes(*nodes: NodeView) -> list[tuple[str, str]]:
    return [(item.code, item.level) for item in needed(nodes, ())]


def test_a_healthy_node_needs_no_one() -> None:
    assert codes(node()) == []


def test_a_node_that_left_the_fleet_needs_no_one() -> None:
    assert codes(node("offline", left=True)) == []


def test_a_node_that_joins_needs_no_one_until_it_takes_too_long() -> None:
    connecting = ("its worker is connecting to the bus",)
    assert codes(node("unhealthy", joining=True, reasons=connecting)) == []
    assert shown_status(node("unhealthy", joining=True)) == "joining"
    assert codes(node("unhealthy", reasons=connecting)) == [("node_unhealthy", "problem")]


def test_a_node_that_waits_is_solved_by_approving_it() -> None:
    (item,) = needed([node("pending", reasons=("waiting for approval",))], ())
    assert item.action is not None
    assert (item.code, item.action.method, item.action.path) == (
        "node_pending",
        "POST",
        "/api/nodes/n1/approve",
    )


@pytest.mark.parametrize(
    ("free", "found"),
    [
        (DISK_LOW_BYTES, []),
        (DISK_LOW_BYTES - 1, [("disk_low", "warning")]),
        (DISK_FULL_BYTES - 1, [("disk_full", "problem")]),
    ],
)
def test_a_disk_is_named_when_it_is_nearly_full(free: int, found: list[tuple[str, str]]) -> None:
    assert codes(node(free=free)) == found


def test_problems_come_before_warnings() -> None:
    found = codes(node("pending"), node("offline"))
    assert found == [("node_offline", "problem"), ("node_pending", "warning")]


def test_storage_that_cannot_be_used_needs_a_person() -> None:
    (item,) = needed((), (), storage_trouble="access denied: bucket fleet")
    assert (item.code, item.level, item.entity) == ("storage_unusable", "warning", "frontend")
    assert item.message == "models are not put into the object storage: access denied: bucket fleet"


@pytest.mark.parametrize(("later_minute", "found"), [(5, []), (-5, ["operation_failed"])])
def test_a_failure_that_a_later_success_overtook_needs_no_one(later_minute: int, found: list[str]) -> None:
    at = datetime(2026, 11, 18, 12, tzinfo=UTC)
    failed = OpView(
        id="one",
        kind="install_model",
        name="small",
        status="failed",
        asked_at=at,
        finished_at=at,
        roll_out=RollOutView(at_once=1),
    )
    done = failed.model_copy(
        update={"id": "two", "status": "succeeded", "finished_at": at + timedelta(minutes=later_minute)}
    )
    assert [item.code for item in needed([], [failed, done])] == found


AT = datetime(2026, 11, 18, 12, tzinfo=UTC)


def load(status: str = "failed", minute: int = 0, node: str = "gpu-1") -> OpView:
    at = AT + timedelta(minutes=minute)
    return OpView(
        id=f"{status}-{minute}", kind="load", model="org/small", selection=node, status=status,
        error="no answer", asked_at=at, finished_at=at, roll_out=RollOutView(at_once=1),
    )  # fmt: skip


def test_a_failed_load_is_solved_by_another_and_not_by_a_retry() -> None:
    (item,) = needed([], [load()], models=["org/small"])
    assert item.action is not None
    assert (item.action.label, item.action.path) == ("Load", "/api/models/org/small/load")


@pytest.mark.parametrize(("later", "found"), [(1, 0), (-1, 1)])
def test_a_failed_load_matters_until_the_model_is_loaded_anywhere(later: int, found: int) -> None:
    assert len(needed([], [load(), load("succeeded", later, "gpu-2")], models=["org/small"])) == found


def test_a_failed_load_of_a_model_that_is_gone_needs_no_one() -> None:
    assert needed([], [load()], models=[]) == ()
    assert len(needed([], [load()])) == 1, "which models there are is not known"

"""Why a removed model's file is still on a node."""

from dataclasses import replace
from typing import Any

import pytest

from remuda.core.ids import NodeId
from remuda.gateway.admin.node_disk import removals_on, unplaced_file, with_removals
from remuda.ops.model import Kind, ModelSpec, Operation, OpId, RollOut, State
from remuda.ops.ports import View
from remuda.ops.reasons import StepCause, because
from remuda.scheduler.disk_room import LAST_COPY, PERSONS, FileOnNode, NodeDisk, PartOnNode
from tests.unit.ops.build import NOW, a_step

NODE = NodeId("node-1")
FILE = FileOnNode("q/q.gguf", 10, "aa", True, 0, frozenset(), LAST_COPY)


def removal(**changes: Any) -> View:
    step = a_step(Kind.REMOVE_MODEL)
    source = replace(step.source, model=ModelSpec(files=(FILE.path,)))
    step = replace(step, node=NODE, source=source, **changes)
    operation = Operation(OpId("op-123456789"), Kind.REMOVE_MODEL, source, RollOut(at_once=1), "admin", NOW)
    return View(operation, (step,), 1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"why": because(StepCause.BUS_DOWN, "no bus")}, "waits: nothing can be sent now: no bus"),
        ({"why": None}, "has not begun"),
        ({"state": State.RUNNING}, "is under way"),
    ],
)
def test_its_removal_is_named(changes: dict[str, Any], told: str) -> None:
    shown = with_removals(NodeDisk("one", (FILE,)), removals_on(NODE, [removal(**changes)]))
    assert shown.files[0].keep == f"its removal {told} (operation op-12345)"


def test_other_reasons_are_told_as_they_are() -> None:
    persons, other = replace(FILE, keep=PERSONS), replace(FILE, path="r.gguf")
    disk = NodeDisk("one", (persons, other))
    assert with_removals(disk, removals_on(NODE, [removal()])) == disk
    assert removals_on(NodeId("node-2"), [removal()]) == {}
    assert removals_on(NODE, [removal(state=State.FAILED)]) == {}


def test_what_is_half_fetched_is_shown_by_its_hash_and_counts_as_no_fetched_file() -> None:
    shown = unplaced_file(PartOnNode("57fc" * 16, 36, "q is being copied there"))
    assert (shown.path, shown.size, shown.fetched) == ("(not placed) 57fc57fc57fc", 36, False)
    assert shown.keep == "q is being copied there"

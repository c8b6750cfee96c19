"""Operations, steps and observations with defaults, for tests."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from remuda.core.ids import BootId, NodeId
from remuda.ops.model import Goal, Kind, Moment, Operation, OpId, RollOut, Source, State, Step
from remuda.ops.reasons import reason_in_words

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OP, NODE, BOOT = OpId("op-1"), NodeId("node-1"), BootId("boot-1")
PINNED = "sha256:" + "a" * 64


def at(seconds: float = 0, fraction: float = 0.0) -> Moment:
    return Moment(NOW + timedelta(seconds=seconds), fraction)


def a_step(kind: Kind = Kind.INSTALL, node: str = NODE, op: str = OP, digest: str = "", **more: Any) -> Step:
    """`reason` gives it one in words."""
    goal = Goal(("cpu-llama-cpp", "llama-cpp"), digest)
    if "reason" in more:
        more["why"] = reason_in_words(more.pop("reason"))
    step = Step(OpId(op), NodeId(node), f"name-of-{node}", kind, Source("llama-cpp"), goal)
    return replace(step, **more)


def running(kind: Kind = Kind.INSTALL, **more: Any) -> Step:
    more = {"attempt": 1, "boot": BOOT, "answer_by": NOW + timedelta(minutes=15), **more}
    return a_step(kind, state=State.RUNNING, **{"wait_until": NOW + timedelta(seconds=60), **more})


def an_operation(op: str = OP, kind: Kind = Kind.INSTALL, asked_s: float = 0, **more: Any) -> Operation:
    asked_at = NOW + timedelta(seconds=asked_s)
    operation = Operation(OpId(op), kind, Source("llama-cpp"), RollOut(at_once=16), "admin", asked_at)
    return replace(operation, **more)

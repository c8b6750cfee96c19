"""Operations, steps and events with defaults, as a frontend would tell them."""

import json
from datetime import UTC, datetime
from typing import Any

from remuda.core.sse import SseEvent
from remuda.wire.codec import encode
from remuda.wire.operations import OpView, ProgressView, RollOutView, StepView, Tick

NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)
ID = "3f2a1b0c-0000-4000-8000-000000000001"


def a_step(node: str = "attic", state: str = "running", **facts: Any) -> StepView:
    return StepView(node_id=f"id-{node}", node_name=node, state=state, **{"attempt": 1, **facts})


def an_op(*steps: StepView, id: str = ID, **facts: Any) -> OpView:
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.state] = counts.get(step.state, 0) + 1
    told = {"kind": "install", "backend": "echo", "status": "running", "counts": counts, **facts}
    return OpView(id=id, roll_out=RollOutView(at_once=64), asked_at=NOON, steps=steps, **told)


def op_event(op: OpView) -> SseEvent:
    return SseEvent("op", encode(op).decode())


def tick(node: str = "attic", percentage: float = 50, *, attempt: int = 1, **facts: Any) -> SseEvent:
    progress = ProgressView(percentage=percentage, **facts)
    told = Tick(op=ID, node_id=f"id-{node}", attempt=attempt, progress=progress)
    return SseEvent("progress", encode(told).decode())


def document(line: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(line)
    return read

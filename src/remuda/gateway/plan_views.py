"""Plans of loads, as the API shows them. Nodes with one reason are shown together."""

from collections import defaultdict
from collections.abc import Mapping

from remuda.scheduler.model import Unplaceable
from remuda.scheduler.plans import ReplicaPlan
from remuda.wire.serving import ModelPlan, NotChosenView, PlannedStepView


def plan_view(plan: ReplicaPlan) -> ModelPlan:
    shown = ModelPlan(model=plan.need.model, not_chosen=grouped(plan.others or {}))
    placed, speed = plan.placed, plan.speed
    if isinstance(placed, Unplaceable):
        later = {"waiting_helps": bool(placed.until), "waits_for": placed.until}
        return shown.model_copy(update=later)
    steps = tuple(
        PlannedStepView(
            action=step.action,
            what=step.what,
            size_bytes=step.size_bytes,
            bytes_per_s=step.bytes_per_s,
            seconds=step.seconds,
            measured_elsewhere=step.took is not None and step.took.elsewhere,
        )
        for step in plan.steps
    )
    found = {
        "node": plan.node,
        "node_id": placed.node,
        "in_vram": placed.in_vram,
        "memory_bytes": placed.memory.vram_bytes if placed.in_vram else placed.memory.ram_bytes,
        "steps": steps,
        "ready_seconds": plan.ready_s,
        "known_seconds": plan.known_s,
        "tokens_per_s": None if speed is None else speed.per_s,
        "tokens_like": "" if speed is None else speed.like,
    }
    return shown.model_copy(update=found)


def grouped(why: Mapping[str, str]) -> tuple[NotChosenView, ...]:
    nodes = defaultdict[str, list[str]](list)
    for name, reason in why.items():
        nodes[reason].append(name)
    return tuple(NotChosenView(nodes=tuple(names), why=reason) for reason, names in nodes.items())

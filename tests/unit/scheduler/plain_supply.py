"""Who has a backend or could get it, planned for each node by itself: what the quick way has to find, too."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode, why_no_target
from remuda.gallery.model import Reading, galleries_to_json
from remuda.ops.model import Kind, OpId, RollOut, Source, State
from remuda.ops.selection import Selection
from remuda.ops.targets import Draft, PlanningContext, WantedOperation, builds_of, proposal
from remuda.scheduler.backend_supply import Supply, held_supply, of_build, without


def plain_supplies(
    backend: str, nodes: Sequence[ObservedNode], readings: Sequence[Reading]
) -> Mapping[NodeId, Supply]:
    names = (backend, *builds_of(readings, backend))
    meant = [node for node in nodes if not why_no_target(node.standing)]
    held = {node.standing.node.id: held_supply(node, names) for node in meant}
    if not held:
        return {}
    source = Source(backend, galleries_to_json(tuple(one.gallery for one in readings)))
    try:
        drafts = proposal(
            WantedOperation(Kind.INSTALL, source, Selection(names=tuple(held)), RollOut(1)),
            PlanningContext(meant, readings),
            OpId("not-stored"),
        ).drafts
    except RemudaError as error:
        known = any(supply.has for supply in held.values())
        why = f"it has no {backend}, and {error}"
        return {node: replace(without(supply, why), known=known) for node, supply in held.items()}
    return {draft.step.node: _supplied(held[draft.step.node], draft) for draft in drafts}


def _supplied(held: Supply, draft: Draft) -> Supply:
    step = draft.step
    supply = replace(held, galleries=step.source.galleries)
    if step.state is State.SKIPPED:
        return without(supply, step.reason)
    if held.has or draft.build is None:
        return supply
    return of_build(supply, step.goal.names[0], draft.build.uri)

"""Which nodes can run which backends. Pure.

Answered by planning an install that nobody makes, so that it never differs from what an install would do.
"""

from collections import defaultdict
from collections.abc import Sequence

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode, is_localai, why_no_target
from remuda.gallery.model import MachineProfile, Reading, everything
from remuda.ops.model import Kind, OpId, RollOut, Source, State
from remuda.ops.selection import Selection
from remuda.ops.targets import PlanningContext, WantedOperation, machine_of, plan

_NOBODYS = OpId("nobodys")


def fits(nodes: Sequence[ObservedNode], readings: Sequence[Reading]) -> dict[str, list[str]]:
    """For each backend, as gallery@name, the names of the nodes that can run a build of it."""
    alike = defaultdict[tuple[MachineProfile, bool], list[ObservedNode]](list)
    for node in nodes:
        if not why_no_target(node.standing):
            known = node.standing.node
            alike[machine_of(known), is_localai(known)].append(node)
    groups = {same[0].standing.node.id: same for same in alike.values()}
    context = PlanningContext([same[0] for same in groups.values()], readings)
    names = (f"{found.gallery.name}@{found.entry.name}" for found in everything(readings))
    return {
        name: sorted(node.standing.node.name for one in _able(name, context) for node in groups[one])
        for name in names
    }


def _able(name: str, context: PlanningContext) -> list[NodeId]:
    ids = tuple(node.standing.node.id for node in context.nodes)
    wanted = WantedOperation(Kind.INSTALL, Source(name), Selection(names=ids), RollOut(1))
    try:
        drafts = plan(wanted, context, _NOBODYS).drafts
    except RemudaError:  # None of them can.
        return []
    return [draft.step.node for draft in drafts if draft.step.state is not State.SKIPPED]

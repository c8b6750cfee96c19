"""Which nodes have a backend, which could get it and from where, and why the others could not. Pure.

Answered by planning an install that nobody makes, so that it never differs from what an install would do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.gallery.model import Reading, galleries_to_json
from remuda.ops.holdings import found
from remuda.ops.model import Kind, OpId, RollOut, Source, State
from remuda.ops.selection import Selection, why_no_target
from remuda.ops.sightings import NodeView
from remuda.ops.targets import Surroundings, Wanted, builds_of, plan

_NOBODYS = OpId("nobodys")


@dataclass(frozen=True, slots=True)
class Supply:
    has: bool
    why_not: str = ""  # It has it not, and cannot get it.
    galleries: str = ""  # Where its worker is to get it from.


def supplies(backend: str, nodes: Sequence[NodeView], readings: Sequence[Reading]) -> Mapping[NodeId, Supply]:
    """For every node that installs may go to at all."""
    meant = [node for node in nodes if not why_no_target(node.standing)]
    names = (backend, *builds_of(readings, backend))
    has = {node.standing.node.id: bool(found(node, names)) for node in meant}
    ids = tuple(has)
    if not ids:
        return {}
    source = Source(backend, galleries_to_json(tuple(one.gallery for one in readings)))
    try:
        drafts = plan(
            Wanted(Kind.INSTALL, source, Selection(names=ids), RollOut(1)),
            Surroundings(meant, readings),
            _NOBODYS,
        ).drafts
    except RemudaError as error:  # No node could get it.
        return {node: Supply(has[node], "" if has[node] else str(error)) for node in ids}
    steps = {draft.step.node: draft.step for draft in drafts}
    return {
        node: Supply(
            has[node],
            steps[node].reason if steps[node].state is State.SKIPPED and not has[node] else "",
            steps[node].source.galleries,
        )
        for node in ids
    }

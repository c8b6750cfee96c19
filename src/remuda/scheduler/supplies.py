"""Which nodes have a backend, which could get it and from where, and why the others could not. Pure.

Answered by planning an install that nobody makes, so that it never differs from what an install would do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.gallery.model import Reading, galleries_to_json
from remuda.ops.holdings import found, installed
from remuda.ops.model import Kind, OpId, RollOut, Source, State
from remuda.ops.selection import Selection, why_no_target
from remuda.ops.sightings import NodeView
from remuda.ops.targets import Surroundings, Wanted, builds_of, plan

_NOBODYS = OpId("nobodys")
_UNTOLD = "its worker has not said yet what it has installed"


@dataclass(frozen=True, slots=True)
class Supply:
    has: bool
    told: bool = True  # What it has is known.
    why_not: str = ""  # It has it not, and cannot get it.
    galleries: str = ""  # Where its worker is to get it from.


_NONE_NAMED = Supply(has=False, why_not="the model names no backend; `backend` in its configuration does")


def supplies(backend: str, nodes: Sequence[NodeView], readings: Sequence[Reading]) -> Mapping[NodeId, Supply]:
    """For every node that installs may go to at all."""
    meant = [node for node in nodes if not why_no_target(node.standing)]
    if not backend:
        return {node.standing.node.id: _NONE_NAMED for node in meant}
    names = (backend, *builds_of(readings, backend))
    known = {
        node.standing.node.id: Supply(bool(found(node, names)), installed(node) is not None) for node in meant
    }
    if not known:
        return {}
    source = Source(backend, galleries_to_json(tuple(one.gallery for one in readings)))
    try:
        drafts = plan(
            Wanted(Kind.INSTALL, source, Selection(names=tuple(known)), RollOut(1)),
            Surroundings(meant, readings),
            _NOBODYS,
        ).drafts
    except RemudaError as error:  # No node could get it.
        return {node: _without(supply, str(error)) for node, supply in known.items()}
    steps = (draft.step for draft in drafts)
    return {
        step.node: replace(
            _without(known[step.node], step.reason if step.state is State.SKIPPED else ""),
            galleries=step.source.galleries,
        )
        for step in steps
    }


def _without(supply: Supply, why_not: str) -> Supply:
    """A node that cannot get it: that matters to one that has not got it, or may have."""
    if supply.has or not why_not:
        return supply
    return replace(supply, why_not=why_not if supply.told else _UNTOLD)

"""Which nodes have a backend, which could get it and from where, and why the others could not. Pure.

Answered by planning an install that is not made, so that it never differs from what an install would do.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode, installed, why_no_target
from remuda.gallery.model import GalleryEntry, Reading, galleries_to_json
from remuda.gallery.resolve import preferred_tokens, uses_gpu
from remuda.ops.installed_backends import found
from remuda.ops.model import Kind, OpId, RollOut, Source, State
from remuda.ops.selection import Selection
from remuda.ops.targets import Draft, PlanningContext, WantedOperation, builds_of, machine_of, proposal
from remuda.wire.nodes import InstalledArtifact

_NOBODYS = OpId("nobodys")
_UNTOLD = "its worker has not said yet what it has installed; try again in a few seconds"
_CPU: Final = re.compile(r"(?<![a-z0-9])cpu(?![a-z0-9])")


@dataclass(frozen=True, slots=True)
class Supply:
    """`on_cpu` and `builtin` are about the build that the node has or, without one, would get."""

    has: bool
    told: bool = True  # What it has is known.
    why_not: str = ""  # It has it not, and cannot get it.
    known: bool = True  # Some gallery or node knows such a backend.
    galleries: str = ""  # Where its worker is to get it from.
    on_cpu: bool = False  # It surely uses no GPU.
    builtin: bool = False  # It ships with Remuda.


NOWHERE: Final = Supply(has=False)
"""Of a node that no install may go to."""

_NONE_NAMED = Supply(
    has=False, why_not="the model names no backend; set `backend` in its configuration, such as llama-cpp"
)


def supplies(
    backend: str, nodes: Sequence[ObservedNode], readings: Sequence[Reading]
) -> Mapping[NodeId, Supply]:
    """For every node that installs may go to at all."""
    meant = [node for node in nodes if not why_no_target(node.standing)]
    if not backend:
        return {node.standing.node.id: _NONE_NAMED for node in meant}
    names = (backend, *builds_of(readings, backend))
    known = {node.standing.node.id: _held(node, names) for node in meant}
    if not known:
        return {}
    source = Source(backend, galleries_to_json(tuple(one.gallery for one in readings)))
    try:
        drafts = proposal(
            WantedOperation(Kind.INSTALL, source, Selection(names=tuple(known)), RollOut(1)),
            PlanningContext(meant, readings),
            _NOBODYS,
        ).drafts
    except RemudaError as error:  # No gallery knows such a backend.
        held = any(supply.has for supply in known.values())
        why = f"it has no {backend}, and {error}"
        return {node: replace(_without(supply, why), known=held) for node, supply in known.items()}
    return {draft.step.node: _supplied(known[draft.step.node], draft) for draft in drafts}


def _held(node: ObservedNode, names: Sequence[str]) -> Supply:
    has = found(node, names)
    told = installed(node) is not None
    return _of_build(Supply(True, told), *_started(node, has)) if has else Supply(False, told)


def _started(node: ObservedNode, has: Sequence[InstalledArtifact]) -> tuple[str, str]:
    """Name and origin of the build that a worker with several of them starts: the best for its hardware."""
    tokens = preferred_tokens(machine_of(node.standing.node).effective_capability)

    def rank(one: InstalledArtifact) -> tuple[int, str]:
        places = (place for place, token in enumerate(tokens) if token in one.name.lower())
        return next(places, len(tokens)), one.name

    best = min(has, key=rank)
    return best.name, best.uri


def _supplied(held: Supply, draft: Draft) -> Supply:
    step = draft.step
    supply = replace(held, galleries=step.source.galleries)
    if step.state is State.SKIPPED:
        return _without(supply, step.reason)
    if held.has or draft.build is None:
        return supply
    return _of_build(supply, step.goal.names[0], draft.build.uri)


def _of_build(supply: Supply, name: str, uri: str) -> Supply:
    """Whoever has a GPU and a build that says nothing of it is taken to use it."""
    entry = GalleryEntry(name, line=0, uri=uri)
    says_cpu = _CPU.search(f"{name} {uri}".lower()) is not None and not uses_gpu(entry)
    return replace(supply, on_cpu=entry.builtin or says_cpu, builtin=entry.builtin)


def _without(supply: Supply, why_not: str) -> Supply:
    """A node that cannot get it: that matters to one that has not got it, or may have."""
    if supply.has:
        return supply
    return replace(supply, why_not=why_not if supply.told else _UNTOLD)

"""Which nodes have a backend or could get it, from where, and why the others could not. Pure.

That is answered by planning an install that is not made. How it comes out depends on the kind of machine and
on what galleries offer, so it is planned once for each kind; and of a node that has told nothing new it is
known from the last time.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.core.slices import Sliced, at_once
from remuda.fleet.verdicts import ObservedNode, installed, is_localai, why_no_target
from remuda.gallery.model import GalleryEntry, MachineProfile, Reading, galleries_to_json
from remuda.gallery.resolve import preferred_tokens, uses_gpu
from remuda.ops.model import Kind, OpId, RollOut, Source, State
from remuda.ops.selection import Selection, installed_under
from remuda.ops.targets import PlanningContext, WantedOperation, builds_of, machine_of, proposal
from remuda.wire.nodes import InstalledArtifact

_NOT_STORED = OpId("not-stored")
_UNTOLD = "its worker has not said yet what it has installed; try again in a few seconds"
_CPU: Final = re.compile(r"(?<![a-z0-9])cpu(?![a-z0-9])")
_SLICE: Final = 200  # Nodes between two pauses: about a millisecond where most have reported nothing new.
_NEWS: Final = 10  # One that has something new to tell costs as much as so many others.
_BACKENDS_MAX: Final = 16  # Those asked for last are remembered.


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
    return at_once(BackendSupply(backend, readings).of(nodes))


class SupplyBook:
    """Remembers for the backends asked for last, as long as galleries offer the same."""

    def __init__(self) -> None:
        self._known: dict[str, BackendSupply] = {}

    @property
    def remembered(self) -> int:
        return len(self._known)

    def of(
        self, backend: str, nodes: Sequence[ObservedNode], readings: Sequence[Reading]
    ) -> Sliced[Mapping[NodeId, Supply]]:
        known = self._known.pop(backend, None)
        if known is None or not known.is_by(readings):
            known = BackendSupply(backend, readings)
        self._known[backend] = known
        while len(self._known) > _BACKENDS_MAX:
            del self._known[next(iter(self._known))]
        return known.of(nodes)


@dataclass(frozen=True, slots=True)
class _MachineKind:
    """What the plan of an install depends on."""

    machine: MachineProfile
    localai: bool


@dataclass(frozen=True, slots=True)
class _Install:
    """How an install comes out on machines of one kind."""

    unknown: str = ""  # Why no gallery has such a backend; empty: one has.
    why_not: str = ""
    galleries: str = ""
    name: str = ""  # Of the build.
    uri: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """Of one node, with what that was concluded from."""

    has: Sequence[InstalledArtifact] | None
    kind: _MachineKind
    supply: Supply


class BackendSupply:
    """One backend, by what galleries offered at one time."""

    def __init__(self, backend: str, readings: Sequence[Reading]) -> None:
        self._backend = backend
        self._readings = tuple(readings)
        self._names = (backend, *builds_of(readings, backend)) if backend else ()
        self._source = Source(backend, galleries_to_json(tuple(one.gallery for one in readings)))
        self._installs: dict[_MachineKind, _Install] = {}
        self._alike: dict[tuple[_MachineKind, object], Supply] = {}  # By what is installed there as well.
        self._nodes: dict[NodeId, _Known] = {}

    def is_by(self, readings: Sequence[Reading]) -> bool:
        """Galleries are read again and again, and mostly nothing in them has changed."""
        return len(readings) == len(self._readings) and all(
            one.index is other.index
            and (one.gallery, one.trouble, one.readable) == (other.gallery, other.trouble, other.readable)
            for one, other in zip(readings, self._readings, strict=True)
        )

    def of(self, nodes: Sequence[ObservedNode]) -> Sliced[Mapping[NodeId, Supply]]:
        """For every node that installs may go to at all. Pauses every millisecond or so."""
        meant = [node for node in nodes if not why_no_target(node.standing)]
        if not self._backend:
            return {node.standing.node.id: _NONE_NAMED for node in meant}
        found: dict[NodeId, _Known] = {}
        steps = 0
        for node in meant:
            key = node.standing.node.id
            before = self._nodes.get(key)
            known = found[key] = self._known(node, before)
            steps += 1 if known is before else _NEWS
            if steps >= _SLICE:
                steps = 0
                yield
        self._nodes = found
        if len(self._alike) > 2 * len(found):  # Most of it has changed since.
            self._alike = {}
        supply = {node: known.supply for node, known in found.items()}
        if any(one.has for one in supply.values()):  # Then there is such a backend.
            return {node: replace(one, known=True) if not one.known else one for node, one in supply.items()}
        return supply

    def _known(self, node: ObservedNode, before: _Known | None) -> _Known:
        has, machine = installed(node), machine_of(node.standing.node)
        kind = _MachineKind(machine, is_localai(node.standing.node))
        if before is not None and before.has is has and before.kind == kind:
            return before
        there = None if has is None else tuple((one.name, one.alias, one.uri) for one in has)
        supply = self._alike.get((kind, there))
        if supply is None:
            install = self._installs.get(kind)
            if install is None:
                install = self._installs[kind] = self._planned(node)
            supply = self._alike[kind, there] = self._supply(node, install)
        return _Known(has, kind, supply)

    def _planned(self, node: ObservedNode) -> _Install:
        wanted = WantedOperation(
            Kind.INSTALL, self._source, Selection(names=(node.standing.node.id,)), RollOut(1)
        )
        try:
            [draft] = proposal(wanted, PlanningContext([node], self._readings), _NOT_STORED).drafts
        except RemudaError as error:  # No gallery knows such a backend.
            return _Install(unknown=str(error))
        step = draft.step
        if step.state is State.SKIPPED:
            return _Install(why_not=step.reason, galleries=step.source.galleries)
        uri = "" if draft.build is None else draft.build.uri
        return _Install(galleries=step.source.galleries, name=step.goal.names[0], uri=uri)

    def _supply(self, node: ObservedNode, install: _Install) -> Supply:
        held = held_supply(node, self._names)
        if install.unknown:
            lacking = without(held, f"it has no {self._backend}, and {install.unknown}")
            return replace(lacking, known=held.has)
        supply = replace(held, galleries=install.galleries)
        if install.why_not:
            return without(supply, install.why_not)
        if held.has or not install.uri:
            return supply
        return of_build(supply, install.name, install.uri)


def held_supply(node: ObservedNode, names: Sequence[str]) -> Supply:
    has = installed_under(node, names)
    known = installed(node) is not None
    return of_build(Supply(True, known), *_started(node, has)) if has else Supply(False, known)


def _started(node: ObservedNode, has: Sequence[InstalledArtifact]) -> tuple[str, str]:
    """Name and origin of the build that a worker with several of them starts: the best for its hardware."""
    tokens = preferred_tokens(machine_of(node.standing.node).effective_capability)

    def rank(one: InstalledArtifact) -> tuple[int, str]:
        places = (place for place, token in enumerate(tokens) if token in one.name.lower())
        return next(places, len(tokens)), one.name

    best = min(has, key=rank)
    return best.name, best.uri


def of_build(supply: Supply, name: str, uri: str) -> Supply:
    """A node with a GPU is taken to use it where its build does not say."""
    entry = GalleryEntry(name, line=0, uri=uri)
    says_cpu = _CPU.search(f"{name} {uri}".lower()) is not None and not uses_gpu(entry)
    return replace(supply, on_cpu=entry.builtin or says_cpu, builtin=entry.builtin)


def without(supply: Supply, why_not: str) -> Supply:
    """A node that cannot get it: that matters to one that has not got it, or may have."""
    if supply.has:
        return supply
    return replace(supply, why_not=why_not if supply.told else _UNTOLD)

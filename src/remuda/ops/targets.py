"""From what an admin wants to one step per node, or to the reason why a node is left out. Pure.

Nothing is sent to a node that could not do it: its step is skipped from the start.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from remuda.core.errors import Conflict, NotFound, Unavailable
from remuda.core.hints import did_you_mean, pasted
from remuda.fleet.model import Node
from remuda.fleet.verdicts import ObservedNode, is_localai
from remuda.gallery.model import (
    Found,
    MachineProfile,
    Reading,
    find,
    galleries_to_json,
    preferring,
    sharing_alias,
)
from remuda.gallery.references import for_peers, is_image, same_source
from remuda.gallery.resolve import ResolvedBuild, Unresolved, resolve
from remuda.ops.external_sources import External, external
from remuda.ops.failures import start_failed
from remuda.ops.model import Goal, Kind, OpId, RollOut, Source, State, Step
from remuda.ops.ports import Build, Pin
from remuda.ops.reasons import StepCause, because
from remuda.ops.selection import Selection, from_reference, holdings, installed_under, select
from remuda.wire.nodes import ARCHITECTURE_LABEL, OS_LABEL, InstalledArtifact

_ANYTHING: Final = MachineProfile("linux", "amd64", "disable")
_NAMED_MAX: Final = 5  # Nodes that an error names, out of many.


class ConcreteBackend(Conflict):
    """A build for certain hardware is wanted on every node."""

    code = "concrete_backend_requires_target"

    def __init__(self, name: str, meta: str) -> None:
        super().__init__(
            f"{name} is a build for specific hardware, not for every node",
            hint=f"install {meta} instead: each node gets the build that fits it"
            if meta
            else "name the nodes that it is for",
        )
        self.meta_alternative = meta


@dataclass(frozen=True, slots=True)
class WantedOperation:
    """What was asked for, checked for its form only."""

    kind: Kind
    source: Source
    selection: Selection
    roll_out: RollOut
    concrete_for_all: bool = False  # A build for certain hardware goes to all nodes it fits, as with peers.
    force: bool = False  # Of an upgrade: also where nothing is newer.


@dataclass(frozen=True, slots=True)
class Draft:
    """A step, and the build whose digest it may still be pinned to."""

    step: Step
    build: Build | None = None
    trouble: str = ""  # Why that digest could not be found out.
    size_bytes: int | None = None  # Of what is fetched: 0 of what ships with its worker; None: not known.


@dataclass(frozen=True, slots=True)
class OperationPlan:
    drafts: tuple[Draft, ...]
    warnings: tuple[str, ...] = ()

    @property
    def builds(self) -> frozenset[Build]:
        return frozenset(draft.build for draft in self.drafts if draft.build is not None)


@dataclass(frozen=True, slots=True)
class PlanningContext:
    nodes: Sequence[ObservedNode]
    readings: Sequence[Reading]
    local_sources: bool = False  # Files and folders of the nodes may be named.


def plan(wanted: WantedOperation, context: PlanningContext, op: OpId) -> OperationPlan:
    """One step for each node that is meant. Raises Rejected or Unavailable when there is nothing to do."""
    return pinned(proposal(wanted, context, op), {})


def proposal(wanted: WantedOperation, context: PlanningContext, op: OpId) -> OperationPlan:
    """As `plan`, also when no node can do it: then every step is skipped, with its node's own reason."""
    return _Planner(wanted, context, op).plan()


def pinned(drafted: OperationPlan, pins: Mapping[Build, Pin]) -> OperationPlan:
    """The same with what registries said. Where they said nothing, steps stay unpinned, which is legal."""
    drafts = tuple(_pinned(draft, pins) for draft in drafted.drafts)
    if all(draft.step.state is State.SKIPPED for draft in drafts):
        reasons = [f"{draft.step.node_name}: {draft.step.reason}" for draft in drafts[:_NAMED_MAX]]
        more = f"; and {len(drafts) - _NAMED_MAX} more" if len(drafts) > _NAMED_MAX else ""
        raise Conflict(f"no node can do this: {'; '.join(reasons)}{more}")
    return replace(drafted, drafts=drafts, warnings=(*drafted.warnings, *_unpinned(drafted, pins)))


def starting_again(planned: OperationPlan, last: Iterable[Step]) -> OperationPlan:
    """An install where the one before ended with files that did not start: `last` are its steps. They are
    started again, though they are there, and the step says how that ends."""
    unstarted = {step.node: step.problem for step in last if start_failed(step.problem)}
    drafts = tuple(
        replace(draft, step=replace(draft.step, problem=unstarted[draft.step.node]))
        if draft.step.node in unstarted and draft.step.state is State.PENDING
        else draft
        for draft in planned.drafts
    )
    return replace(planned, drafts=drafts)


def _unpinned(drafted: OperationPlan, pins: Mapping[Build, Pin]) -> list[str]:
    """What a reference stands for now is not known: then nodes that have something from it keep that. Where
    the registry has answered that there is no such image, for us at least, only that is said."""
    steps = ((draft.build, draft.step) for draft in drafted.drafts if draft.build is not None)
    references = {
        build.uri: pins[build]
        for build, step in steps
        if step.kind is Kind.INSTALL and step.source.uri and build in pins and pins[build].trouble
    }
    return [
        pin.trouble if pin.refused else f"{pin.unasked(uri)}: nodes that have it keep what they have"
        for uri, pin in references.items()
    ]


def _pinned(draft: Draft, pins: Mapping[Build, Pin]) -> Draft:
    pin = pins.get(draft.build) if draft.build is not None else None
    step = draft.step
    if pin is None or step.state is State.SKIPPED:
        return draft
    if pin.missing:
        return replace(
            draft, step=replace(step, state=State.SKIPPED, why=because(StepCause.UNFIT, pin.missing))
        )
    trouble = pin.unasked(draft.build.uri) if draft.build is not None else ""
    size = draft.size_bytes if pin.size_bytes is None else pin.size_bytes
    pinned_step = replace(step, goal=replace(step.goal, digest=pin.digest))
    return replace(draft, step=pinned_step, trouble=trouble, size_bytes=size)


def machine_of(node: Node) -> MachineProfile:
    """What is known of its hardware. Some capabilities say which platform it is; else its labels may."""
    capability, resources = node.resources.capability, node.resources
    os, architecture = _PLATFORMS.get(capability, ("linux", ""))
    if capability.startswith("nvidia-l4t"):
        architecture = "arm64"
    labels = node.labels
    os = labels[OS_LABEL].value if OS_LABEL in labels else os
    architecture = labels[ARCHITECTURE_LABEL].value if ARCHITECTURE_LABEL in labels else architecture
    return MachineProfile(os, architecture, capability, resources.gpu_vendor, resources.total_vram)


_PLATFORMS: Final = {"metal": ("darwin", "arm64"), "darwin-x86": ("darwin", "amd64")}


def builds_of(readings: Sequence[Reading], name: str) -> tuple[str, ...]:
    """Every name under which `name` may be installed: its builds', and its own without the gallery."""
    entry = find(readings, name)
    named = [build for _, build in entry.entry.capabilities] if entry and entry.entry.meta else []
    shared = [one.entry.name for one in sharing_alias(readings, name)]
    own = entry.entry.name if entry else name.rpartition("@")[2]
    return tuple(dict.fromkeys((own, *named, *shared)))


class _Planner:
    def __init__(self, wanted: WantedOperation, context: PlanningContext, op: OpId) -> None:
        self.wanted, self.context, self.op = wanted, context, op
        self.nodes = {node.standing.node.id: node for node in context.nodes}
        self.readings = preferring(context.readings, wanted.source.backend)
        self.bare = wanted.source.backend.rpartition("@")[2]
        self.warnings: list[str] = []

    def plan(self) -> OperationPlan:
        meant = select(self.wanted.selection, [node.standing for node in self.context.nodes])
        nodes = [self.nodes[one.node.id] for one in meant]
        match self.wanted.kind:
            case Kind.INSTALL if self.wanted.source.uri:
                drafts = self._external(nodes)
            case Kind.INSTALL:
                drafts = self._install(nodes)
            case Kind.UPGRADE:
                drafts = self._upgrade(nodes)
            case Kind.REMOVE:
                drafts = self._remove(nodes)
        self._warn_of_no_way_back(drafts)
        return OperationPlan(tuple(drafts), tuple(dict.fromkeys(self.warnings)))

    # Install.

    def _install(self, nodes: Sequence[ObservedNode]) -> list[Draft]:
        self._require_known()
        entry = find(self.readings, self.wanted.source.backend)
        plain = "@" not in self.wanted.source.backend
        everywhere = self.wanted.selection.is_all and not self.wanted.concrete_for_all
        if entry is not None and plain and everywhere:
            self._require_for_all(entry)
        return [self._installed_on(node) for node in nodes]

    def _require_known(self) -> None:
        answer = resolve(self.readings, self.wanted.source.backend, _ANYTHING)
        known = find(self.readings, self.wanted.source.backend) or sharing_alias(
            self.readings, self.wanted.source.backend
        )
        if isinstance(answer, Unresolved) and not known:
            raise (Unavailable if answer.retryable else NotFound)(answer.reason, hint=answer.hint)

    def _require_for_all(self, found: Found) -> None:
        """A gallery's id is taken at its word, as peers do; so is what ships with us and fits everywhere."""
        entry = found.entry
        meta = _meta_of(self.readings, entry.name)
        if not entry.meta and (meta or not entry.builtin):
            raise ConcreteBackend(entry.name, meta)

    def _installed_on(self, node: ObservedNode) -> Draft:
        known = node.standing.node
        answer = self._resolved(known)
        if isinstance(answer, Unresolved):
            hint = f" ({answer.hint})" if answer.hint else ""
            return Draft(self._skipped(node, f"{answer.reason}{hint}"))
        self.warnings += [f"{known.name}: {warning}" for warning in answer.warnings]
        entry = answer.entry
        # Another build of the same alias is no answer to who asked for this one by its own name.
        exact = entry.name.lower() == self.bare.lower()
        names = (entry.name,) if exact else _distinct(entry.name, entry.alias, self.bare)
        source = replace(self.wanted.source, backend=self.bare, galleries=self._galleries(known))
        step = self._step(node, source, Goal(names, version=entry.version))
        return Draft(step, _build(entry.uri, known), size_bytes=0 if entry.builtin else None)

    def _resolved(self, node: Node) -> ResolvedBuild | Unresolved:
        name, readings = self.wanted.source.backend, self._readable_by(node)
        answer = _for_machine(readings, name, machine_of(node))
        if not is_localai(node) or isinstance(answer, ResolvedBuild):
            return answer
        ours = _for_machine(self.readings, name, machine_of(node))
        if isinstance(ours, ResolvedBuild) and ours.entry.builtin:
            return Unresolved(
                name, f"{ours.entry.name} ships with Remuda, and this node's worker is LocalAI's"
            )
        return answer

    def _readable_by(self, node: Node) -> tuple[Reading, ...]:
        """What ships with Remuda is of no use to other workers."""
        if not is_localai(node):
            return self.readings
        return tuple(
            replace(
                one, index=replace(one.index, entries=tuple(e for e in one.index.entries if not e.builtin))
            )
            for one in self.readings
            if not one.gallery.builtin
        )

    def _galleries(self, node: Node) -> str:
        return galleries_to_json(tuple(one.gallery for one in self._readable_by(node)))

    # From outside the galleries.

    def _external(self, nodes: Sequence[ObservedNode]) -> list[Draft]:
        given = external(self.wanted.source, local_sources=self.context.local_sources)
        return [self._external_on(node, given) for node in nodes]

    def _external_on(self, node: ObservedNode, given: External) -> Draft:
        known = node.standing.node
        source = given.peer_source if is_localai(known) else given.source
        if source is None:
            return Draft(
                self._skipped(node, "this node's worker is LocalAI's, which cannot install archives")
            )
        goal = Goal(_distinct(source.name, source.alias), replaces=self._must_replace(node, source))
        return Draft(self._step(node, source, goal), _build(given.source.uri, known) if given.image else None)

    def _must_replace(self, node: ObservedNode, source: Source) -> bool:
        """LocalAI's workers leave what has the name as it is, wherever it came from."""
        known = node.standing.node
        has = next(iter(installed_under(node, (source.name,))), None) if is_localai(known) else None
        if has is None or not has.uri:
            return False
        if not same_source(has.uri, source.uri):
            return True
        self.warnings.append(
            f"{known.name} has {source.name} from {source.uri} already, and LocalAI's workers do not check "
            f"whether it has changed; to fetch it again: remuda backends upgrade "
            f"--nodes={pasted(known.name)} {pasted(source.name)}"
        )
        return False

    # Upgrade.

    def _upgrade(self, nodes: Sequence[ObservedNode]) -> list[Draft]:
        names = builds_of(self.readings, self.wanted.source.backend)
        holders = [(node, installed_under(node, names)) for node in nodes]
        having = [(node, has) for node, has in holders if has]
        if not having:
            where = "" if self.wanted.selection.is_all else f" of {self.wanted.selection}"
            raise NotFound(
                f"no node{where} has {self.wanted.source.backend} installed", hint=self._installed_names()
            )
        if self.wanted.roll_out.proves and all(has[0].unprovable for _, has in having):
            self._warn_of_no_proof()
        return [self._upgraded_on(node, has[0]) for node, has in having]

    def _warn_of_no_proof(self) -> None:
        self.warnings.append(
            f"no model has run with {self.bare} on any of these nodes, so nothing shows that a new version "
            "works: unless its remuda.yaml has a `check`, the first node is rolled back, and "
            "the roll-out stops; run a model with it on one node first, or upgrade without --rolling"
        )

    def _upgraded_on(self, node: ObservedNode, has: InstalledArtifact) -> Draft:
        """The build that it has, whatever it would be given today."""
        known, name = node.standing.node, has.name
        entry = find(self._readable_by(known), name)
        if from_reference(has, entry):
            return self._from_reference_again(node, has)
        if entry is None:
            return Draft(self._skipped(node, _why_no_upgrade(has), name))
        if entry.entry.builtin:
            return Draft(
                self._skipped(node, f"{name} ships with Remuda, and is upgraded with its worker", name)
            )
        source = replace(self.wanted.source, backend=name, galleries=self._galleries(known))
        goal = Goal(_distinct(name, has.alias, self.bare), version=entry.entry.version)
        return Draft(self._upgrade_step(node, source, goal), _build(entry.entry.uri, known))

    def _from_reference_again(self, node: ObservedNode, has: InstalledArtifact) -> Draft:
        """What was installed from a reference is upgraded from it: no gallery has to know it."""
        known = node.standing.node
        uri = for_peers(has.uri) if is_localai(known) else has.uri
        source = Source(has.name, uri=uri, name=has.name, alias=has.alias)
        goal = Goal(_distinct(has.name, has.alias, self.bare))
        build = _build(has.uri, known) if is_image(has.uri) else None
        return Draft(self._upgrade_step(node, source, goal), build)

    def _upgrade_step(self, node: ObservedNode, source: Source, goal: Goal) -> Step:
        """A node that can roll back tries the new version in any case."""
        rolls_back = not is_localai(node.standing.node)
        proves = rolls_back or self.wanted.roll_out.proves
        goal = replace(goal, replaces=self.wanted.force)
        return replace(self._step(node, source, goal), proves=proves, rolls_back=rolls_back)

    def _warn_of_no_way_back(self, drafts: Iterable[Draft]) -> None:
        roll_out = self.wanted.roll_out
        if not (roll_out.proves or roll_out.canary):
            return
        steps = [draft.step for draft in drafts if draft.step.state is not State.SKIPPED]
        stuck = [step.node_name for step in steps if not step.rolls_back]
        if stuck and self.wanted.kind is Kind.UPGRADE:
            others = " and others" if len(stuck) > _NAMED_MAX else ""
            self.warnings.append(
                f"{', '.join(stuck[:_NAMED_MAX])}{others} cannot roll back if the new version "
                "fails: their workers are LocalAI's"
            )

    # Remove.

    def _remove(self, nodes: Sequence[ObservedNode]) -> list[Draft]:
        """Every node that is meant, away or not: one that returns must not bring it back."""
        names = builds_of(self.readings, self.wanted.source.backend)
        known = find(self.readings, self.wanted.source.backend) or len(names) > 1
        if not known and not any(installed_under(node, names) for node in self.context.nodes):
            raise NotFound(
                f"no backend named {self.wanted.source.backend} is installed on any node",
                hint=self._installed_names(),
            )
        return [self._removed_from(node, names) for node in nodes]

    def _removed_from(self, node: ObservedNode, names: tuple[str, ...]) -> Draft:
        """All that goes by the name, every build of a meta backend; by a build's own name that one alone."""
        has = installed_under(node, names)
        own = next((one for one in has if one.name.lower() == self.bare.lower()), None)
        if (
            len(names) == 1
            and own is not None
            and not any(one.alias.lower() == own.name.lower() for one in has)
        ):
            return Draft(self._step(node, replace(self.wanted.source, backend=own.name), Goal((own.name,))))
        source = replace(self.wanted.source, backend=has[0].name if has else self.bare)
        listed = [*(one.name for one in has), *(one.alias for one in has)] if has else names
        return Draft(self._step(node, source, Goal(_distinct(*listed, self.bare))))

    def _installed_names(self) -> str:
        """A hint for a name that nothing is installed under."""
        held = holdings(self.context.nodes)
        aliases = {one.artifact.alias for holders in held.values() for one in holders} - {""}
        return did_you_mean(self.bare, (*held, *aliases), "`remuda backends` shows what is installed where")

    # Steps.

    def _step(self, node: ObservedNode, source: Source, goal: Goal) -> Step:
        known = node.standing.node
        goal = replace(goal, tag_decides=is_localai(known))
        return Step(self.op, known.id, known.name, self.wanted.kind, source, goal)

    def _skipped(self, node: ObservedNode, reason: str, name: str = "") -> Step:
        step = self._step(node, self.wanted.source, Goal((name or self.bare,)))
        return replace(step, state=State.SKIPPED, why=because(StepCause.UNFIT, reason))


def _for_machine(
    readings: Sequence[Reading], name: str, machine: MachineProfile
) -> ResolvedBuild | Unresolved:
    """Of a machine whose platform is not known the worker itself decides: what fits any, may fit it."""
    if machine.architecture:
        return resolve(readings, name, machine)
    answers = [resolve(readings, name, replace(machine, architecture=one)) for one in ("amd64", "arm64")]
    return next((one for one in answers if isinstance(one, ResolvedBuild)), answers[0])


def _why_no_upgrade(has: InstalledArtifact) -> str:
    if has.uri:
        return f"{has.name} was installed from {has.uri} on that machine, and is upgraded there"
    return f"no gallery has {has.name}, and where it was installed from is not known"


def _meta_of(readings: Sequence[Reading], build: str) -> str:
    """The meta backend that names this build; the first in the galleries' order."""
    metas = (entry for reading in readings for entry in reading.index.entries if entry.meta)
    return next((meta.name for meta in metas if build in (name for _, name in meta.capabilities)), "")


def _build(uri: str, node: Node) -> Build | None:
    machine = machine_of(node)
    return Build(uri, machine.platform if machine.architecture else "") if uri else None


def _distinct(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))

"""What administrators can do with operations: submit, list, show, pause, cancel, retry, dismiss. No call
waits for a node."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import anyio

from remuda.core import limits
from remuda.core.batching import Batcher, BatchLimits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Conflict, Invalid, NotFound, Rejected
from remuda.core.ids import NodeId
from remuda.fleet.health import Standing
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import BackendInventory, ObservedNode
from remuda.gallery.model import Reading, galleries_to_json
from remuda.gallery.sources import GalleryView
from remuda.ops import targets
from remuda.ops.external_sources import external
from remuda.ops.model import Kind, Operation, OpId, RollOut, Source, State, Step, Wish
from remuda.ops.planning import observe
from remuda.ops.ports import UNCOUNTED, Figures, Filter, InventoryLister, OpSignal, OpStore, Pinner, View
from remuda.ops.progress import Overlay, overlaid
from remuda.ops.selection import ALL, Selection, installed_under, nodes_to_ask
from remuda.ops.steps import already_done
from remuda.ops.targets import OperationPlan, PlanningContext, WantedOperation
from remuda.ops.upgrade_check import pin_all
from remuda.ops.upgrades import BadVersions, Upgrade, bad_versions, without_bad


class Books(OpStore, Protocol):
    async def inventories(self) -> Sequence[BackendInventory]:
        """What workers without reports answered when they were asked last, all of them."""
        ...

    async def tried(self) -> Sequence[tuple[Step, datetime]]:
        """The steps of upgrades that could not start a new version, and those that could since; with when."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """`at_once`: nodes of one operation. `batch`: the same in a roll-out with a canary, after the canary."""

    at_once: int = 64
    batch: int = 4
    local_sources: bool = False


@dataclass(frozen=True, slots=True)
class OperationRequest:
    kind: Kind
    source: Source
    selection: Selection = ALL
    by: str = ""
    rolling: bool = False  # With a canary, and each node proves itself.
    batch: int | None = None
    expires_in: timedelta | None = None
    idempotency_key: str = ""
    concrete_for_all: bool = False  # A build for certain hardware goes to all nodes it fits.
    force: bool = False  # Of an upgrade: also to a version that failed to start, and where nothing is newer.


@dataclass(frozen=True, slots=True)
class Accepted:
    view: View
    joined: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefusedUpgrade:
    backend: str
    error: Rejected


class Operations:
    """`changed` wakes the reconcilers, here and on other frontends."""

    def __init__(
        self,
        store: Books,
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        galleries: GalleryView,
        pinner: Pinner,
        lister: InventoryLister,
        board: Overlay,
        *,
        clock: Clock,
        entropy: Entropy,
        policy: Policy,
        signal: OpSignal,
        figures: Figures = UNCOUNTED,
    ) -> None:
        self._store = store
        self._standings = standings
        self._galleries = galleries
        self._pinner = pinner
        self._lister = lister
        self._board = board
        self._clock = clock
        self._entropy = entropy
        self._policy = policy
        self._signal = signal
        self._figures = figures
        self._node_views = ObservedNodes()
        turn = anyio.Lock(fast_acquire=True)
        self._looks = Batcher(
            self._look_at_fleet,
            lambda: turn,
            BatchLimits(limits.OPERATIONS_WAITING_MAX, limits.OPERATIONS_WAITING_MAX),
        )

    @property
    def board(self) -> Overlay:
        return self._board

    def now(self) -> datetime:
        return self._clock.now()

    # Asking.

    async def plan(self, request: OperationRequest) -> OperationPlan:
        """What would be done, and what to know before. Nothing is where what is wanted is there already."""
        plan, _ = await self._planned(request, OpId(self._entropy.uuid()))
        if request.kind is Kind.REMOVE:
            return plan
        nodes, now = {node.standing.node.id: node for node in await self.nodes()}, self._clock.now()

        def as_it_is(step: Step) -> Step:
            return already_done(step, observe(step, nodes.get(step.node), None, None, now)) or step

        drafts = tuple(replace(draft, step=as_it_is(draft.step)) for draft in plan.drafts)
        return replace(plan, drafts=drafts)

    async def submit(self, request: OperationRequest) -> Accepted:
        """Record what is wanted. The same wish under way, or sent before under its key, is joined."""
        op = OpId(self._entropy.uuid())
        plan, wanted = await self._planned(request, op)
        now = self._clock.now()
        operation = Operation(
            op,
            wanted.kind,
            wanted.source,
            wanted.roll_out,
            asked_by=request.by,
            asked_at=now,
            expires=None if request.expires_in is None else now + request.expires_in,
            idempotency_key=request.idempotency_key,
            selection=str(request.selection),
        )
        steps = [replace(draft.step, expires=operation.expires) for draft in plan.drafts]
        submitted = await self._store.submit(operation, steps)
        if not submitted.joined:
            self._figures.submitted(operation.kind)
        self._signal.notify()
        view = overlaid(submitted.view, self._board, self._clock.now())
        return Accepted(view, submitted.joined, plan.warnings)

    async def _planned(self, request: OperationRequest, op: OpId) -> tuple[OperationPlan, WantedOperation]:
        if not request.source.backend and not request.source.uri:
            raise Invalid("backend: must not be empty")
        try:
            return await self._planned_by(request, op, afresh=False)
        except NotFound:
            if request.source.uri:
                raise
        # An index may be older than the name.
        return await self._planned_by(request, op, afresh=True)

    async def _planned_by(
        self, request: OperationRequest, op: OpId, *, afresh: bool
    ) -> tuple[OperationPlan, WantedOperation]:
        source, readings = request.source, tuple[Reading, ...]()
        if request.kind is Kind.INSTALL and source.uri:  # The same wish, whichever of its names were given.
            source = external(source, local_sources=self._policy.local_sources).source
        nodes = await self.nodes()
        if request.kind is not Kind.INSTALL or not source.uri:  # No gallery has a say in a plain reference.
            readings = await self._galleries.readings(source.galleries, afresh=afresh)
        if not source.uri and not source.galleries:
            # Whole, so that a retry next week means the same galleries.
            source = replace(source, galleries=galleries_to_json(tuple(one.gallery for one in readings)))
        wanted = WantedOperation(
            request.kind,
            source,
            request.selection,
            self._roll_out(request),
            request.concrete_for_all,
            force=request.force and request.kind is Kind.UPGRADE,
        )
        context = PlanningContext(tuple(nodes), readings, self._policy.local_sources)
        drafted = targets.plan(wanted, context, op)
        planned = targets.pinned(drafted, await pin_all(self._pinner, drafted.builds))
        if request.kind is Kind.INSTALL:
            planned = await self._starting_again(planned, nodes, source.backend)
        if request.kind is Kind.REMOVE or request.force:
            return planned, wanted
        return without_bad(planned, request.kind, await self.bad_versions()), wanted

    async def _starting_again(
        self, planned: OperationPlan, nodes: Iterable[ObservedNode], backend: str
    ) -> OperationPlan:
        """Looks at the last install of this backend only where a node has the files already."""
        known = {node.standing.node.id: node for node in nodes}
        steps = [draft.step for draft in planned.drafts if draft.step.state is State.PENDING]
        if not any(installed_under(known[step.node], step.goal.names) for step in steps):
            return planned
        installs = frozenset({Kind.INSTALL})
        which = Filter(finished=True, kinds=installs, backend=backend, history=True, limit=1)
        last = [step for view in await self._store.views(which) for step in view.steps]
        return targets.starting_again(planned, last)

    def _roll_out(self, request: OperationRequest) -> RollOut:
        if request.rolling and request.kind is not Kind.UPGRADE:
            raise Invalid("roll_out: only upgrades are rolled out with a canary")
        if request.rolling:
            return RollOut(request.batch or self._policy.batch, canary=True, proves=True)
        return RollOut(request.batch or self._policy.at_once)

    async def upgrade_all(
        self, upgrades: Iterable[Upgrade], by: str, *, rolling: bool = False, batch: int | None = None
    ) -> tuple[list[Accepted], list[RefusedUpgrade]]:
        """One operation per backend, on every node that has it; and why some cannot be upgraded after all."""
        accepted: list[Accepted] = []
        refused: list[RefusedUpgrade] = []
        for one in upgrades:
            request = OperationRequest(Kind.UPGRADE, Source(one.backend), by=by, rolling=rolling, batch=batch)
            try:
                accepted.append(await self.submit(request))
            except Rejected as error:  # One that cannot be done does not keep others from being done.
                refused.append(RefusedUpgrade(one.backend, error))
        return accepted, refused

    # Looking.

    async def bad_versions(self) -> BadVersions:
        """Those that failed to start when they were rolled out."""
        return bad_versions(await self._store.tried())

    async def nodes(self) -> list[ObservedNode]:
        """The fleet as operations see it. Nodes that tell nothing by themselves are asked, for next time.
        Callers that come meanwhile share the next look."""
        return await self._looks.ask(None)

    async def _look_at_fleet(self, askers: Sequence[None]) -> Sequence[list[ObservedNode]]:
        standings, inventories = await self._standings(), await self._store.inventories()
        nodes = list(self._node_views.of(standings, inventories).values())
        self._lister.want(nodes_to_ask(nodes))
        return [sorted(nodes, key=lambda node: node.standing.node.name)] * len(askers)

    async def readings(self) -> tuple[Reading, ...]:
        return await self._galleries.readings()

    async def look(self, *, afresh: bool = False) -> tuple[list[ObservedNode], tuple[Reading, ...]]:
        """The fleet, and what galleries offer; `afresh`: whatever copies there are."""
        return await self.nodes(), await self._galleries.readings(afresh=afresh)

    async def view(self, op: OpId) -> View:
        """NotFound for an unknown one."""
        return overlaid(await self._store.view(op), self._board, self._clock.now())

    async def views(self, which: Filter) -> list[View]:
        now = self._clock.now()
        return [overlaid(view, self._board, now) for view in await self._store.views(which)]

    async def changed_since(self, change: int, limit: int) -> tuple[Sequence[View], int]:
        """As they are stored, by their last change; and the newest change of all."""
        return await self._store.changed_since(change, limit)

    # Changing one's mind.

    async def wish(self, op: OpId, wish: Wish) -> View:
        """Cancel, pause or go on. NotFound for an unknown one; Conflict for one that is over."""
        operation = (await self._store.view(op)).operation
        if operation.wish is Wish.CANCEL and wish is not Wish.CANCEL:
            raise Conflict(f"operation {op} is being cancelled", hint="retry it when it has finished")
        await self._store.wish(op, wish)
        self._signal.notify()
        return await self.view(op)

    async def retry(self, op: OpId, nodes: Sequence[str], by: str) -> View:
        """Begin failed steps afresh: those of these nodes, by name or id, or all."""
        meant = await self._meant(op, nodes) if nodes else None
        await self._store.retry(op, meant, by)
        self._signal.notify()
        return await self.view(op)

    async def _meant(self, op: OpId, nodes: Sequence[str]) -> Collection[NodeId]:
        """Nodes are meant as the operation knows them: one may have been renamed since."""
        steps = (await self._store.view(op)).steps
        known = {name: step.node for step in steps for name in (step.node, step.node_name)}
        unknown = [name for name in nodes if name not in known]
        if unknown:
            raise Invalid(f"operation {op} does not involve {', '.join(unknown[:5])}")
        return {known[name] for name in nodes}

    async def dismiss(self, op: OpId) -> None:
        """Put a finished operation away. The history keeps it."""
        await self._store.dismiss([op])
        self._signal.notify()

    async def clear_history(self) -> None:
        """Put all finished operations away, and out of the history."""
        await self._store.clear_history()
        self._signal.notify()

"""Places one more replica of a model, and records that it is to be loaded there."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from anyio.lowlevel import checkpoint

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.ids import MachineId, NodeId, ReplicaKey
from remuda.core.slices import Sliced, T
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Reading
from remuda.models.files import NeededFile
from remuda.ops.model import OpId, ReplicaTarget, Source, UnloadCause, UnloadReason
from remuda.ops.ports import OpSignal
from remuda.scheduler.backend_supply import NOWHERE, Supply, SupplyBook
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.demand import NO_NODE
from remuda.scheduler.disk_room import FilesInFleet
from remuda.scheduler.eviction import FIRST, Turn, groups_of, spares
from remuda.scheduler.facts import PlacementFacts, ReportPaths
from remuda.scheduler.file_room import FileRoom
from remuda.scheduler.measured_memory import MemoryBook
from remuda.scheduler.measured_speed import RateBook
from remuda.scheduler.model import (
    FilesTold,
    ModelFit,
    Need,
    NodeFit,
    NodeOffer,
    Placed,
    Replica,
    Replicas,
    ReplicaState,
    Unplaceable,
    load_operation,
)
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import place
from remuda.scheduler.plans import ReplicaPlan, replica_plan
from remuda.scheduler.ports import ReplicaStore, RoutingTable
from remuda.scheduler.ranking import NO_WISHES, NodeWishes
from remuda.scheduler.refusals import RefusalBook
from remuda.scheduler.shortlist import SupplyFacts, best_place
from remuda.scheduler.unloader import UnloadRequests

log = structlog.get_logger(__name__)

Supplies = Mapping[NodeId, Supply]
ReadNeeded = Callable[[Catalogued, Sequence[ObservedNode]], Awaitable[Sequence[NeededFile]]]
ReadFleet = Callable[[], Awaitable[tuple[Sequence[ObservedNode], Sequence[Reading]]]]


@dataclass(frozen=True, slots=True)
class PlacementInputs:
    """What placing goes by. `here` are this machine's own workers: our folder of models is theirs. `shared`:
    it is for all nodes. `checks_disk`: a disk that is too full for a backend is a reason. `frontend` is this
    one: nodes that it cannot dial are left out, whatever other frontends can. `needed` are a model's files,
    with who has them; None: only this frontend's folder counts."""

    read_fleet: ReadFleet
    in_flight: Callable[[ReplicaKey], int]
    here: Collection[MachineId] = field(default=frozenset())
    shared: bool = False
    checks_disk: bool = True
    frontend: str = ""
    needed: ReadNeeded | None = None
    room: FileRoom | None = None  # For files of models; None: nothing is removed for them.
    memory: Callable[[], MemoryBook] = MemoryBook  # What replicas were seen to take.
    speeds: Callable[[], RateBook] = RateBook  # How fast nodes were seen to be.


class ReplicaPlacer:
    """Implements scheduler.demand.Placer. A new replica to load is a row and an operation: `table` and
    `signal` tell all frontends of both."""

    def __init__(
        self,
        store: ReplicaStore,
        catalogue: ModelCatalogue,
        by: PlacementInputs,
        unloads: UnloadRequests,
        *,
        clock: Clock,
        entropy: Entropy,
        table: RoutingTable,
        signal: OpSignal,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._by = by
        self._unloads = unloads
        self._clock = clock
        self._entropy = entropy
        self._table = table
        self._signal = signal
        self._paths = ReportPaths()
        self._supplies = SupplyBook()
        self._refusals = RefusalBook()

    async def begin(
        self,
        model: Catalogued,
        by: str,
        avoid: Mapping[NodeId, str] = NO_NODE,
        *,
        turn: Turn = FIRST,
        wanted: Callable[[Replicas], bool] | None = None,
        wishes: NodeWishes = NO_WISHES,
    ) -> Replica | Unplaceable | None:
        """`wanted`: of what is seen when it is placed, whether there is still one too few; then others of the
        model may be on their way beside it."""
        survey = await self._survey(model, avoid, turn=turn, wishes=wishes)
        placed = survey.placed
        if wanted is not None and not wanted(survey.seen):
            return None
        if isinstance(placed, Unplaceable):
            return placed
        try:
            claimed = await self._claim(survey, placed, by, alone=wanted is None)
        finally:  # Also when the caller has left meanwhile: it may have been written.
            self._table.rows_changed()
            self._signal.notify()
        if claimed is not None:
            if placed.copied:
                log.info("model_files_will_be_copied", replica=str(claimed.key), files=placed.copied)
            why = UnloadReason(UnloadCause.MAKES_ROOM, for_replica=claimed.key)
            for row in survey.seen.rows:
                if row.key in placed.evict:
                    await self._unloads.ask(row, by, why)
        return claimed

    async def why_nowhere(self, model: Catalogued) -> Unplaceable | None:
        """Why no node could take it, if that was asked for now; None: one could. Nothing is begun."""
        placed = (await self._survey(model, NO_NODE)).placed
        return placed if isinstance(placed, Unplaceable) else None

    async def fits(self, model: Catalogued, files: Sequence[NeededFile] | None = None) -> ModelFit:
        """Whether each node could take it, as if it was the only one. Nothing is begun. `files`: those of a
        model that is not installed yet."""
        survey = await self._survey(model, NO_NODE, files)
        nodes = [NodeFit(offer, place(survey.need, [offer])) for offer in survey.offers]
        return ModelFit(survey.need, tuple(sorted(nodes, key=lambda one: one.offer.name)))

    async def plan(self, model: Catalogued) -> ReplicaPlan:
        """What one more replica of it would take now. Nothing is begun."""
        survey = await self._survey(model, NO_NODE)
        return replica_plan(survey.need, survey.offers, self._by.speeds())

    async def _survey(
        self,
        model: Catalogued,
        avoid: Mapping[NodeId, str],
        known: Sequence[NeededFile] | None = None,
        *,
        turn: Turn = FIRST,
        wishes: NodeWishes = NO_WISHES,
    ) -> "_Survey":
        seen = await self._store.replicas()
        nodes, readings = await self._by.read_fleet()
        files: Sequence[NeededFile] = ()
        if not self._by.shared:
            files = await self._needed(model, nodes) if known is None else known
        away = sum(file.size for file in files if not file.here)
        need = model.need(_size_elsewhere(nodes, model) or away)
        supply = await _in_turns(self._supplies.of(need.backend, nodes, readings))
        fetched: FilesInFleet | None = None
        if files and self._by.room is not None:
            fetched = await self._by.room.known(nodes, seen.rows)
        fleet = self._facts(nodes, seen, supply, avoid, files, fetched, turn)
        fleet = replace(fleet, wishes=wishes)
        beside = self._known(model, fleet, supply, avoid)
        placed = await _in_turns(best_place(need, fleet, beside, self._refusals))
        if isinstance(placed, Unplaceable) and supply and not any(one.known for one in supply.values()):
            placed = replace(placed, backend_unknown=True)
        return _Survey(need, nodes, seen, supply, placed, fleet, beside)

    async def _needed(self, model: Catalogued, nodes: Sequence[ObservedNode]) -> Sequence[NeededFile]:
        if self._by.needed is None:
            return await self._catalogue.files(model)
        return await self._by.needed(model, nodes)

    def _facts(
        self,
        nodes: Sequence[ObservedNode],
        seen: Replicas,
        supply: Supplies,
        avoid: Mapping[NodeId, str],
        files: Sequence[NeededFile],
        fetched: FilesInFleet | None,
        turn: Turn,
    ) -> PlacementFacts:
        configs = {name: one.config for name, one in self._catalogue.models.items()}
        by = self._by
        return PlacementFacts(
            nodes,
            seen,
            by.in_flight,
            {name for name, config in configs.items() if config.pinned},
            lambda node: avoid.get(node) or supply.get(node, NOWHERE).why_not,
            by.shared,
            by.checks_disk,
            by.frontend,
            files,
            fetched,
            by.memory(),
            spares(configs, seen.rows),
            groups_of(configs),
            turn,
            by.speeds(),
            self._paths,
        )

    def _known(
        self, model: Catalogued, fleet: PlacementFacts, supply: Supplies, avoid: Mapping[NodeId, str]
    ) -> SupplyFacts:
        here: Collection[NodeId] = ()
        if model.here and self._by.here:
            own = (view.standing.node for view in fleet.nodes)
            here = {node.id for node in own if node.machine_id in self._by.here}

        def passing(node: NodeId) -> bool:
            return node in avoid or not supply.get(node, NOWHERE).told

        def complete(offer: NodeOffer) -> NodeOffer:
            of_node = supply.get(offer.node, NOWHERE)
            offer.has_backend, offer.on_cpu, offer.builtin = of_node.has, of_node.on_cpu, of_node.builtin
            if offer.node in here:
                offer.has_file, offer.copied_from = True, ""
            # Bytes that are here would have to be sent there; of others only the node can know.
            offer.may_have_file = offer.files_told is FilesTold.NEVER and not model.here
            if offer.unfit == fleet.unfit(offer.node) and passing(offer.node):
                offer.passing = True
            return offer

        return SupplyFacts(
            lambda node: supply.get(node, NOWHERE), lambda node: node in here, complete, of=model.here
        )

    async def _claim(self, survey: "_Survey", placed: Placed, by: str, *, alone: bool) -> Replica | None:
        need, seen, galleries = survey.need, survey.seen, survey.supply[placed.node].galleries
        node = next(view.standing.node for view in survey.nodes if view.standing.node.id == placed.node)
        key = ReplicaKey(need.model, _free_index(need.model, seen))
        op = OpId(self._entropy.uuid())
        replica = Replica(
            key,
            placed.node,
            ReplicaState.STAGING,
            op,
            need.backend,
            need.revision,
            memory_bytes=placed.memory.vram_bytes if placed.in_vram else placed.memory.ram_bytes,
            ram_beside_bytes=placed.memory.ram_bytes if placed.in_vram else 0,
            in_vram=placed.in_vram,
            parallel=need.parallel,
            gpus=placed.gpus,
            concurrency_groups=tuple(sorted(survey.facts.groups.get(need.model, ()))),
        )
        operation, step = load_operation(
            op,
            ReplicaTarget(key, need.revision),
            Source(need.backend, galleries),
            placed.node,
            node.name,
            by=by,
            now=self._clock.now(),
        )
        return await self._store.claim(replica, operation, step, seen.change, placed.evict, alone=alone)


@dataclass(frozen=True, slots=True)
class _Survey:
    """What was seen when a place was looked for, and what was found."""

    need: Need
    nodes: Sequence[ObservedNode]
    seen: Replicas
    supply: Supplies
    placed: Placed | Unplaceable
    facts: PlacementFacts
    known: SupplyFacts

    @property
    def offers(self) -> Sequence[NodeOffer]:
        """Of all nodes, which takes a while in a large fleet."""
        return [self.known.complete(offer) for offer in offers(self.need, self.facts)]


async def _in_turns(work: Sliced[T]) -> T:
    """The result, with others served between its slices."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await checkpoint()


def _free_index(model: str, seen: Replicas) -> int:
    taken = {row.key.index for row in seen.rows if row.key.model == model}
    return next(index for index in range(len(taken) + 1) if index not in taken)


def _size_elsewhere(nodes: Sequence[ObservedNode], model: Catalogued) -> int:
    """Of its file, as some node tells."""
    reports = (view.report for view in nodes if view.report is not None)
    sizes = (one.size for report in reports for one in report.model_files if one.path == model.config.file)
    return max(sizes, default=0)

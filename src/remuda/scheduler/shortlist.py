"""The best node of a large fleet, found without looking closely at each. Pure.

What is known of a node at a glance says how well it could come out at best. Nodes are looked at in that
order, and no further once one has been found that no other can be better than. The answer is that of `place`
over the offers of all nodes; those are only made where no node fits, for then each has its reason.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Final

from remuda.core.ids import NodeId
from remuda.core.slices import Sliced
from remuda.fleet.model import node_vram_ceiling
from remuda.fleet.verdicts import ObservedNode
from remuda.models.gguf import all_parts
from remuda.scheduler.backend_supply import Supply
from remuda.scheduler.facts import FactsByNode, PlacementFacts
from remuda.scheduler.measured_speed import speed_class
from remuda.scheduler.model import Need, NodeOffer, Placed, Unplaceable
from remuda.scheduler.offers import last_used, offer_of, speed_of, use_of
from remuda.scheduler.placement import Fit, NodeRefusal, look, nowhere
from remuda.scheduler.ranking import Rank, usual_speed

_SLICE: Final = 200  # Glances at nodes between two pauses: about a millisecond.
_OF_AN_OFFER: Final = 20  # It costs as much as so many glances.
_OFFERS: Final = _SLICE // _OF_AN_OFFER


@dataclass(frozen=True, slots=True)
class SupplyFacts:
    """What is known beside the facts: who has the backend, whose files are here, and how an offer is made
    complete by both."""

    supply: Callable[[NodeId], Supply]
    has_files: Callable[[NodeId], bool]
    complete: Callable[[NodeOffer], NodeOffer]


_Looked = tuple[NodeOffer, Fit | NodeRefusal]
_Bound = tuple[Rank, int, int]  # How well it could come out, by how many glances, and which node it is.


def best_place(need: Need, fleet: PlacementFacts, known: SupplyFacts) -> Sliced[Placed | Unplaceable]:
    """Pauses every millisecond or so."""
    glance = Glance(need, fleet, known)
    coming = yield from _at_a_glance(glance, fleet)
    looked: dict[int, _Looked] = {}
    found: tuple[Rank, Fit] | None = None
    steps = 0
    while coming and (found is None or coming[0][0] < found[0]):
        if steps >= _SLICE:
            steps = 0
            yield
        steps += 1
        bound, looks, number = heappop(coming)
        if not looks:
            if better := glance.second(fleet.nodes[number], bound):
                heappush(coming, (better, 1, number))
            continue
        steps += _OF_AN_OFFER
        looked[number] = glance.closely(fleet.nodes[number])
        fit = looked[number][1]
        if isinstance(fit, Fit) and (found is None or fit.rank(glance.usual) < found[0]):
            found = fit.rank(glance.usual), fit
    return (yield from _nowhere(glance, fleet, looked)) if found is None else found[1].placed


def _at_a_glance(glance: "Glance", fleet: PlacementFacts) -> Sliced[list[_Bound]]:
    """The nodes that may do, as a heap."""
    coming: list[_Bound] = []
    for number, view in enumerate(fleet.nodes):
        if best := glance.first(view):
            coming.append((best, 0, number))
        if number % _SLICE == 0:
            yield
    heapify(coming)
    return coming


def _nowhere(glance: "Glance", fleet: PlacementFacts, looked: dict[int, _Looked]) -> Sliced[Unplaceable]:
    """With the reason of each node."""
    for number, view in enumerate(fleet.nodes):
        if number not in looked:
            looked[number] = glance.closely(view)
            if number % _OFFERS == 0:
                yield
    return nowhere([looked[number] for number in range(len(fleet.nodes))])


class Glance:
    """How well a node could come out at best, by what can be had without looking closely."""

    def __init__(self, need: Need, fleet: PlacementFacts, known: SupplyFacts) -> None:
        self.facts = FactsByNode(need, fleet)
        self._need = need
        self._fleet = fleet
        self._known = known
        self._least_vram, self._least_ram = _least(need, fleet)
        self._parts = frozenset(all_parts(need.file)) if need.file else frozenset()
        self._paths = frozenset(file.path for file in fleet.files)
        self._speeds: dict[NodeId, float] = {}
        if fleet.speeds.by_place:
            nodes = [view.standing.node.id for view in fleet.nodes]
            self._speeds = {node: speed_of(need, node, fleet.speeds) for node in nodes}
        self.usual = usual_speed(self._speeds.values())

    def closely(self, view: ObservedNode) -> _Looked:
        offer = self._known.complete(offer_of(self._need, view, self.facts))
        return offer, look(self._need, offer)

    def first(self, view: ObservedNode) -> Rank | None:
        """None: it surely takes none."""
        node, fleet, need = view.standing.node, self._fleet, self._need
        if fleet.unfit(node.id):
            return None
        supply = self._known.supply(node.id)
        figures, ceiling = node.resources, node_vram_ceiling(node)
        vram = figures.total_vram if ceiling is None else ceiling
        in_vram = vram > 0 and not supply.on_cpu and not need.on_cpu
        total = vram if in_vram else figures.total_ram
        size = self._least_vram if in_vram else self._least_ram
        free = min(figures.available_vram if in_vram else figures.available_ram, total)
        if total and size > total:
            return None
        evicts = total > 0 and size > free
        if evicts and not self.facts.rows_on(node.id):
            return None
        return Rank(
            unreached=bool(view.standing.unreached.get(fleet.frontend, "")),
            unwished=fleet.wishes.of(node),
            without_files=0 if self._may_have_files(view) else 1,
            drops_files=False,
            evictions=int(evicts),
            evicted_last_used=0.0,
            without_backend=not supply.has,
            in_ram=not in_vram,
            slowness=self._slowness(node.id, 0),
            busy=0,
            fullness=-((total if evicts else free) - size) if total else 0,
            node=node.id,
        )

    def second(self, view: ObservedNode, best: Rank) -> Rank | None:
        """The same with what takes longer to tell."""
        node, fleet = view.standing.node.id, self._fleet
        rows = self.facts.rows_on(node)
        evictions, used, fullness = 0, 0.0, best.fullness
        if best.evictions:
            evictions, left = self._evictions(view, in_vram=not best.in_ram)
            if evictions > len(rows):
                return None
            used = sorted(last_used(row, fleet.replicas.now) for row in rows)[evictions - 1].timestamp()
            fullness = max(fullness, -left)
        busy = sum(fleet.in_flight(row.key) for row in rows)
        return best._replace(
            evictions=evictions,
            evicted_last_used=used,
            slowness=self._slowness(node, busy),
            busy=busy,
            fullness=fullness,
        )

    def _evictions(self, view: ObservedNode, *, in_vram: bool) -> tuple[int, int]:
        """So many would have to go at least, if all could, and so much room would be left at most then. More
        than there are: even that would not do."""
        figures = view.standing.node.resources
        size = self._least_vram if in_vram else self._least_ram
        lacking = size - (figures.available_vram if in_vram else figures.available_ram)
        rows = self.facts.rows_on(view.standing.node.id)
        freed = sorted((max(sum(use_of(row, view.report)), 1) for row in rows), reverse=True)
        together = [0, *accumulate(freed)]
        count = max(bisect_left(together, lacking), 1)
        return count, together[min(count, len(freed))] - lacking

    def _may_have_files(self, view: ObservedNode) -> bool:
        need, fleet = self._need, self._fleet
        if not need.file or fleet.shared or self._known.has_files(view.standing.node.id):
            return True
        if fleet.paths.have(view, need.file, self._parts):
            return True
        return bool(self._paths) and self._paths <= fleet.paths.of(view)

    def _slowness(self, node: NodeId, busy: int) -> int:
        if not self.usual:
            return 0
        return -speed_class(self._speeds.get(node) or self.usual, busy)


def _least(need: Need, fleet: PlacementFacts) -> tuple[int, int]:
    """The fewest bytes that it takes of VRAM and of RAM, wherever it goes."""
    measured = [
        use.vram_bytes
        for kind, use in fleet.memory.uses.items()
        if kind.hardware and (kind.model, kind.revision) == (need.model, need.revision)
    ]
    vram = min(measured, default=need.use(in_vram=True).vram_bytes)
    return max(min(vram, need.use(in_vram=True).vram_bytes), 1), max(need.use(in_vram=False).ram_bytes, 1)

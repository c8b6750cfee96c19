"""The best node of a large fleet, found without looking closely at each. Pure.

What is known of a node at a glance says how well it could come out at best. Nodes are looked at in that
order, and no further once one has been found that no other can be better than. The answer is that of `place`
over the offers of all nodes; those are only made where no node fits, for then each has its reason.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Final

from remuda.core.ids import NodeId
from remuda.core.slices import Sliced
from remuda.fleet.model import node_vram_ceiling
from remuda.fleet.verdicts import ObservedNode
from remuda.models.gguf import all_parts
from remuda.scheduler.backend_supply import Supply
from remuda.scheduler.eviction import SETTLING, WAITED_LEAST, Turn, turn_of
from remuda.scheduler.facts import FactsByNode, PlacementFacts, is_beside
from remuda.scheduler.measured_memory import MemoryBook
from remuda.scheduler.measured_speed import speed_class
from remuda.scheduler.model import Need, NodeOffer, Placed, Replica, ReplicaState, Unplaceable
from remuda.scheduler.offers import HEARTBEAT_DUE, last_used, offer_of, speed_of, use_of
from remuda.scheduler.placement import Fit, look, refused_by
from remuda.scheduler.ranking import Rank, far_slower, usual_speed
from remuda.scheduler.refusals import Grounded, KnownRefusals, RefusalBook, nowhere

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
    of: object = None  # What `complete` goes by beside the supply.


_Bound = tuple[Rank, int, int]  # How well it could come out, by how many glances, and which node it is.


def best_place(
    need: Need, fleet: PlacementFacts, known: SupplyFacts, refusals: RefusalBook | None = None
) -> Sliced[Placed | Unplaceable]:
    """Pauses every millisecond or so. `refusals` remembers why not from one look to the next."""
    glance, book = Glance(need, fleet, known), refusals or RefusalBook()
    common = (known.of, _common_grounds(need, glance.facts))
    looked: dict[int, Grounded] = {}
    coming = yield from _at_a_glance(glance, fleet, book.of(need.model, common), looked)
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
        closely = glance.closely(fleet.nodes[number])
        if isinstance(closely, Grounded):
            looked[number] = closely
        elif found is None or closely.rank(glance.usual) < found[0]:
            found = closely.rank(glance.usual), closely
    if found is not None:
        book.found_place(need.model)
        return found[1].placed
    yield from _why_not(glance, fleet, looked)
    nodes = {one.refused.node: one for one in looked.values()}
    book.found_none(need.model, common, nodes)
    return nowhere([one.refused for one in looked.values()])


def _at_a_glance(
    glance: "Glance", fleet: PlacementFacts, before: KnownRefusals, looked: dict[int, Grounded]
) -> Sliced[list[_Bound]]:
    """The nodes that may do, as a heap. Those that are known not to are `looked` at already."""
    coming: list[_Bound] = []
    for number, view in enumerate(fleet.nodes):
        if before.nodes and (known := glance.known(view, before)):
            looked[number] = known
        elif best := glance.first(view):
            coming.append((best, 0, number))
        if number % _SLICE == 0:
            yield
    heapify(coming)
    return coming


def _why_not(glance: "Glance", fleet: PlacementFacts, looked: dict[int, Grounded]) -> Sliced[None]:
    """Of all nodes."""
    steps = 0
    for number, view in enumerate(fleet.nodes):
        if number in looked:
            continue
        closely = glance.closely(view)
        if isinstance(closely, Grounded):  # Nothing fits that does not look so at a glance.
            looked[number] = closely
        steps += 1
        if steps % _OFFERS == 0:
            yield


class Glance:
    """How well a node could come out at best, by what can be had without looking closely."""

    def __init__(self, need: Need, fleet: PlacementFacts, known: SupplyFacts) -> None:
        self.facts = FactsByNode(need, fleet)
        self._need = need
        self._fleet = fleet
        self._known = known
        self._least_vram, self._least_ram = _least(need, self.facts.memory)
        self._parts = frozenset(all_parts(need.file)) if need.file else frozenset()
        self._paths = frozenset(file.path for file in fleet.files)
        self._speeds: dict[NodeId, float] = {}
        if fleet.speeds.by_place:
            nodes = [view.standing.node.id for view in fleet.nodes]
            self._speeds = {node: speed_of(need, node, fleet.speeds) for node in nodes}
        self.usual = usual_speed(self._speeds.values())

    def closely(self, view: ObservedNode) -> Fit | Grounded:
        grounds, turn = self._grounds(view), self._fleet.turn
        offer = self._known.complete(offer_of(self._need, view, self.facts))
        found = look(self._need, offer)
        if isinstance(found, Fit):
            return found
        rows = self.facts.rows_on(view.standing.node.id)
        until = _holds_until(rows, turn, self._fleet.replicas.now)
        return Grounded(grounds, until, refused_by(offer, found))

    def known(self, view: ObservedNode, before: KnownRefusals) -> Grounded | None:
        """From the last look, if it has reported nothing new since."""
        node = view.standing.node.id
        return before.still(node, self._grounds(view), self._fleet.replicas.now)

    def _grounds(self, view: ObservedNode) -> object:
        node, known = view.standing.node.id, self._known
        return _node_grounds(view, self.facts, known.supply(node), files_here=known.has_files(node))

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
            crowded=self._crowded(node.id) or (self.facts.spreads and evicts),
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
        return fleet.paths.have(view, need.file, self._parts, self._paths)

    def _crowded(self, node: NodeId) -> bool:
        if not self.facts.spreads:
            return False
        beside = any(is_beside(row, self._need.model) for row in self.facts.rows_on(node))
        return beside or far_slower(self._speeds.get(node, 0.0), self.usual)

    def _slowness(self, node: NodeId, busy: int) -> int:
        if not self.usual:
            return 0
        return -speed_class(self._speeds.get(node) or self.usual, busy)


def _least(need: Need, memory: MemoryBook) -> tuple[int, int]:
    """The fewest bytes that it takes of VRAM and of RAM, wherever it goes."""
    measured = [use.vram_bytes for kind, use in memory.uses.items() if kind.hardware]
    vram = min(measured, default=need.use(in_vram=True).vram_bytes)
    return max(min(vram, need.use(in_vram=True).vram_bytes), 1), max(need.use(in_vram=False).ram_bytes, 1)


# Grounds: what the reason why a node cannot take it is concluded from. As long as they are the same, so is
# the reason. The choice among nodes that fit goes by more, such as speeds and how busy each is.


def _common_grounds(need: Need, facts: FactsByNode) -> object:
    """Of all nodes."""
    fleet = facts.fleet
    return (
        need,
        facts.memory.uses,
        fleet.turn.evicts,
        fleet.turn.waited >= WAITED_LEAST,
        fleet.pinned,
        facts.stays,
        fleet.groups,
        (fleet.shared, fleet.checks_disk, fleet.frontend),
        fleet.files,
        facts.obtainable,
        fleet.fetched and replace(fleet.fetched, rows=()),  # A node's own are among its grounds.
    )


def _node_grounds(view: ObservedNode, facts: FactsByNode, supply: Supply, *, files_here: bool) -> object:
    """Of one node. What comes first is what most often differs."""
    standing, fleet = view.standing, facts.fleet
    node, in_flight = standing.node, fleet.in_flight
    return (
        node,
        [(row.change, row.key, row.last_used, in_flight(row.key) > 0) for row in facts.rows_on(node.id)],
        standing.reachability,
        standing.reasons,
        standing.unreached,
        standing.uncommandable,
        standing.stopped,
        standing.heard_ago >= HEARTBEAT_DUE,
        fleet.unfit(node.id),
        supply,
        files_here,
        node.id in fleet.turn.reserved,
        view.reports,
        view.report,
        view.inventory,
    )


def _holds_until(rows: Sequence[Replica], turn: Turn, now: datetime) -> datetime | None:
    """When one of these may leave that may not yet, by nothing but time; None: none does."""
    loaded = [(row, row.updated_at) for row in rows if row.state is ReplicaState.LOADED and row.updated_at]
    times = [at + SETTLING for _, at in loaded]
    if turn.waited >= WAITED_LEAST:
        times += [at + turn_of(row) for row, at in loaded]
    return min((time for time in times if time > now), default=None)

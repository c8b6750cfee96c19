"""What is missing although it could be had: a replica that a model is always to have, and a model that is
asked for and answers nothing. Both are judged during the storm, by what a look at the world shows.

Seconds count while nothing that all share is in trouble, and from one look to the next a minute at most; of a
model that is asked for, while somebody waits or has just been refused. They begin anew when something is no
longer missing or is wanted otherwise, when the weather made a load fail, and when no machine is left that
could have had it all the while.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remuda.scheduler.model import ReplicaState
from tests.sim.serving.facts import Wanted
from tests.sim.serving.world import GB, ServingWorld
from tests.support.clocks import elapsed_s

if TYPE_CHECKING:
    from tests.sim.serving.workers import ServingWorker
    from tests.support.op_tables import ReplicaRow

# Loads that hang, answers that are lost, and pauses after both.
WITHIN_S = {"minimums_are_restored": 300.0, "no_model_starves": 200.0}
_LOOK_MOST_S = 60.0

Places = frozenset[Hashable]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """That something is missing. `wanted` tells it from another wish for the same."""

    wanted: Hashable
    places: Places  # That could have had it, at each look.
    seconds: float = 0.0


def after(known: Shortfall | None, wanted: Hashable, places: Places, seconds: float) -> Shortfall | None:
    """As of the next look, so many seconds later. None: nobody can be blamed."""
    if known is None or known.wanted != wanted or not (left := known.places & places):
        return Shortfall(wanted, places) if places else None
    return Shortfall(wanted, left, known.seconds + seconds)


class Shortfalls:
    def __init__(self, world: ServingWorld) -> None:
        self._world = world
        self._known: dict[tuple[str, str], Shortfall] = {}
        self._looked_s = 0.0
        self._answered: Counter[str] = Counter()
        self.longest: Counter[str] = Counter()  # In seconds, by claim: for those who choose the bounds.

    def look(self) -> None:
        now_s, was_s = elapsed_s(), self._looked_s
        self._looked_s = now_s
        seconds = min(now_s - was_s, _LOOK_MOST_S * self._world.size.rests.times) if self._calm() else 0.0
        before, self._known = self._known, {}
        for claim, model, wanted, asked in self._missing(before.keys()):
            known = before.get((claim, model))
            found = after(known, wanted, self._places(model, now_s - was_s), seconds if asked else 0.0)
            if found is not None:
                self._known[claim, model] = found
                self.longest[claim] = max(self.longest[claim], int(found.seconds))
                self._judge(claim, model, found)

    def _judge(self, claim: str, model: str, found: Shortfall) -> None:
        if found.seconds > WITHIN_S[claim] * self._world.size.rests.times:
            rows = self._world.serving_claims.rows.values()
            self._world.violated(
                claim, model, *sorted(map(str, found.places)), f"{found.seconds:.0f} s", *rows
            )

    def _calm(self) -> bool:
        """All that the whole fleet shares works."""
        world = self._world
        return world.store_up and world.bus_up and all(one.up and not one.database.cut for one in world.hosts)

    def _missing(self, before: Collection[tuple[str, str]]) -> Iterable[tuple[str, str, Hashable, bool]]:
        """By claim and model; and whether anybody asks for it."""
        claims = self._world.serving_claims
        loaded = Counter(row.key.model for row in claims.rows.values() if claims.runs(row))
        asked = {model for host in self._world.hosts for model, _ in host.open_requests.values()}
        asked |= claims.requests.take_refused()
        for name, fact in claims.models.items():
            wanted = fact.now
            if wanted is None:
                continue
            terms = (wanted.revision, tuple(wanted.selector.items()), wanted.least)
            if loaded[name] < wanted.least:
                yield "minimums_are_restored", name, (*terms, claims.failures[name]), True
            starves = "no_model_starves", name
            if not loaded[name] and (name in asked or starves in before):
                yield *starves, (*terms, claims.failures[name]), name in asked

    # Where it could be.

    def _places(self, model: str, lately_s: float) -> Places:
        wanted = self._world.serving_claims.models[model].now
        rows: dict[str, list[ReplicaRow]] = {}
        for row in self._world.serving_claims.rows.values():
            rows.setdefault(row.node, []).append(row)
        return frozenset(
            (worker.node, worker.life.boot)
            for worker in self._world.workers_there
            if worker.life is not None
            and wanted is not None
            and self._takes(worker, wanted, lately_s)
            and self._has_room(worker, model, rows.get(worker.node, []))
        )

    def _takes(self, worker: "ServingWorker", wanted: Wanted, lately_s: float) -> bool:
        terms = worker.terms.lately(lately_s)
        return (
            worker.reports
            and not worker.isolated
            and worker.node not in self._world.slow_links
            and all(worker.heard.lately(lately_s))
            and all(one.takes_work and one.suit(wanted.selector) for one in terms)
        )

    def _has_room(self, worker: "ServingWorker", model: str, rows: "list[ReplicaRow]") -> bool:
        """Beside all that is not surely free to go, and with no row of the model itself."""
        group = self._world.group_of(model)
        if any(row.key.model == model or (group and self._world.group_of(row.key.model)) for row in rows):
            return False
        in_vram, terms = worker.memory.vram_bytes > 0, worker.terms.now
        whole = terms.vram_bytes if in_vram else worker.memory.ram_bytes
        kept = sum(row.memory_bytes for row in rows if row.in_vram is in_vram and not self._may_go(row))
        return _need(self._world.sizes[model]) <= whole - kept

    def _may_go(self, row: "ReplicaRow") -> bool:
        wanted = self._world.serving_claims.models[row.key.model].now
        declared = row.key.model in self._world.serving_claims.declared
        kept = wanted is None or wanted.least or wanted.pinned or declared
        return row.state is ReplicaState.LOADED and not kept


def _need(file_bytes: int) -> int:
    """Rather too much than too little."""
    return file_bytes + file_bytes // 4 + 2 * GB

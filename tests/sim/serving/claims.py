"""What must hold of replicas, whatever happens. Looked at after every transaction and every load; apart from
the code that is watched. What must hold of requests is in `routing`."""

import json
from collections import Counter
from collections.abc import Collection, Hashable, Iterable

from remuda.core.ids import NodeId, ReplicaKey
from remuda.models.reading import read_model
from remuda.ops.model import OpId
from remuda.scheduler.model import ReplicaState
from remuda.scheduler.scheduling import SchedulingTerms, effective
from tests.sim.ops.claims import Claims
from tests.sim.ops.workers import InHand, SimulatedWorker
from tests.sim.serving.facts import ADMIN, Fact, Wanted
from tests.sim.serving.routing import Routing
from tests.sim.serving.shortfalls import Shortfalls
from tests.sim.serving.workers import Process, ServingWorker
from tests.sim.serving.world import ServingWorld
from tests.support.clocks import elapsed_s
from tests.support.op_tables import ReplicaRow, UnloadRow

_WATCHED = ("models", "model_scheduling", "operations", "replicas")
_ON_ITS_WAY = (ReplicaState.STAGING, ReplicaState.LOADING)
_PLACED_S = 5.0  # From looking at the fleet to having written where a replica goes.
_USE_NOTED_S = 20.0  # From a request until the store knows that its replica was used,
_USE_MISSED_S = 10.0  # and so much of its end may go unnoticed.
_IDLE = "it was not used for a while"
_TOO_MANY = "more replicas were loaded than its model is to have"
_FOR_OTHERS = "makes room for "
_LEAVES = (ReplicaState.LOADED, ReplicaState.UNLOADING)


class ServingClaims(Claims):
    def __init__(self, world: ServingWorld) -> None:
        super().__init__(world)
        self._serving = world
        self.rows: dict[ReplicaKey, ReplicaRow] = {}
        self.models: dict[str, Fact[Wanted | None]] = {name: Fact(None) for name in world.sizes}
        self.requests = Routing(world, self.models)
        self.shortfalls = Shortfalls(world)
        self.failures: Counter[str] = Counter()  # Of loads, by model, that the weather is to blame for.
        self.unloaded: set[OpId] = set()  # Loads whose replicas somebody wanted gone, and was told so.
        self._texts: dict[str, str] = {}
        self._declared: dict[str, str] = {}
        self._scaled: set[str] = set()  # Models whose replicas were ever declared.
        self._unloads_seen = 0
        self._state: Hashable = None  # Of what was looked at last.

    # After a transaction.

    def after_write(self) -> None:
        """Most of what is written concerns no replica."""
        state = self._world.tables.answers.state_of(*_WATCHED)
        if state != self._state:
            self._state = state
            self._look()

    def _look(self) -> None:
        self._note_models()
        self._look_at_unloads()
        rows = {row.key: row for row in self._world.tables.replicas()}
        if rows == self.rows:
            return
        changed = [
            (old, new) for key in rows | self.rows if (old := self.rows.get(key)) != (new := rows.get(key))
        ]
        self.rows = rows
        for old, new in changed:
            self._look_at_row(old, new)
        self._check_one_on_its_way()
        self._check_groups()
        self._check_room()

    def _note_models(self) -> None:
        texts, declared = self._world.tables.models(), self._world.tables.terms()
        if (texts, declared) == (self._texts, self._declared):
            return
        self._texts, self._declared = texts, declared
        for name, fact in self.models.items():
            terms = _terms(declared[name]) if name in declared else None
            config = effective(read_model(texts[name]), terms) if name in texts else None
            fact.becomes(
                None
                if config is None
                else Wanted(
                    config.revision,
                    config.selector,
                    config.min_replicas,
                    config.pinned,
                    0 if config.everywhere else config.max_replicas,
                )
            )
            if config is not None and config.scaled:
                self._scaled.add(name)

    def _look_at_row(self, old: ReplicaRow | None, new: ReplicaRow | None) -> None:
        states = (old.state if old else "-", new.state if new else "gone")
        place = new or old
        assert place is not None, "one of them is there"
        self._world.trace.event("replica", place.key, place.node, ">".join(states), place.instance, place.why)
        if new is not None and (old is None or old.op != new.op):
            self._check_place(new)
            self._check_most(new)
        if new is not None and new.why == _IDLE and (old is None or old.state is not new.state):
            self._check_idle(new)
        if new is not None and old is not None and (old.state, new.state) == _LEAVES:
            self._check_least(old, new)

    def _check_place(self, row: ReplicaRow) -> None:
        worker = self._worker(row)
        assert worker is not None, "only nodes that are there have rows"
        terms = worker.terms.lately(_PLACED_S)
        wanted = [one for one in self.models[row.key.model].lately(_PLACED_S) if one is not None]
        if row.revision not in {model.revision for model in wanted}:
            self._world.violated("what_is_loaded_is_configured", row, wanted)
        if not any(one.takes_work for one in terms):
            self._world.violated("nodes_that_take_no_work_get_no_load", row, terms)
        if not any(one.suit(model.selector) for one in terms for model in wanted):
            self._world.violated("loads_go_where_labels_suit", row, terms, wanted)
        if row.in_vram and self._taken()[row.node, True] > max(one.vram_bytes for one in terms):
            self._world.violated("budgets_are_kept", worker, terms, *self.rows.values())

    def _check_most(self, new: ReplicaRow) -> None:
        """One more is begun only where fewer serve, or are about to, than its model may have; else a person
        asked for that one."""
        wanted = self.models[new.key.model].lately(_PLACED_S)
        if any(one is None or not one.most or one.revision != new.revision for one in wanted):
            return
        most = max(one.most for one in wanted if one is not None)
        same = [
            row
            for row in self.rows.values()
            if (row.key.model, row.revision) == (new.key.model, new.revision)
        ]
        others = [row for row in same if row.key != new.key and self._surely_counts(row, wanted)]
        if len(others) >= most and self._world.tables.asked_by(new.op) != ADMIN:
            self._world.violated("the_most_is_kept", new, most, *others)

    def _surely_counts(self, row: ReplicaRow, wanted: Iterable[Wanted | None]) -> bool:
        """Nobody could take it for gone, nor for one that requests may not be sent to."""
        worker = self._worker(row)
        if (
            worker is None
            or worker.life is None
            or worker.isolated
            or not all(worker.heard.lately(_PLACED_S))
        ):
            return False
        suits = all(
            one.takes_work and wish is not None and one.suit(wish.selector)
            for one in worker.terms.lately(_PLACED_S)
            for wish in wanted
        )
        alive = row.boot in (None, worker.life.boot)
        return suits and alive and (row.state in _ON_ITS_WAY or self.runs(row))

    def _check_least(self, old: ReplicaRow, new: ReplicaRow) -> None:
        """What goes for others, for want of use or as one too many leaves its model its least."""
        wanted = self.models[new.key.model].lately(_PLACED_S)
        if not new.why.startswith(_FOR_OTHERS) and new.why not in (_IDLE, _TOO_MANY):
            return
        if any(one is None or one.revision != old.revision for one in wanted):
            return
        if new.why != _TOO_MANY and all(one is not None and one.pinned for one in wanted):
            self._world.violated("pinned_ones_stay", new)
        least = min(one.least for one in wanted if one is not None)
        same = [row for row in self.rows.values() if row.key.model == new.key.model]
        left = sum(row.state is ReplicaState.LOADED and row.revision == old.revision for row in same)
        if left < least:
            self._world.violated("the_least_stays", new, least, *same)

    def _look_at_unloads(self) -> None:
        for unload in self._world.tables.unloads(self._unloads_seen):
            self._unloads_seen = unload.number
            self._world.trace.event("unload", unload.key, unload.why)
            if unload.why == _IDLE:
                self._check_idle(unload)

    def _check_idle(self, unload: UnloadRow | ReplicaRow) -> None:
        """When it is asked for, and again when nobody is sent there any more."""
        kept_s, times = self._serving.keep_alive.total_seconds(), self._serving.size.rests.times
        noted_s, missed_s = _USE_NOTED_S * times, _USE_MISSED_S * times
        for host, used_s in self.requests.used[unload.key]:
            idle_s = elapsed_s() - used_s
            if noted_s <= idle_s < kept_s - missed_s and host.notes_use_since(used_s):
                self._world.violated("what_is_used_is_kept", unload, f"{idle_s:.1f} s ago through {host.id}")

    def _check_one_on_its_way(self) -> None:
        coming = Counter(row.key.model for row in self.rows.values() if row.state in _ON_ITS_WAY)
        for model, count in coming.items():
            if count > 1 and model not in self._scaled:
                self._world.violated("one_load_at_a_time", model, *self.rows.values())

    def _check_groups(self) -> None:
        """Of models that share a group only one is there, or about to be; the others may still be leaving."""
        there: dict[NodeId, set[str]] = {}
        for row in self.rows.values():
            coming = row.state in _ON_ITS_WAY or (row.state is ReplicaState.LOADED and self.runs(row))
            if coming and self._serving.group_of(row.key.model):
                there.setdefault(row.node, set()).add(row.key.model)
        for node, models in there.items():
            if len(models) > 1:
                self._world.violated("groups_are_kept_apart", node, models, *self.rows.values())

    def _check_room(self) -> None:
        for (node, in_vram), taken in self._taken().items():
            worker = self._serving.workers_by_node[node]
            if taken > (worker.memory.vram_bytes if in_vram else worker.memory.ram_bytes):
                self._world.violated("rows_have_room", worker, in_vram, *self.rows.values())

    def _taken(self) -> Counter[tuple[NodeId, bool]]:
        """By what is there and by what is to come, in the RAM and the VRAM of each node. Rows of what is gone
        take nothing."""
        taken: Counter[tuple[NodeId, bool]] = Counter()
        for row in self.rows.values():
            if row.node in self._serving.workers_by_node and (row.state in _ON_ITS_WAY or self.runs(row)):
                taken[row.node, row.in_vram] += self._serving.true_bytes(row)
        return taken

    def runs(self, row: ReplicaRow) -> bool:
        worker = self._worker(row)
        process = None if worker is None else worker.processes.get(row.key)
        if process is None or row.state is not ReplicaState.LOADED:
            return False
        return row.instance == process.instance if row.instance else bool(process.model)

    def _worker(self, row: ReplicaRow) -> ServingWorker | None:
        return self._serving.workers_by_node.get(row.node)

    @property
    def declared(self) -> Collection[str]:
        """Models of which admins have declared how many replicas they have."""
        return self._declared.keys()

    # When somebody loads a model, and when people want it gone.

    def begins_to_load(self, process: Process, frontend: str) -> None:
        row, worker = self.rows.get(process.key), process.worker
        if row is not None and row.node == worker.node:
            process.memory_bytes, process.in_vram = self._serving.true_bytes(row), row.in_vram
        if worker.resources.available_ram < 0 or worker.resources.available_vram < 0:
            self._world.violated("memory_is_there", worker, *worker.processes.values())
        if process.loaded_by:
            self._world.violated("one_loads_at_a_time", process, process.loaded_by, frontend)
        process.loaded_by = frontend

    def of_model(self, model: str) -> set[OpId]:
        return {row.op for row in self.rows.values() if row.key.model == model}

    def was_unloaded(self, loads: Iterable[OpId]) -> None:
        self.unloaded |= set(loads)

    # Whenever.

    def look_at_everything(self) -> None:
        self.requests.look_at_all()
        self.shortfalls.look()

    # Of backends others have made sure.

    def sent(self, node: NodeId, verb: str, payload: bytes) -> None:
        self._world.trace.event("sent", node, verb)

    def begins(self, worker: SimulatedWorker, hand: InHand) -> None:
        self._world.trace.event("begins", worker, hand.kind, hand.op, hand.attempt)


def _terms(stored: str) -> SchedulingTerms:
    known = json.loads(stored)
    return SchedulingTerms(
        min_replicas=known.get("min_replicas", 0),
        max_replicas=known.get("max_replicas", 0),
        everywhere=known.get("everywhere", False),
        selector=known.get("selector", {}),
    )

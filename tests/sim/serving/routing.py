"""What must hold of requests, whatever happens: where each is sent, that it ends, and that it counts for as
long as it lasts."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from remuda.core.errors import RemudaError
from remuda.core.ids import ReplicaKey
from tests.sim.serving.facts import Fact, Wanted
from tests.sim.serving.turns import Turns
from tests.sim.serving.world import ServingWorld
from tests.support.clocks import elapsed_s

if TYPE_CHECKING:
    from tests.sim.serving.frontends import ServingFrontend
    from tests.sim.serving.workers import Process, ServingWorker

_ENDS_WITHIN_S = 220.0  # Twice: a load, a seat, an answer, and a doubt about who gave it.


class Routing:
    """`models` as they are configured."""

    def __init__(self, world: ServingWorld, models: Mapping[str, Fact[Wanted | None]]) -> None:
        self._world = world
        self._known_s = world.size.rests.known_s
        self._ends_within_s = _ENDS_WITHIN_S * world.size.rests.times
        self._models = models
        self.turns = Turns(world)
        self.answers: Counter[str] = Counter()
        self.used: dict[ReplicaKey, list[tuple[ServingFrontend, float]]] = defaultdict(list)
        self._refused: set[str] = set()  # Models, since that was asked last.
        self._ready: dict[tuple[str, str], str] = {}  # Where a model was last ready, in which life.

    def look_at_all(self) -> None:
        for host in self._world.hosts:
            if host.up and sum(host.held.values()) != host.serving:
                self._world.violated("counts_are_requests", host.id, host.held, host.serving)
            for model, since_s in host.open_requests.values():
                if elapsed_s() - since_s > self._ends_within_s:
                    self._world.violated("every_request_ends", host.id, model, f"since {since_s:.1f}")

    def refused(self, host: "ServingFrontend", model: str, error: RemudaError) -> None:
        self._world.trace.event("refused", host.id, model, error.message)
        self._refused.add(model)
        if not error.message:
            self._world.violated("refusals_have_a_reason", host.id, model, type(error))

    def take_refused(self) -> set[str]:
        taken, self._refused = self._refused, set()
        return taken

    def ready(self, process: "Process", model: str) -> None:
        self._world.trace.event("ready", process, model)
        self._ready[process.address, model] = process.boot

    def sent(self, host: "ServingFrontend", address: str, model: str) -> None:
        self._world.trace.event("request", host.id, address, model)
        boot = self._ready.get((address, model))
        if boot is None:
            self._world.violated("only_who_was_ready_is_asked", host.id, address, model)
            return
        self._note_use(host, address)
        if host.blind_within(self._known_s):
            return
        worker = self._world.machine_of(address)
        self._check_life(host, worker, address, boot)
        self._check_terms(host, worker, address, model)
        self._check_configuration(host, address, model)

    def ended(self, host: "ServingFrontend", address: str, model: str, *, answered: bool) -> None:
        self._note_use(host, address)
        if answered:
            self._world.trace.event("answered", host.id, model)
            self.answers[model] += 1

    def _note_use(self, host: "ServingFrontend", address: str) -> None:
        process = self._world.at(address)
        if process is not None:
            self.used[process.key].append((host, elapsed_s()))

    def _check_life(self, host: "ServingFrontend", worker: "ServingWorker", address: str, boot: str) -> None:
        life = worker.life
        known_s = None if life is None else self._world.begun_at_s.get(life.boot)
        if life is None or life.boot == boot or known_s is None:
            return
        if elapsed_s() - known_s > self._known_s:
            self._world.violated("no_former_life_is_asked", host.id, address, boot, life.boot)

    def _check_terms(
        self, host: "ServingFrontend", worker: "ServingWorker", address: str, model: str
    ) -> None:
        terms = worker.terms.lately(min(self._known_s, elapsed_s() - host.fleet_known_s))
        if not any(one.takes_work for one in terms):
            self._world.violated("nodes_that_take_no_work_are_not_asked", host.id, address, terms)
        wanted = [one for one in self._models[model].lately(self._known_s) if one is not None]
        if wanted and not any(one.suit(model.selector) for one in terms for model in wanted):
            self._world.violated("only_where_labels_suit_is_asked", host.id, address, terms, wanted)

    def _check_configuration(self, host: "ServingFrontend", address: str, model: str) -> None:
        lately = self._models[model].lately(min(self._known_s, elapsed_s() - host.models_known_s))
        revisions = {one.revision for one in lately if one is not None}
        process = self._world.at(address)
        if not revisions:
            self._world.violated("no_removed_model_is_asked", host.id, address, model)
        if process is not None and process.model == model and process.revision not in revisions:
            self._world.violated(
                "no_former_configuration_is_asked", host.id, process, process.revision, revisions
            )

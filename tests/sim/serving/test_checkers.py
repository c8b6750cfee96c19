"""The claims can fail: one decision is broken at a time, and a simulation notices, by the right claim."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import anyio
import pytest
from sqlalchemy import Connection

from remuda.core.errors import NoCapacity
from remuda.core.ids import ReplicaKey
from remuda.fleet.health import Reachability, Standing
from remuda.fleet.verdicts import ObservedNode
from remuda.models.config import ModelConfig
from remuda.models.memory import MemoryUse
from remuda.ops.model import Step
from remuda.router import table
from remuda.router.fairness import ANYONE, FairLine, LinePlace, SeatClaim
from remuda.router.table import Table
from remuda.scheduler import placement, replica_goals
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.loader import _Load
from remuda.scheduler.measured_memory import MemoryBook, MemoryKey
from remuda.scheduler.model import Need, NodeOffer, Replica, Replicas, ReplicaState, StoredModel
from remuda.scheduler.replica_goals import AddReplica, Goals
from remuda.scheduler.replica_placer import ReplicaPlacer
from remuda.scheduler.worker_calls import AnswerMemory, AnswerVerdict, Lists
from remuda.store import ops_attempts
from remuda.store.ops_attempts import RequestHolder
from tests.sim.serving.shortfalls import Shortfall, after
from tests.sim.serving.simulation import run_dense, run_hour, run_seed
from tests.sim.serving.sizes import DENSE
from tests.sim.simulation import Outcome

SEEDS_MOST = 30  # Each begins with a seed that notices, and many others do, too.
_routable, _build, _offered = table._routable, table.build, placement._out_of_the_question
_measured, _join, _for_load = MemoryBook.of, FairLine.join, replica_goals._for_load
_begin = ReplicaPlacer.begin
_refresh, _read, _commit = ModelCatalogue.refresh, ModelCatalogue._read, ops_attempts.commit


async def at_once(*_: object, **__: object) -> None:
    return None


async def for_ever(*_: object, **__: object) -> None:
    await anyio.sleep_forever()


def routed_though_drained(row: Replica, view: ObservedNode, selector: Mapping[str, str]) -> bool:
    undrained = replace(view.standing.node, drained=False)
    return _routable(row, replace(view, standing=replace(view.standing, node=undrained)), selector)


def built_of_any_revision(replicas: Replicas, nodes: object, models: Mapping[str, Any], *more: Any) -> Table:
    rows = (
        replace(row, revision=models[row.key.model].config.revision)
        for row in replicas.rows
        if row.key.model in models
    )
    return _build(replace(replicas, rows=tuple(rows)), nodes, models, *more)  # type: ignore[arg-type]


async def read_once(catalogue: ModelCatalogue) -> None:
    if not catalogue.configured:
        await _refresh(catalogue)


def never_forgotten(catalogue: ModelCatalogue, stored: Sequence[StoredModel]) -> Mapping[str, Catalogued]:
    return {**catalogue.configured, **_read(catalogue, stored)}


def placed_anywhere(need: Need, offer: NodeOffer) -> object:
    return _offered(replace(need, selector={}), offer)


def half_of_it(book: MemoryBook, key: MemoryKey) -> MemoryUse | None:
    use = _measured(book, key)
    return None if use is None else MemoryUse(use.vram_bytes // 2, use.ram_bytes // 2)


def in_order(line: FairLine[Any], item: Any, claim: SeatClaim, *, takes_any: bool = True) -> LinePlace[Any]:
    return _join(line, item, ANYONE, takes_any=takes_any)


def without_most(name: str, config: ModelConfig, *around: Any) -> list[AddReplica]:
    return _for_load(name, config.model_copy(update={"max_replicas": 0}), *around)


def unfit_only_if_away(standing: Standing) -> str:
    return "" if standing.reachability is Reachability.UP else "it is away"


def commit_and_say_that_all_was_written(
    connection: Connection, now: datetime, changes: Sequence[Step], claim: RequestHolder
) -> list[Step]:
    _commit(connection, now, changes, claim)
    return list(changes)


async def write_or_not(load: _Load, after: Replica) -> None:
    load.replica = await load._deps.store.move(load.replica, after) or after


def wait_on(
    lists: Lists, key: ReplicaKey, backend: str, memory: AnswerMemory
) -> tuple[AnswerVerdict, AnswerMemory]:
    return AnswerVerdict.WAIT, memory


async def refused_if_the_second(placer: ReplicaPlacer, model: Any, *given: Any, **named: Any) -> Any:
    if model.config.id == "m1":
        raise NoCapacity("it is not liked")
    return await _begin(placer, model, *given, **named)


def run_longer(seed: int) -> Outcome:
    """For long enough to tell what is late from what never comes."""
    return replace(run_seed(seed, replace(DENSE, storm_s=1800.0)), story="longer")


@dataclass(frozen=True, slots=True)
class Break:
    instead: Mapping[str, Any]  # Whatever stands there, by its name.
    noticed_by: str
    first_seed: int = 0
    live: Callable[[int], Outcome] = run_seed


BREAKS = {
    "memory that was set aside is given away again": Break(
        {"remuda.scheduler.offers._in_ram": lambda *_, **__: 0}, "rows_have_room", first_seed=31
    ),
    "a replica counts as loaded before its model is": Break(
        {"remuda.scheduler.loader._Load._load_model": at_once}, "only_who_was_ready_is_asked"
    ),
    "a worker's former lives are believed in": Break(
        {
            "remuda.router.table._routable": lambda row, *_: row.state is ReplicaState.LOADED,
            "remuda.scheduler.drift._verdict": lambda *_: None,
            "remuda.router.suspects.Suspects.add": lambda *_: None,
        },
        "no_former_life_is_asked",
        first_seed=9,
    ),
    "requests that ended go on counting": Break(
        {"remuda.router.usage.RequestLedger.end": lambda *_: None}, "counts_are_requests"
    ),
    "what nobody knows is left running": Break(
        {"remuda.scheduler.drift._strays": lambda *_: ([], {})}, "everything_settles", first_seed=12
    ),
    "what LocalAI's workers run unknown is left running": Break(
        {"remuda.scheduler.drift._unknown_of_asked": lambda *_: ()},
        "everything_settles",
        first_seed=2,
        live=run_dense,
    ),
    "rows outlive their processes": Break(
        {
            "remuda.scheduler.drift._verdict": lambda *_: None,
            "remuda.scheduler.upkeep_rules.unloads_at": lambda *_: None,
            "remuda.router.suspects.Suspects.add": lambda *_: None,
        },
        "everything_settles",
    ),
    "reports lose their number on the way through the store": Break(
        {
            "remuda.fleet.node_views.numbered": lambda report, stored: report,
        },
        "everything_settles",
        first_seed=2,
    ),
    "rows outlive their loads": Break(
        {
            "remuda.scheduler.upkeep.Upkeep._forget": at_once,
            "remuda.scheduler.loader.Loader._abandon": at_once,
        },
        "no_model_starves",
        first_seed=1,
    ),
    "a peer that has lost an install is waited for": Break(
        {"remuda.scheduler.worker_calls.by_lists": wait_on},
        "no_model_starves",
        first_seed=8,
        live=run_dense,
    ),
    "drained nodes are routed to": Break(
        {"remuda.router.table._routable": routed_though_drained},
        "nodes_that_take_no_work_are_not_asked",
        first_seed=12,
        live=run_dense,
    ),
    "labels of replicas are not looked at again": Break(
        {"remuda.router.table.labels_match": lambda *_: True},
        "only_where_labels_suit_is_asked",
        first_seed=25,
    ),
    "drained nodes get loads": Break(
        {
            "remuda.scheduler.offers.why_no_replicas": unfit_only_if_away,
            "remuda.scheduler.backend_supply.why_no_target": unfit_only_if_away,
        },
        "nodes_that_take_no_work_get_no_load",
        first_seed=7,
    ),
    "models are placed anywhere": Break(
        {"remuda.scheduler.placement._out_of_the_question": placed_anywhere}, "loads_go_where_labels_suit"
    ),
    "VRAM that was set aside is given away again": Break(
        {"remuda.scheduler.offers._in_vram": lambda *_: 0}, "budgets_are_kept"
    ),
    "replicas of former configurations are routed to": Break(
        {
            "remuda.router.live_table.build": built_of_any_revision,
            "remuda.scheduler.upkeep_rules._outdated": lambda *_: None,
        },
        "no_former_configuration_is_asked",
        first_seed=4,
    ),
    "models are read once": Break(
        {"remuda.scheduler.catalogue.ModelCatalogue.refresh": read_once},
        "what_is_loaded_is_configured",
        first_seed=4,
    ),
    "removed models are remembered": Break(
        {"remuda.scheduler.catalogue.ModelCatalogue._read": never_forgotten},
        "what_is_loaded_is_configured",
        first_seed=4,
    ),
    "whoever waits for a load waits for ever": Break(
        {"remuda.router.cold_path.ColdPath.bring": for_ever}, "every_request_ends"
    ),
    "nobody says why there is no room": Break(
        {"remuda.router.cold_path._nowhere": lambda *_: NoCapacity("")},
        "refusals_have_a_reason",
        first_seed=16,
    ),
    "a frontend loads what another has begun": Break(
        {
            "remuda.store.ops_attempts.commit": commit_and_say_that_all_was_written,
            "remuda.scheduler.loader._Load._write": write_or_not,
        },
        "one_loads_at_a_time",
    ),
    "use is not noted": Break(
        {"remuda.store.replicas.SqlReplicaStore.touch": at_once}, "what_is_used_is_kept", first_seed=17
    ),
    "nothing restores a minimum": Break(
        {"remuda.scheduler.replica_keeper.goals": lambda *_: Goals((), (), {})}, "the_least_is_restored"
    ),
    "a minimum is not restored while the storm lasts": Break(
        {"remuda.scheduler.replica_keeper.goals": lambda *_: Goals((), (), {})},
        "minimums_are_restored",
        first_seed=1,
        live=run_hour,
    ),
    "one model finds no place": Break(
        {"remuda.scheduler.replica_placer.ReplicaPlacer.begin": refused_if_the_second},
        "no_model_starves",
        first_seed=1,
        live=run_longer,
    ),
    "minimums and pins are evicted": Break(
        {"remuda.scheduler.offers.staying": lambda *_: frozenset()},
        "the_least_stays",
        live=run_dense,
    ),
    "models that share a group are placed together": Break(
        {"remuda.scheduler.facts.excludes": lambda *_: False},
        "groups_are_kept_apart",
        first_seed=3,
        live=run_dense,
    ),
    "what admins declare is not read": Break(
        {"remuda.scheduler.catalogue.effective": lambda config, terms: config},
        "the_least_stays",
        first_seed=2,
        live=run_dense,
    ),
    "replicas are taken to need half of what was measured": Break(
        {"remuda.scheduler.measured_memory.MemoryBook.of": half_of_it},
        "budgets_are_kept",
        first_seed=9,
        live=run_dense,
    ),
    "more replicas are added than a model may have": Break(
        {"remuda.scheduler.replica_goals._for_load": without_most},
        "the_most_is_kept",
        first_seed=21,
        live=run_dense,
    ),
    "whoever asks for much first is served first": Break(
        {"remuda.router.fairness.FairLine.join": in_order}, "keys_take_turns", first_seed=1, live=run_dense
    ),
    "what is idle stays": Break(
        {"remuda.scheduler.upkeep_rules.unloads_at": lambda *_: None}, "everything_settles", first_seed=1
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_decision_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BREAKS[name]
    for target, instead in broken.instead.items():
        monkeypatch.setattr(target, instead)
    seeds = range(broken.first_seed, broken.first_seed + SEEDS_MOST)
    failures = (str(broken.live(seed).failure) for seed in seeds)
    assert any(failure.startswith(broken.noticed_by) for failure in failures)


def test_seconds_of_what_is_missing_begin_anew_with_another_wish_or_where_it_could_be() -> None:
    here, there = frozenset({"here"}), frozenset({"there"})
    first = after(None, "one", here | there, 10.0)
    assert first is not None
    assert first.seconds == 0.0
    second = after(first, "one", here, 10.0)
    assert second == Shortfall("one", here, 10.0)
    assert after(second, "one", there, 10.0) == Shortfall("one", there)
    assert after(second, "two", here, 10.0) == Shortfall("two", here)
    assert after(second, "one", frozenset(), 10.0) is None

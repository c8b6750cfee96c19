"""What broke schedulers of this kind elsewhere, each as a test by its name."""

from dataclasses import replace

import pytest

from remuda.core.ids import ReplicaKey
from remuda.fleet.identity import NodeTokens
from remuda.fleet.verdicts import ObservedNode
from remuda.models.config import ModelConfig
from remuda.router.table import Configured, Route, build, choose
from remuda.router.usage import RequestLedger
from remuda.scheduler.eviction import WAITED_LEAST, Turn
from remuda.scheduler.model import Placed, Replica, ReplicaState
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import place
from remuda.scheduler.replica_keeper import KeeperDeps, ReplicaKeeper
from remuda.scheduler.scheduling import SchedulingTerms
from remuda.store.scheduling import SqlSchedulingStore
from tests.unit.scheduler.offering import a_need
from tests.unit.scheduler.placers import PlacingRig
from tests.unit.scheduler.rig import GB, NODE, OTHER_NODE, a_model
from tests.unit.scheduler.standing import a_row, a_view, its_process, rows
from tests.unit.scheduler.test_offers import the_fleet

QWEN = ModelConfig(name="qwen", backend="llama-cpp")
TOKENS = NodeTokens("cluster", "shared")


def routes(*there: Replica, config: ModelConfig = QWEN, **nodes: ObservedNode) -> tuple[Route, ...]:
    views = {view.standing.node.id: view for view in nodes.values()}
    current = (replace(row, revision=config.revision) for row in there)
    return build(rows(*current), views, {"qwen": Configured(config)}, TOKENS).models["qwen"].routes


def test_largest_gpu_does_not_get_all_traffic() -> None:
    """Two idle replicas take turns, however much memory is free beside one of them."""
    big = replace(a_view().standing.node.resources, available_vram=20 * GB)
    small = replace(big, available_vram=1 * GB)
    one, other = a_row(), a_row(index=1, on="gpu-2")
    found = routes(
        one,
        other,
        one=a_view("gpu-1", its_process(one), resources=big),
        other=a_view("gpu-2", its_process(other), resources=small),
    )
    ledger, asked = RequestLedger(), list[str]()
    for _ in range(10):
        chosen = choose(found, ledger.load, ledger.last_turn)
        assert chosen is not None
        asked.append(chosen.node_name)
        ledger.begin(chosen)
        ledger.end(chosen)
    assert (asked.count("gpu-1"), asked.count("gpu-2")) == (5, 5)


def test_selector_counts_on_the_warm_path() -> None:
    """It is asked for after the replica was loaded: no request goes there any more."""
    chosen = QWEN.model_copy(update={"selector": {"rack": "1"}})
    row = a_row()
    there = its_process(row)
    assert routes(row, config=chosen, one=a_view("gpu-1", there)) == ()
    assert len(routes(row, config=chosen, one=a_view("gpu-1", there, labels={"rack": "1"}))) == 1


def test_vram_shortage_evicts() -> None:
    """The node has a free slot and nobody is busy: want of memory alone is a reason."""
    view = a_view()
    full = replace(view.standing.node, resources=replace(view.standing.node.resources, available_vram=0))
    there = a_row("idle", gb=8)
    [offer] = offers(
        a_need(6), the_fleet(there, nodes=(replace(view, standing=replace(view.standing, node=full)),))
    )
    found = place(a_need(6), [replace(offer, has_backend=True, has_file=True)])
    assert isinstance(found, Placed)
    assert found.evict == (there.key,)


def test_drained_node_gets_no_requests() -> None:
    row = a_row()
    assert len(routes(row, one=a_view("gpu-1", its_process(row)))) == 1
    assert routes(row, one=a_view("gpu-1", its_process(row), drained=True)) == ()


def test_recycled_port_does_not_answer_for_another_model() -> None:
    """The port of a process that ended is another's by now: its worker tells whose it is."""
    row = a_row()
    other = its_process(replace(row, key=ReplicaKey("bge", 0), instance="i-another"))
    assert other.address == row.address
    assert routes(row, one=a_view("gpu-1", other)) == ()


@pytest.fixture
async def rig() -> PlacingRig:
    made = PlacingRig()
    await made.configure()
    return made


def keeper(rig: PlacingRig) -> ReplicaKeeper:
    store = SqlSchedulingStore(rig.database)
    deps = KeeperDeps(
        rig.replicas, store, rig.catalogue, rig.nodes, rig.placing(), rig.unloads, lambda key: 0, rig
    )
    return ReplicaKeeper(deps)


@pytest.mark.anyio
async def test_long_load_delays_no_other_model(rig: PlacingRig) -> None:
    """One model's load takes 40 minutes. Another's minimum and another's demand are met meanwhile."""
    await rig.configure(a_model("slow", "min_replicas: 1\n"), a_model("soon", "min_replicas: 1\n"))
    for machine in rig.machines:
        machine.files |= {"slow.gguf": GB, "soon.gguf": GB}
    its_keeper = keeper(rig)
    await its_keeper.pass_once()
    begun = {row.key.model: row for row in await rig.rows()}
    assert begun["slow"].state is ReplicaState.STAGING
    soon = begun["soon"]
    assert await rig.replicas.move(soon, replace(soon, state=ReplicaState.LOADED))
    assert isinstance(await rig.placing().begin(rig.model("qwen"), "requests"), Replica)
    await its_keeper.pass_once()
    assert len(await rig.rows()) == 3, "and nothing is begun twice"


@pytest.mark.anyio
async def test_two_frontends_load_no_model_twice(rig: PlacingRig) -> None:
    """Both have looked when neither had written."""
    await SqlSchedulingStore(rig.database).put_scheduling("qwen", SchedulingTerms(min_replicas=1))
    await rig.catalogue.refresh()
    one, other = keeper(rig), keeper(rig)
    await one.pass_once()
    await other.pass_once()
    assert [str(row.key) for row in await rig.rows()] == ["qwen#0"]


@pytest.mark.anyio
async def test_restart_forgets_no_minimum(rig: PlacingRig) -> None:
    """All workers were started anew, and all frontends: no row is true any more, and none says what was
    wanted."""
    await SqlSchedulingStore(rig.database).put_scheduling("qwen", SchedulingTerms(min_replicas=2))
    await rig.catalogue.refresh()
    await keeper(rig).pass_once()
    for row in await rig.rows():
        assert await rig.replicas.remove(row)
    await keeper(rig).pass_once()
    assert {row.node for row in await rig.rows()} == {NODE, OTHER_NODE}


def test_model_in_steady_use_does_not_starve_another() -> None:
    """It is never idle when somebody looks; its turn ends all the same."""
    view = a_view()
    full = replace(view.standing.node, resources=replace(view.standing.node.resources, available_vram=0))
    nodes = (replace(view, standing=replace(view.standing, node=full)),)
    waits = Turn(WAITED_LEAST)
    facts = the_fleet(a_row("steady", gb=8), nodes=nodes, in_flight=lambda key: 3, turn=waits)
    [offer] = offers(a_need(6), facts)
    found = place(a_need(6), [replace(offer, has_backend=True, has_file=True)])
    assert isinstance(found, Placed)

"""As many replicas as are declared are loaded, and no more, however many frontends see to it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from remuda.core.ids import BootId
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Reading
from remuda.ops.model import Kind
from remuda.ops.ports import Filter
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.replica_keeper import KeeperDeps, ReplicaKeeper
from remuda.scheduler.scheduling import SchedulingTerms
from remuda.scheduler.scheduling_edits import SchedulingEdits
from remuda.store.scheduling import SqlSchedulingStore
from tests.support.virtual_ops import time_passes
from tests.unit.scheduler.placers import PlacingRig
from tests.unit.scheduler.rig import NODE, OTHER_NODE, a_model

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig() -> PlacingRig:
    made = PlacingRig()
    await made.configure()
    return made


def keeper(rig: PlacingRig) -> ReplicaKeeper:
    return ReplicaKeeper(
        KeeperDeps(
            rig.replicas,
            SqlSchedulingStore(rig.database),
            rig.catalogue,
            rig.nodes,
            rig.placing(),
            rig.unloads,
            lambda key: rig.busy.get(key, 0),
            rig,
        )
    )


async def declare(rig: PlacingRig, model: str = "qwen", **terms: object) -> SqlSchedulingStore:
    store = SqlSchedulingStore(rig.database)
    await store.put_scheduling(model, SchedulingTerms(**terms))  # type: ignore[arg-type]
    await rig.catalogue.refresh()
    return store


async def test_missing_replicas_are_all_begun_at_once(rig: PlacingRig) -> None:
    """Also while others of the same model are on their way; and a slow one delays no other model."""
    await rig.configure(a_model(more="min_replicas: 2\n"), a_model("tiny", "min_replicas: 1\n"))
    for machine in rig.machines:
        machine.files["tiny.gguf"] = 1
    await keeper(rig).pass_once()
    rows = await rig.rows()
    assert [(str(row.key), row.state) for row in rows] == [
        ("qwen#0", ReplicaState.STAGING),
        ("qwen#1", ReplicaState.STAGING),
        ("tiny#0", ReplicaState.STAGING),
    ]
    assert {row.node for row in rows if row.key.model == "qwen"} == {NODE, OTHER_NODE}
    loads = await rig.operations.views(Filter(kinds=frozenset({Kind.LOAD})))
    assert {view.operation.asked_by for view in loads} == {"remuda"}


async def test_what_an_admin_declares_counts_more_than_the_yaml(rig: PlacingRig) -> None:
    await rig.configure(a_model(more="min_replicas: 2\n"))
    await declare(rig, min_replicas=1)
    await keeper(rig).pass_once()
    assert len(await rig.rows()) == 1
    assert rig.model().config.revision == (await rig.rows())[0].revision


async def test_nothing_is_added_to_a_model_that_another_frontend_has_removed(rig: PlacingRig) -> None:
    await declare(rig, min_replicas=1)
    await rig.models.remove_model("qwen")
    await keeper(rig).pass_once()
    assert await rig.rows() == ()


async def test_two_frontends_add_no_replica_twice(rig: PlacingRig) -> None:
    """Each of them has decided before the other has written."""
    await declare(rig, min_replicas=1)
    one, other = keeper(rig), keeper(rig)
    await one.pass_once()
    assert len(await rig.rows()) == 1
    await other.pass_once()
    assert len(await rig.rows()) == 1
    begun = await rig.placing().begin(rig.model(), "remuda", wanted=lambda seen: not seen.rows)
    assert begun is None


async def test_node_that_is_lost_is_made_up_for(rig: PlacingRig) -> None:
    await declare(rig, min_replicas=1)
    await keeper(rig).pass_once()
    [row] = await rig.rows()
    await rig.replicas.move(row, replace(row, state=ReplicaState.LOADED, boot=BootId("boot-1")))
    lost = next(machine for machine in rig.machines if machine.id == row.node)
    lost.silent_s = 300
    await keeper(rig).pass_once()
    assert {one.node for one in await rig.rows()} == {NODE, OTHER_NODE}


async def test_what_cannot_be_had_is_left_alone_until_the_fleet_changes(rig: PlacingRig) -> None:
    store = await declare(rig, min_replicas=1, selector={"rack": "1"})
    looks = 0
    place = rig.look

    async def look() -> tuple[Sequence[ObservedNode], Sequence[Reading]]:
        nonlocal looks
        looks += 1
        return await place()

    rig.look = look  # type: ignore[method-assign]
    its_keeper = keeper(rig)
    await its_keeper.pass_once()
    await its_keeper.pass_once()
    assert looks == 1
    assert "no label rack=1" in (await store.cooldowns())["qwen"].why
    rig.machine.installed = ("llama-cpp", "another")
    await its_keeper.pass_once()
    assert looks == 2, "what happened on a node may have changed that"
    await store.put_scheduling("qwen", SchedulingTerms(min_replicas=1))
    await rig.catalogue.refresh()
    await its_keeper.pass_once()
    assert len(await rig.rows()) == 1
    await its_keeper.pass_once()
    assert await store.cooldowns() == {}


async def test_replica_on_a_drained_node_is_told_apart_from_those_that_count(rig: PlacingRig) -> None:
    store = await declare(rig, min_replicas=1)
    await rig.loaded("qwen", NODE)
    rig.machine.drained = True
    edits = SchedulingEdits(store, rig.catalogue, rig.replicas, rig.clock, table=rig, nodes=rig.nodes)
    [told] = await edits.scheduled("qwen")
    assert (told.loaded, told.not_counted) == (0, ("gpu-1: drained",))
    await rig.loaded("qwen", OTHER_NODE, 1)
    [told] = await edits.scheduled("qwen")
    assert (told.loaded, told.not_counted) == (1, ("gpu-1: drained",))


async def test_one_on_every_node(rig: PlacingRig) -> None:
    await declare(rig, everywhere=True)
    its_keeper = keeper(rig)
    for _ in range(4):
        await its_keeper.pass_once()
    assert sorted(row.node for row in await rig.rows()) == sorted([NODE, OTHER_NODE])


async def test_load_that_fails_is_begun_again_after_a_pause(rig: PlacingRig) -> None:
    """A model that no backend can load is not loaded all day."""
    store = await declare(rig, min_replicas=1)
    its_keeper = keeper(rig)
    await its_keeper.pass_once()
    [row] = await rig.rows()
    assert await rig.replicas.remove(row)
    await its_keeper.pass_once()
    assert await rig.rows() == ()
    assert "its last load failed" in (await store.cooldowns())["qwen"].why
    await time_passes(11)
    await its_keeper.pass_once()
    [again] = await rig.rows()
    assert (await store.cooldowns())["qwen"].attempts == 1, "until it is loaded"
    assert await rig.replicas.move(again, replace(again, state=ReplicaState.LOADED, boot=BootId("boot-1")))
    await its_keeper.pass_once()
    assert await store.cooldowns() == {}


async def full_of(rig: PlacingRig, *models: str) -> list[Replica]:
    """Each node has memory for one replica, and one of these models is loaded there and pinned."""
    await rig.configure(
        a_model(more="min_replicas: 1\n"), *(a_model(name, "pinned: true\n") for name in models)
    )
    held: list[Replica] = []
    for machine, name in zip(rig.machines, models, strict=True):
        machine.ram_gb = 5.5
        machine.files[f"{name}.gguf"] = 1
        held.append(await rig.loaded(name, machine.id))
    return held


async def test_memory_that_becomes_free_ends_the_wait_for_a_missing_replica(rig: PlacingRig) -> None:
    """By whatever it becomes free: an unload, a crash, an eviction."""
    pinned, _ = await full_of(rig, "one", "two")
    its_keeper, store = keeper(rig), SqlSchedulingStore(rig.database)
    await its_keeper.pass_once()
    assert (
        "one is pinned there; to let one go: remuda models scale one --no-pin"
        in (await store.cooldowns())["qwen"].why
    )
    before = (await store.cooldowns())["qwen"]
    await its_keeper.pass_once()
    assert (await store.cooldowns())["qwen"] == before, "nothing has changed, so nothing is tried"
    await rig.replicas.remove(pinned)
    await its_keeper.pass_once()
    assert [row.node for row in await rig.rows() if row.key.model == "qwen"] == [NODE]


async def test_frontend_that_begins_tries_what_another_was_refused(rig: PlacingRig) -> None:
    """What there was then is not known here, so it may have become free since."""
    pinned, _ = await full_of(rig, "one", "two")
    await keeper(rig).pass_once()
    await rig.replicas.remove(pinned)
    await keeper(rig).pass_once()
    assert [row.node for row in await rig.rows() if row.key.model == "qwen"] == [NODE]

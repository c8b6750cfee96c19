"""A place is found and taken in one go: the replica's row, its operation, and the marks on those that make
room; or nothing is written at all."""

from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest

from remuda.core.errors import Conflict
from remuda.core.ids import ReplicaKey
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.index import read_index
from remuda.gallery.model import Reading
from remuda.gallery.sources import REMUDA, shipped_index
from remuda.ops.model import Kind, ReplicaTarget, UnloadCause, UnloadReason
from remuda.ops.ports import Filter
from remuda.scheduler.model import Replica, ReplicaState, Unplaceable
from tests.support.clocks import START
from tests.unit.ops.fleet import READINGS
from tests.unit.scheduler.placers import PlacingRig
from tests.unit.scheduler.rig import GB, NODE, OTHER_NODE, a_model

pytestmark = pytest.mark.anyio

SETTLED_S = 30.0  # After which whoever waited for a replica has had their turn.


@pytest.fixture
async def rig() -> PlacingRig:
    made = PlacingRig()
    await made.configure()
    return made


async def begun(rig: PlacingRig, model: str = "qwen") -> Replica:
    replica = await rig.placing().begin(rig.model(model), "ada")
    assert isinstance(replica, Replica)
    return replica


async def refused(rig: PlacingRig, model: str = "qwen") -> Unplaceable:
    answer = await rig.placing().begin(rig.model(model), "ada")
    assert isinstance(answer, Unplaceable)
    return answer


async def test_replica_is_recorded_with_the_operation_that_loads_it(rig: PlacingRig) -> None:
    replica = await begun(rig)
    assert await rig.rows() == (replica,)
    assert (replica.state, replica.key) == (ReplicaState.STAGING, ReplicaKey("qwen", 0))
    assert replica.memory_bytes >= 4 * GB, "what nodes tell of its file counts"
    view = await rig.operations.view(replica.op)
    operation, [step] = view.operation, view.steps
    assert (operation.kind, operation.asked_by) == (Kind.LOAD, "ada")
    assert (step.node, step.target) == (
        replica.node,
        ReplicaTarget(ReplicaKey("qwen", 0), rig.model().config.revision),
    )
    assert rig.changes == 1


async def test_what_is_set_aside_for_one_is_not_there_for_the_next(rig: PlacingRig) -> None:
    for name in ("other", "third"):
        await rig.configure(a_model(name))
        for machine in rig.machines:
            machine.files[f"{name}.gguf"] = 40 * GB
    rig.machines[1].ram_gb = 8
    assert (await begun(rig, "other")).node == NODE
    assert (await begun(rig)).node == NODE, "64 GB have room for both"
    reasons = (await refused(rig, "third")).reasons
    assert "of RAM, 9.9 GiB free" in reasons["gpu-1"], "as far as nobody is on its way there"
    assert "7.5 GiB available" in reasons["gpu-2"]
    assert len(await rig.rows()) == 2


async def test_idle_replica_that_makes_room_is_marked_and_asked_to_go(rig: PlacingRig) -> None:
    await rig.configure(a_model("big"))
    rig.machines.pop(1)
    rig.machine.files["big.gguf"] = 50 * GB
    old = await rig.loaded()
    rig.machine.used_gb = 4
    await anyio.sleep(SETTLED_S)
    replica = await begun(rig, "big")
    going = await rig.row()
    makes_room = UnloadReason(UnloadCause.MAKES_ROOM, for_replica=ReplicaKey("big", 0))
    assert (going.state, going.why) == (ReplicaState.UNLOADING, makes_room)
    assert going.change == replica.change, "in the same transaction"
    views = await rig.operations.views(Filter(finished=False))
    unloads = [view.operation for view in views if view.operation.kind is Kind.UNLOAD]
    assert [one.target for one in unloads] == [ReplicaTarget(going.key, going.revision, makes_room)]
    assert old.key == going.key


async def test_busy_replica_makes_no_room(rig: PlacingRig) -> None:
    await rig.configure(a_model("big"))
    rig.machines.pop(1)
    rig.machine.files["big.gguf"] = 50 * GB
    old = await rig.loaded()
    rig.machine.used_gb = 4
    await anyio.sleep(SETTLED_S)
    rig.busy[old.key] = 1
    answer = await refused(rig, "big")
    assert answer.waiting_helps
    assert "and qwen is in use; try again later" in answer.reasons["gpu-1"]
    assert (await rig.row()).state is ReplicaState.LOADED


async def test_groups_of_a_removed_model_count_while_its_replica_runs(rig: PlacingRig) -> None:
    rig.machines.pop(1)
    for name in ("first", "second"):
        await rig.configure(a_model(name, "concurrency_groups: [big]\n"))
        rig.machine.files[f"{name}.gguf"] = GB
    await begun(rig, "first")
    await rig.models.remove_model("first")
    await rig.catalogue.refresh()
    why = (await refused(rig, "second")).reasons["gpu-1"]
    assert "first is being loaded, and shares a concurrency group with second" in why


async def test_picture_that_is_old_by_the_time_of_the_claim_writes_nothing(
    rig: PlacingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.configure(a_model("other"))
    looked = rig.look

    async def look_while_others_write() -> tuple[Sequence[ObservedNode], Sequence[Reading]]:
        found = await looked()
        await rig.claimed("other")
        return found

    monkeypatch.setattr(rig, "look", look_while_others_write)
    assert await rig.placing().begin(rig.model(), "ada") is None
    assert [row.key.model for row in await rig.rows()] == ["other"]


async def test_model_that_is_being_loaded_is_not_placed_again(rig: PlacingRig) -> None:
    await begun(rig)
    with pytest.raises(Conflict, match="is being loaded already"):
        await rig.placing().begin(rig.model(), "ada")


async def test_second_replica_gets_the_next_number_and_another_node(rig: PlacingRig) -> None:
    first = await rig.loaded(node=OTHER_NODE)
    second = await begun(rig)
    assert (second.key.index, second.node) == (1, NODE)
    assert await rig.replicas.remove(first)


async def test_number_that_is_free_again_is_used_again(rig: PlacingRig) -> None:
    for index, node in ((0, NODE), (1, OTHER_NODE)):
        await rig.loaded(index=index, node=node)
    assert await rig.replicas.remove((await rig.rows())[0])
    assert (await begun(rig)).key.index == 0


async def test_reasons_are_told_for_every_node(rig: PlacingRig) -> None:
    rig.machines[0].files = {}
    rig.machines[1].silent_s = 600
    reasons = (await refused(rig)).reasons
    assert "qwen.gguf was not in its models folder" in reasons["gpu-1"]
    assert reasons["gpu-2"]


async def test_shared_folder_means_that_every_node_has_the_file(rig: PlacingRig) -> None:
    for machine in rig.machines:
        machine.files = {}
    rig.shared = True
    assert isinstance(await rig.placing().begin(rig.model(), "ada"), Replica)


async def test_no_nodes_is_no_reason_at_all(rig: PlacingRig) -> None:
    rig.machines.clear()
    assert (await refused(rig)).reasons == {}


# Which memory, and the disk.


@pytest.mark.parametrize(
    ("builds_for", "more", "in_vram"),
    [("cuda12", "", True), ("cuda12", "gpu_layers: 0\n", False), ("cpu", "", False)],
)
async def test_memory_is_set_aside_where_the_model_will_be(
    rig: PlacingRig, builds_for: str, more: str, in_vram: bool
) -> None:
    await rig.configure(a_model(more=more))
    for machine in rig.machines:
        machine.builds_for, machine.vram_gb = builds_for, 24
    assert (await begun(rig)).in_vram == in_vram


async def test_small_gpu_does_not_keep_the_cpu_from_a_model(rig: PlacingRig) -> None:
    for machine in rig.machines:
        machine.vram_gb = 2
    assert not (await begun(rig)).in_vram


def fresh_and_full(rig: PlacingRig) -> None:
    for machine in rig.machines:
        machine.installed, machine.disk_full = (), True


async def test_engine_that_ships_with_remuda_goes_also_where_the_disk_is_full(rig: PlacingRig) -> None:
    fresh_and_full(rig)
    rig.readings = [Reading(REMUDA, read_index(shipped_index()), confirmed_at=START)]
    assert (await begun(rig)).state is ReplicaState.STAGING


async def test_disk_is_no_reason_once_its_check_is_off(rig: PlacingRig) -> None:
    fresh_and_full(rig)
    rig.readings = READINGS
    assert "--no-distributed-disk-headroom-check" in (await refused(rig)).reasons["gpu-1"]
    rig.checks_disk = False
    assert (await begun(rig)).state is ReplicaState.STAGING


async def test_file_that_is_only_here_keeps_a_model_from_a_peer_without_reports(rig: PlacingRig) -> None:
    rig.machines[0].reports = False
    rig.machines.pop(1)
    rig.readings = READINGS
    answer = await rig.placing().begin(replace(rig.model(), here=True), "ada")
    assert isinstance(answer, Unplaceable)
    assert "--distributed-shared-models" in answer.reasons["gpu-1"]


async def test_file_that_is_not_here_may_be_on_a_peer_without_reports(rig: PlacingRig) -> None:
    rig.machines[0].reports = False
    rig.machines.pop(1)
    rig.readings = READINGS
    assert (await begun(rig)).node == NODE


async def test_node_that_tells_of_the_file_comes_before_one_that_may_have_it(rig: PlacingRig) -> None:
    rig.machines[0].reports = False
    rig.readings = READINGS
    assert rig.machines[1].files
    assert (await begun(rig)).node == OTHER_NODE

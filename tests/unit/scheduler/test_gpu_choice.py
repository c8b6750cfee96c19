"""Several GPUs in one node are several memories: a model goes to one, or is divided among the fewest."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import ReplicaKey
from remuda.models.memory import GPU_PROCESS_BYTES
from remuda.scheduler.model import GpuOffer, NodeOffer, Placed, Resident, Unplaceable
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import place
from remuda.wire.nodes import GpuFigures
from tests.support.nodes import NOON
from tests.unit.scheduler.offering import GB, a_need, a_resident, an_offer
from tests.unit.scheduler.standing import a_row, a_view, ago
from tests.unit.scheduler.test_offers import the_fleet


def two(*residents: Resident, free: tuple[float, float] = (24, 24), **changes: Any) -> NodeOffer:
    """A node with two GPUs of 24 GiB."""
    gpus = tuple(GpuOffer(index, 24 * GB, int(gb * GB)) for index, gb in enumerate(free))
    total = {"vram_total": 48 * GB, "vram_free": sum(gpu.free for gpu in gpus)}
    return an_offer("gpu-1", *residents, **{**total, "gpus": gpus, **changes})


def on(gpu: int, model: str, gb: float, **changes: Any) -> Resident:
    return replace(a_resident(model, gb), gpus=(gpu,), **changes)


def placed(gb: float, offer: NodeOffer, **need: Any) -> Placed:
    found = place(a_need(gb, **need), [offer])
    assert isinstance(found, Placed), found
    return found


def test_model_goes_to_the_gpu_with_most_room() -> None:
    assert placed(6, two(free=(8, 20))).gpus == (1,)
    assert placed(6, two(free=(20, 8))).gpus == (0,)


def test_free_memory_of_two_gpus_is_not_room_for_one_that_cannot_be_divided() -> None:
    """Added up there is enough, and nobody is there to go."""
    refused = place(a_need(30), [two()])
    assert isinstance(refused, Unplaceable)
    assert "24.0 GiB available" in refused.reasons["gpu-1"]


def test_model_that_its_engine_divides_is_divided_only_if_it_must() -> None:
    assert placed(20, two(), splits=True).gpus == (0,)
    assert placed(30, two(), splits=True).gpus == (0, 1)
    whole = 48 - GPU_PROCESS_BYTES / GB
    assert isinstance(place(a_need(whole + 0.1, splits=True), [two()]), Unplaceable), "a context on each"


def test_only_what_is_on_the_gpu_goes() -> None:
    """The other one's has not been used for longer, and its going would free nothing here."""
    there = on(0, "old", 20, last_used=NOON - timedelta(hours=9)), on(1, "new", 10)
    offer = two(*there, free=(0, 14))
    assert placed(22, offer).evict == (ReplicaKey("new", 0),)
    assert placed(22, offer).gpus == (1,)
    stays = two(there[0], on(1, "new", 10, movable=False), free=(0, 14))
    assert placed(18, stays).evict == (ReplicaKey("old", 0),)


def test_divided_one_frees_its_share_of_each_gpu() -> None:
    wide = replace(a_resident("wide", 20), gpus=(0, 1))
    offer = two(wide, free=(10, 10))
    assert placed(19, offer).evict == (wide.key,)
    refused = place(a_need(23), [two(wide, free=(10, 10))])
    assert isinstance(refused, Unplaceable)


def test_configuration_that_chooses_gpus_is_left_to_it() -> None:
    assert placed(30, two(), chooses_gpus=True).gpus == ()


def test_budget_of_the_node_counts_for_each_choice() -> None:
    refused = place(a_need(20), [two(vram_total=16 * GB, vram_free=16 * GB)])
    assert isinstance(refused, Unplaceable)


def test_cpu_build_uses_none() -> None:
    found = placed(6, two(on_cpu=True, ram_total=64 * GB, ram_free=64 * GB))
    assert (found.in_vram, found.gpus) == (False, ())


free = st.floats(0, 24)
there = st.lists(
    st.builds(
        Resident,
        key=st.builds(ReplicaKey, model=st.sampled_from("abc"), index=st.integers(0, 5)),
        memory_bytes=st.integers(0, 20).map(lambda gb: gb * GB),
        in_vram=st.just(True),
        movable=st.booleans(),
        last_used=st.just(NOON),
        gpus=st.sampled_from([(0,), (1,), (0, 1), ()]),
    ),
    max_size=4,
    unique_by=lambda one: one.key,
)


@given(st.floats(0.5, 50), free, free, there, st.booleans())
def test_no_gpu_is_oversubscribed(
    gb: float, first: float, second: float, residents: list[Resident], splits: bool
) -> None:
    """What is free on the chosen ones, with what is sure to leave them, is enough for the model."""
    offer = two(*residents, free=(first, second))
    found = place(a_need(gb, splits=splits), [offer])
    if not isinstance(found, Placed):
        return
    gone = [one for one in residents if one.key in found.evict]
    assert all(one.movable for one in gone)
    assert len(found.gpus) == 1 or splits
    room = sum(gpu.free for gpu in offer.gpus if gpu.index in found.gpus)
    room += sum(
        max(one.memory_bytes * len({*one.gpus} & {*found.gpus}) // max(len(one.gpus), 1), 1) for one in gone
    )
    assert int(gb * GB) <= room


def test_what_is_on_its_way_is_set_aside_on_its_gpu() -> None:
    figures = tuple(GpuFigures(index=n, total_vram=24 * GB, available_vram=20 * GB) for n in (0, 1))
    view = a_view()
    assert view.report is not None
    view = replace(view, report=view.report.model_copy(update={"gpus": figures}))
    loaded = a_row("old", gb=7, gpus=(0,), updated_at=ago(600))
    coming = a_row("new", gb=5, gpus=(1,), updated_at=NOON)
    wide = a_row("wide", gb=4, gpus=(0, 1), updated_at=NOON)
    [offer] = offers(a_need(1), the_fleet(loaded, coming, wide, nodes=(view,)))
    gb = 10**9
    assert [gpu.free for gpu in offer.gpus] == [20 * GB - 2 * gb, 20 * GB - 7 * gb]

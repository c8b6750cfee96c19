"""What replicas were seen to take, and how the next one is placed by it."""

from dataclasses import replace
from typing import Any

import pytest

from remuda.core.ids import NodeId
from remuda.models.memory import MemoryUse
from remuda.scheduler.facts import PlacementFacts
from remuda.scheduler.measured_memory import (
    MeasuredMemory,
    MemoryBook,
    MemoryKey,
    has_settled,
    kind_of,
    of_kinds,
    reported_use,
)
from remuda.scheduler.model import NodeOffer, Placed, Replica, ReplicaState, Unplaceable
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import place
from remuda.wire.nodes import Report
from tests.support.nodes import NOON
from tests.unit.scheduler.offering import a_cpu_offer, a_need, an_offer
from tests.unit.scheduler.standing import GB, a_row, a_view, its_process, rows

KIND = MemoryKey("qwen", "abc", "sha256:1", "nvidia 9.0")
ROW = a_row(gb=5)


def measured(row: Replica = ROW, **told: Any) -> Report:
    return Report(replicas=(its_process(row, **told),))


# What counts as measured.


def test_ram_of_a_replica_that_was_just_loaded_is_no_measurement_yet() -> None:
    """It fills for a while. What engines take of VRAM is there at once."""
    assert not has_settled(a_row(since_s=5, in_vram=False), NOON)
    assert has_settled(a_row(since_s=61, in_vram=False), NOON)
    assert has_settled(a_row(since_s=5), NOON)


def test_a_replica_takes_what_its_worker_reports_of_that_very_process() -> None:
    assert reported_use(ROW, measured(vram_bytes=7 * GB, ram_bytes=GB)) == MemoryUse(7 * GB, GB)


@pytest.mark.parametrize(
    ("row", "report"),
    [
        pytest.param(ROW, None, id="no report"),
        pytest.param(ROW, measured(), id="its worker does not measure"),
        pytest.param(ROW, measured(ram_bytes=GB), id="of its VRAM nothing is told"),
        pytest.param(ROW, measured(vram_bytes=GB, instance="other"), id="another process"),
        pytest.param(ROW, measured(vram_bytes=GB, state="starting"), id="it is not ready"),
        pytest.param(replace(ROW, state=ReplicaState.LOADING), measured(vram_bytes=GB), id="not loaded yet"),
    ],
)
def test_what_does_not_show_a_loaded_replica_does_not_count(row: Replica, report: Report | None) -> None:
    assert reported_use(row, report) is None


def test_of_two_replicas_of_a_kind_the_larger_counts() -> None:
    other, view = a_row(index=1), a_view()
    (kept,) = of_kinds({ROW: MemoryUse(6, 3), other: MemoryUse(5, 4)}, {NodeId("id-gpu-1"): view})
    assert kept == MeasuredMemory(kind_of(ROW, view), MemoryUse(6, 4))


# What is kept.


def test_what_hardly_grows_is_no_news() -> None:
    book = MemoryBook({KIND: MemoryUse(100 * GB, GB)})
    assert book.news([MeasuredMemory(KIND, MemoryUse(101 * GB, GB))]) == []
    grown = MeasuredMemory(KIND, MemoryUse(103 * GB, GB))
    assert book.news([grown]) == [grown]


def test_another_build_of_the_same_model_is_the_best_guess() -> None:
    book = MemoryBook({KIND: MemoryUse(7 * GB, GB), KIND._replace(hardware=""): MemoryUse(0, 9 * GB)})
    assert book.of(KIND._replace(build="sha256:2")) == MemoryUse(7 * GB, GB)
    assert book.of(KIND._replace(hardware="")) == MemoryUse(0, 9 * GB)
    assert book.of(KIND._replace(revision="newer")) is None


# How it decides.


def test_two_models_that_fit_only_by_the_true_figure_are_placed_together() -> None:
    tight = an_offer(free_gb=5)
    assert isinstance(place(a_need(6.2), [tight]), Unplaceable)
    assert place(a_need(6.2), [replace(tight, measured_in_vram=MemoryUse(4 << 30, 0))]) == Placed(
        NodeId("id-gpu-1"), in_vram=True, memory=MemoryUse(4 << 30, 0)
    )


def test_a_model_that_was_seen_to_take_more_than_expected_does_not_go_where_only_the_estimate_fits() -> None:
    offer = replace(an_offer(free_gb=7), measured_in_vram=MemoryUse(8 << 30, 0))
    refused = place(a_need(6.2), [offer])
    assert isinstance(refused, Unplaceable)
    (why,) = refused.reasons.values()
    assert why.startswith("needs 8.0 GiB of VRAM (measured), 7.0 GiB free")


def test_in_ram_a_smaller_measurement_does_not_count_since_a_replica_fills_it_as_it_works() -> None:
    offer = replace(a_cpu_offer(free_gb=5), measured_in_ram=MemoryUse(0, 1 << 30))
    assert isinstance(place(a_need(6.2), [offer]), Unplaceable)


def test_layers_that_stay_in_ram_need_room_there() -> None:
    need = a_need(on_gpu=MemoryUse(3 << 30, 4 << 30))
    roomy = an_offer(ram_total=32 << 30, ram_free=5 << 30)
    placed = place(need, [roomy])
    assert isinstance(placed, Placed)
    assert placed.memory == MemoryUse(3 << 30, 4 << 30)
    refused = place(need, [replace(roomy, ram_free=3 << 30)])
    assert isinstance(refused, Unplaceable)
    (why,) = refused.reasons.values()
    assert why.startswith("needs 4.0 GiB of RAM beside its VRAM, 3.0 GiB free")


def test_where_vram_is_ram_both_are_one_need() -> None:
    need = a_need(on_gpu=MemoryUse(3 << 30, 4 << 30))
    unified = an_offer(free_gb=6, unified=True, ram_total=24 << 30, ram_free=6 << 30)
    assert isinstance(place(need, [unified]), Unplaceable)
    assert isinstance(place(need, [replace(unified, vram_free=7 << 30)]), Placed)


def the_offer(*replicas: Replica, report: Report | None = None) -> NodeOffer:
    view = a_view(heard_s=10)
    facts = PlacementFacts(
        nodes=(replace(view, report=report),),
        replicas=rows(*replicas),
        in_flight=lambda key: 0,
        pinned=(),
        unfit=lambda node: "",
    )
    [only] = offers(a_need(), facts)
    return only


def test_a_budget_is_charged_what_a_replica_really_takes() -> None:
    offer = the_offer(a_row(gb=5, since_s=30), report=measured(a_row(), vram_bytes=9 * GB))
    (resident,) = offer.residents
    assert (resident.memory_bytes, resident.in_vram) == (9 * GB, True)


def test_ram_beside_a_gpu_is_charged_to_ram() -> None:
    without, with_it = the_offer(), the_offer(replace(a_row(since_s=1), ram_beside_bytes=2 * GB))
    assert without.ram_free - with_it.ram_free == 2 * GB

"""Which nodes a backend fits."""

from remuda.gateway.backend_pages import fits
from tests.unit.ops.fleet import READINGS, a_node

CPU, GPU = a_node("cpu", capability="default"), a_node("gpu", capability="nvidia")


def test_a_meta_backend_fits_where_one_of_its_builds_does() -> None:
    found = fits([CPU, GPU], READINGS)

    assert found["mine@llama-cpp"] == ["cpu", "gpu"]
    assert found["mine@vllm"] == ["gpu"]


def test_nodes_that_are_alike_fit_alike() -> None:
    alike = [a_node(name, capability="nvidia") for name in ("gpu-3", "gpu-1", "gpu-2")]

    assert fits([*alike, CPU], READINGS)["mine@vllm"] == ["gpu-1", "gpu-2", "gpu-3"]


def test_what_ships_with_remuda_fits_no_other_worker() -> None:
    foreign = a_node("peer", foreign=True, capability="default")

    assert fits([CPU, foreign], READINGS)["remuda@llama-cpp"] == ["cpu"]


def test_a_fleet_without_nodes_fits_nothing() -> None:
    assert set(map(tuple, fits([], READINGS).values())) == {()}

"""Which nodes have a backend, which could get it, and why the others could not."""

import pytest

from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.index import read_index
from remuda.gallery.model import Reading
from remuda.gallery.sources import REMUDA, shipped_index
from remuda.scheduler.offers import Supply, supplies
from remuda.wire.nodes import InstalledArtifact
from tests.support.nodes import NOON
from tests.unit.ops.fleet import READINGS, a_node, artifact


def test_node_that_has_the_build_for_its_hardware_has_the_backend() -> None:
    node = a_node("gpu-1", artifact("cpu-llama-cpp", alias="llama-cpp"))
    [supply] = supplies("llama-cpp", [node], READINGS).values()
    assert (supply.has, supply.why_not) == (True, "")


def test_node_without_it_gets_it_from_the_galleries() -> None:
    [supply] = supplies("llama-cpp", [a_node()], READINGS).values()
    assert (supply.has, supply.why_not) == (False, "")
    assert "example.org/index.yaml" in supply.galleries


def test_node_whose_hardware_has_no_build_says_so() -> None:
    found = supplies("vllm", [a_node("cpu-1"), a_node("gpu-1", capability="nvidia")], READINGS)
    assert found[a_node("cpu-1").standing.node.id].why_not
    assert found[a_node("gpu-1").standing.node.id].why_not == ""


def test_backend_that_no_gallery_has_is_missing_everywhere_but_where_it_is() -> None:
    has, lacks = a_node("has-it", artifact("private")), a_node("lacks-it")
    found = supplies("private", [has, lacks], READINGS)
    assert found[has.standing.node.id].why_not == ""
    assert "it has no private, and no gallery has" in found[lacks.standing.node.id].why_not
    assert all(supply.known for supply in found.values())
    [nobody] = supplies("private", [lacks], READINGS).values()
    assert not nobody.known


def test_without_galleries_only_what_is_there_counts() -> None:
    has, lacks = a_node("has-it", artifact("cpu-llama-cpp", alias="llama-cpp")), a_node("lacks-it")
    found = supplies("llama-cpp", [has, lacks], ())
    assert (found[has.standing.node.id].has, found[lacks.standing.node.id].has) == (True, False)
    assert found[lacks.standing.node.id].why_not


def test_model_that_names_no_backend_is_installed_nowhere() -> None:
    """D1 row 01: an install without a name was sent every half minute."""
    [supply] = supplies("", [a_node("gpu-1", artifact("echo"))], READINGS).values()
    assert not supply.has
    assert supply.why_not.startswith("the model names no backend")


def test_node_that_has_not_told_what_it_has_is_waited_for_where_it_could_not_get_it() -> None:
    supply = the_supply(a_node(told=False), "vllm")
    assert not supply.told
    assert supply.why_not == "its worker has not said yet what it has installed; try again in a few seconds"


def test_node_that_waits_for_approval_is_not_considered() -> None:
    assert supplies("llama-cpp", [a_node(approved=False)], READINGS) == {}


def test_where_nobody_can_get_it_each_node_tells_its_own_reason() -> None:
    found = supplies("vllm", [a_node("a"), a_node("b", capability="amd")], READINGS)
    reasons = {node.removeprefix("id-"): supply.why_not for node, supply in found.items()}
    assert "this machine, which reports default" in reasons["a"]
    assert "this machine, which reports amd" in reasons["b"]
    assert not any("no node can do this" in reason for reason in reasons.values())


# Which build.

ONLY_OURS = (Reading(REMUDA, read_index(shipped_index()), confirmed_at=NOON),)


def the_supply(
    node: ObservedNode, backend: str = "llama-cpp", readings: tuple[Reading, ...] = READINGS
) -> Supply:
    [supply] = supplies(backend, [node], readings).values()
    return supply


@pytest.mark.parametrize(
    ("capability", "on_cpu"), [("", True), ("default", True), ("nvidia", False), ("amd", True)]
)
def test_build_that_a_node_would_get_decides_whether_its_gpu_is_used(capability: str, on_cpu: bool) -> None:
    supply = the_supply(a_node(capability=capability))
    assert (supply.on_cpu, supply.builtin) == (on_cpu, False)


def test_built_in_engine_runs_on_the_cpu_also_where_it_stands_in_for_another() -> None:
    supply = the_supply(a_node(capability="nvidia"), readings=ONLY_OURS)
    assert (supply.has, supply.on_cpu, supply.builtin) == (False, True, True)


@pytest.mark.parametrize(
    ("builds", "on_cpu"),
    [
        ({"builtin-llama-cpp": "builtin:llama-cpp"}, True),
        ({"cpu-llama-cpp": ""}, True),
        ({"cuda12-llama-cpp": ""}, False),
        ({"builtin-llama-cpp": "builtin:llama-cpp", "cuda12-llama-cpp": ""}, False),
        ({"mine": "registry.example/llama:latest"}, False),
        ({"mine": "registry.example/llama:cpu"}, True),
    ],
)
def test_build_that_a_node_has_decides_whether_its_gpu_is_used(builds: dict[str, str], on_cpu: bool) -> None:
    has = [InstalledArtifact(name=name, alias="llama-cpp", uri=uri) for name, uri in builds.items()]
    supply = the_supply(a_node("gpu-1", *has, capability="nvidia"))
    assert (supply.has, supply.on_cpu) == (True, on_cpu)


def test_machine_without_a_gpu_starts_its_own_engine_though_it_has_another() -> None:
    has = (artifact("cuda12-llama-cpp", alias="llama-cpp"), artifact("cpu-llama-cpp", alias="llama-cpp"))
    assert the_supply(a_node("cpu-1", *has, capability="default")).on_cpu

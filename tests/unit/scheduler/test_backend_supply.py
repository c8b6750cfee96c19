"""Which nodes have a backend, which could get it, and why the others could not."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.slices import at_once, slice_count
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.index import read_index
from remuda.gallery.model import Reading
from remuda.gallery.sources import REMUDA, shipped_index
from remuda.ops.model import OpId
from remuda.ops.targets import OperationPlan, PlanningContext, WantedOperation, proposal
from remuda.scheduler import backend_supply
from remuda.scheduler.backend_supply import Supply, SupplyBook, supplies
from remuda.wire.nodes import InstalledArtifact
from tests.support.examples import examples
from tests.support.nodes import NOON
from tests.unit.ops.fleet import READINGS, a_node, artifact
from tests.unit.scheduler.plain_supply import plain_supplies


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


# Of many nodes.

BACKENDS = ("llama-cpp", "vllm", "lone", "arm64-only", "private", "mine@llama-cpp", "nobody-has-it")
ARTIFACTS = (
    artifact("cpu-llama-cpp", alias="llama-cpp"),
    artifact("cuda12-llama-cpp", alias="llama-cpp"),
    artifact("private"),
    artifact("builtin-llama-cpp", alias="llama-cpp", uri="builtin:llama-cpp"),
)


@st.composite
def fleets_of(draw: st.DrawFn) -> list[ObservedNode]:
    return [
        a_node(
            name,
            *draw(st.lists(st.sampled_from(ARTIFACTS), max_size=2, unique=True)),
            foreign=draw(st.booleans()),
            told=draw(st.sampled_from((True, True, False))),
            capability=draw(st.sampled_from(("", "default", "nvidia", "amd", "metal", "nvidia-l4t"))),
            labels=draw(st.sampled_from(({}, {"node.arch": "arm64"}))),
            approved=draw(st.sampled_from((True, True, False))),
        )
        for name in draw(st.lists(st.sampled_from("abcdef"), unique=True))
    ]


galleries = st.sampled_from((READINGS, READINGS[:1], READINGS[1:], ()))


@settings(max_examples=examples(200))
@given(st.sampled_from(BACKENDS), fleets_of(), galleries)
def test_same_answer_as_by_planning_for_each_node(
    backend: str, nodes: list[ObservedNode], readings: tuple[Reading, ...]
) -> None:
    assert supplies(backend, nodes, readings) == plain_supplies(backend, nodes, readings)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from(BACKENDS), fleets_of(), galleries), max_size=6))
def test_what_is_remembered_makes_no_difference(
    asked: list[tuple[str, list[ObservedNode], tuple[Reading, ...]]],
) -> None:
    book = SupplyBook()
    for backend, nodes, readings in asked:
        assert at_once(book.of(backend, nodes, readings)) == plain_supplies(backend, nodes, readings)


def test_install_is_planned_once_for_each_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[object] = []

    def noted(wanted: WantedOperation, context: PlanningContext, op: OpId) -> OperationPlan:
        planned.append(context.nodes)
        return proposal(wanted, context, op)

    monkeypatch.setattr(backend_supply, "proposal", noted)
    nodes = [a_node(f"n{one}", capability=("nvidia", "default")[one % 2]) for one in range(50)]
    book = SupplyBook()
    at_once(book.of("llama-cpp", nodes, READINGS))
    assert len(planned) == 2
    again = tuple(replace(one, confirmed_at=NOON + timedelta(hours=1)) for one in READINGS)
    at_once(book.of("llama-cpp", nodes, again))
    assert len(planned) == 2, "galleries that were read again, with nothing new in them"
    at_once(book.of("llama-cpp", nodes, READINGS[:1]))
    assert len(planned) == 4


def test_others_get_their_turn_while_it_is_told_of_many_nodes() -> None:
    nodes = [a_node(f"n{one}") for one in range(100)]
    book = SupplyBook()
    assert slice_count(book.of("llama-cpp", nodes, READINGS))[1] >= 5
    assert slice_count(book.of("llama-cpp", nodes, READINGS))[1] == 1


def test_only_backends_asked_for_last_are_remembered() -> None:
    book = SupplyBook()
    for number in range(40):
        at_once(book.of(f"b{number}", [a_node()], READINGS))
    assert book.remembered == 16

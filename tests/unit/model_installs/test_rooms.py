"""Which backend is to serve a model that several could."""

from dataclasses import replace

import pytest

from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode
from remuda.model_installs.rooms import backends_without_source, chosen_backend
from remuda.scheduler.backend_supply import Supply
from tests.unit.ops.fleet import READINGS, a_node, artifact

ONE, TWO = NodeId("1"), NodeId("2")
NAMES = {ONE: "gpu-1", TWO: "gpu-2"}
HAS, CAN, CANNOT = Supply(has=True), Supply(has=False), Supply(has=False, why_not="it has no GPU")
UNKNOWN = Supply(has=False, why_not="no gallery has it", known=False)


def test_what_a_node_has_is_taken_first() -> None:
    choice = chosen_backend({"vllm": {ONE: CAN, TWO: CAN}, "sglang": {ONE: CANNOT, TWO: HAS}}, NAMES)

    assert (choice.backend, choice.warning) == ("sglang", "")


def test_else_the_first_that_a_node_can_get() -> None:
    choice = chosen_backend(
        {"vllm": {ONE: CANNOT}, "sglang": {ONE: UNKNOWN, TWO: CAN}, "mlx": {ONE: CAN}}, NAMES
    )

    assert (choice.backend, choice.warning) == ("sglang", "")


def test_a_model_that_no_node_can_serve_says_what_it_needs() -> None:
    choice = chosen_backend({"vllm": {ONE: CANNOT}, "sglang": {ONE: UNKNOWN}, "mlx": {}}, NAMES)

    assert choice.backend == "vllm"
    assert choice.warning == (
        "no node can serve it yet: it needs the backend vllm, or sglang or mlx, (gpu-1: it has no GPU). "
        "See remuda backends search vllm, and set `backend` with remuda models edit"
    )


def test_without_nodes_the_first_is_taken_with_a_warning() -> None:
    choice = chosen_backend({"diffusers": {}}, NAMES)

    assert choice.backend == "diffusers"
    assert choice.warning.startswith("no node can serve it yet: it needs the backend diffusers. See")


@pytest.mark.parametrize(
    ("nodes", "unknown"),
    [
        ([], {"lama-cpp", "mine"}),
        ([a_node("gpu-1", artifact("Mine"))], {"lama-cpp"}),
        ([a_node("gpu-1", artifact("cpu-mine", alias="mine"), foreign=True)], {"lama-cpp"}),
        ([a_node("gpu-1", told=False)], set()),
    ],
)
def test_backend_that_no_node_has_and_no_gallery_offers_is_found(
    nodes: list[ObservedNode], unknown: set[str]
) -> None:
    names = {"", "llama-cpp", "mine@vllm", "LONE", "lama-cpp", "mine"}
    assert backends_without_source(names, nodes, READINGS) == unknown


def test_gallery_that_was_never_read_may_offer_any_backend() -> None:
    unread = replace(READINGS[0], confirmed_at=None)
    assert backends_without_source({"lama-cpp"}, [], [unread, READINGS[1]]) == frozenset()

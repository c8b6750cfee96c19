"""Which replicas are routed to, where they are reached, and which models are shown."""

from dataclasses import replace
from typing import Any

import pytest

from remuda.core.ids import BootId
from remuda.fleet.verdicts import ObservedNode
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig, Parameters
from remuda.router.table import Configured, Route, RoutedModel, Table, build
from remuda.scheduler.model import Replica, ReplicaState
from tests.support.nodes import TOKENS
from tests.unit.scheduler.standing import GPU, a_row, a_view, its_process, rows

QWEN = ModelConfig(name="qwen", backend="llama-cpp", parameters=Parameters(model="qwen.gguf"))


def loaded(index: int = 0, **facts: Any) -> Replica:
    return a_row("qwen", index, **({"revision": QWEN.revision} | facts))


def table(*replicas: Replica, nodes: tuple[ObservedNode, ...] = (), present: bool = False) -> Table:
    views = {view.standing.node.id: view for view in nodes or (a_view(),)}
    return build(rows(*replicas), views, {"qwen": Configured(QWEN, present, created=5)}, TOKENS)


def entry(*replicas: Replica, nodes: tuple[ObservedNode, ...] = (), present: bool = False) -> RoutedModel:
    return table(*replicas, nodes=nodes, present=present).models["qwen"]


def routed(row: Replica, node: ObservedNode | None = None) -> bool:
    return bool(entry(row, nodes=(node or a_view("gpu-1", its_process(row)),)).routes)


def test_loaded_replica_has_a_route() -> None:
    row = loaded(parallel=4)
    [route] = entry(row, nodes=(a_view("gpu-1", its_process(row)),)).routes
    assert route == Route(
        key=row.key,
        node=row.node,
        node_name="gpu-1",
        endpoint=ReplicaEndpoint("10.0.0.5:50052", token="shared"),
        instance="i-qwen-0",
        change=7,
        parallel=4,
        vram_free=route.vram_free,
        worker=ReplicaEndpoint("10.0.0.5:50050", "http", token="shared"),
    )
    assert 0 <= GPU.available_vram - route.vram_free < 1 << 28


def test_replica_of_a_worker_that_named_no_address_is_reached_at_its_node() -> None:
    row = loaded(address="", protocol="http", path="/v1/processes/qwen%230")
    [route] = entry(row, nodes=(a_view("gpu-1", its_process(row)),)).routes
    assert route.endpoint == ReplicaEndpoint("10.0.0.5:50051", "http", "/v1/processes/qwen%230", "shared")


def test_two_replicas_on_one_node_are_two_routes() -> None:
    first, second = loaded(0), loaded(1)
    view = a_view("gpu-1", its_process(first), its_process(second))
    assert [route.key.index for route in entry(first, second, nodes=(view,)).routes] == [0, 1]


def test_table_knows_up_to_which_change_it_was_read() -> None:
    assert table().change == 9


@pytest.mark.parametrize("state", [ReplicaState.STAGING, ReplicaState.LOADING, ReplicaState.UNLOADING])
def test_replica_that_is_not_loaded_has_no_route(state: ReplicaState) -> None:
    assert not routed(loaded(state=state))


def test_replica_of_another_configuration_has_no_route() -> None:
    assert not routed(loaded(revision="old"))


def test_replica_on_a_node_without_the_labels_asked_for_has_no_route() -> None:
    """D1 row 01: whoever could not be chosen for a load is not chosen for a request, either."""
    row, choosy = loaded(), QWEN.model_copy(update={"selector": {"side": "left"}})
    assert choosy.revision == row.revision, "what is loaded is none the worse for it"
    for side, routes in (("left", 1), ("right", 0)):
        views = {row.node: a_view("gpu-1", its_process(row), labels={"side": side})}
        built = build(rows(row), views, {"qwen": Configured(choosy)}, TOKENS)
        assert len(built.models["qwen"].routes) == routes


def test_replica_of_the_workers_former_life_has_no_route() -> None:
    assert not routed(loaded(boot=BootId("former")))


@pytest.mark.parametrize(
    "facts", [{"approved": False}, {"drained": True}, {"leaving": True}, {"departed": True}, {"heard_s": 90}]
)
def test_replica_on_a_node_that_takes_no_work_has_no_route(facts: dict[str, Any]) -> None:
    row = loaded()
    assert not routed(row, a_view("gpu-1", its_process(row), **facts))


def test_replica_on_a_silent_node_has_a_route_that_says_so() -> None:
    row = loaded()
    [route] = entry(row, nodes=(a_view("gpu-1", its_process(row), heard_s=40),)).routes
    assert route.silent


def test_replica_on_a_node_that_was_removed_has_no_route() -> None:
    assert entry(loaded(on="gone")).routes == ()


@pytest.mark.parametrize("state", ["failed", "stopping", "waiting"])
def test_replica_whose_process_answers_nothing_has_no_route(state: str) -> None:
    row = loaded()
    assert not routed(row, a_view("gpu-1", its_process(row, state)))


@pytest.mark.parametrize("state", ["ready", "unresponsive", "starting"])
def test_busy_process_is_not_dead(state: str) -> None:
    row = loaded()
    assert routed(row, a_view("gpu-1", its_process(row, state)))


def test_process_missing_in_a_later_report_takes_the_route_away() -> None:
    row = loaded(since_s=60)
    assert not routed(row, a_view("gpu-1", heard_s=1))
    assert not routed(row, a_view("gpu-1", its_process(row, instance="another"), heard_s=1))


def test_report_from_before_the_load_says_nothing() -> None:
    assert routed(loaded(since_s=3), a_view("gpu-1", heard_s=1))


def test_peer_without_reports_is_believed() -> None:
    row = loaded(instance="")
    assert routed(row, a_view(reports=False))
    assert routed(row, a_view()), "a worker that names no instances"


# Models.


def test_model_is_listed_when_its_bytes_are_anywhere_or_it_is_loaded() -> None:
    row = loaded()
    assert not entry().listed
    assert entry(present=True).listed
    assert entry(nodes=(a_view(), a_view("gpu-2", files=["qwen.gguf"]))).listed
    assert entry(nodes=(a_view(files=["qwen.gguf/weights/1.bin"]),)).listed
    assert not entry(nodes=(a_view(files=["old/qwen.gguf"]),)).listed
    assert entry(row, nodes=(a_view("gpu-1", its_process(row)),)).listed


def test_second_name_is_listed_if_what_it_stands_for_is() -> None:
    names = {
        "qwen": Configured(QWEN, present=True),
        "short": Configured(ModelConfig(name="short", alias="qwen"), present=True),
        "lost": Configured(ModelConfig(name="lost", alias="gone"), present=True),
    }
    listed = {name: one.listed for name, one in build(rows(), {}, names, TOKENS).models.items()}
    assert listed == {"qwen": True, "short": True, "lost": False}


def test_model_has_its_routes_under_each_of_its_names() -> None:
    row = loaded()
    views = {row.node: a_view("gpu-1", its_process(row))}
    both = build(rows(row), views, dict.fromkeys(("qwen", "alias"), Configured(QWEN)), TOKENS)
    assert both.models["alias"] == both.models["qwen"]
    assert len(both.models["alias"].routes) == 1


def test_replica_of_a_model_that_is_not_configured_is_not_routed_to() -> None:
    assert build(rows(a_row("other")), {}, {}, TOKENS).models == {}


def test_same_facts_make_an_equal_table_and_a_little_memory_makes_no_other() -> None:
    row = loaded()
    less = replace(GPU, available_vram=GPU.available_vram - 1000)
    views = [a_view("gpu-1", its_process(row), resources=figures) for figures in (GPU, GPU, less)]
    assert len({entry(row, nodes=(view,)).routes for view in views}) == 1

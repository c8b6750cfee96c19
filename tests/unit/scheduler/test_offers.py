"""What nodes offer: figures in which nothing is counted twice or not at all, and why some offer nothing."""

from dataclasses import replace
from typing import Any

import pytest

from remuda.core.ids import BootId, ReplicaKey
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods
from remuda.fleet.model import Dial, NodeType, Resources, StoredBusTrouble
from remuda.fleet.verdicts import ObservedNode
from remuda.scheduler.facts import PlacementFacts
from remuda.scheduler.model import (
    FilesTold,
    HoldReason,
    NodeOffer,
    Placed,
    Replica,
    ReplicaState,
    Unplaceable,
)
from remuda.scheduler.offers import memory_left, offers
from remuda.scheduler.placement import place
from remuda.wire.nodes import Report
from tests.support.nodes import NOON, THRESHOLDS
from tests.unit.scheduler.offering import a_need
from tests.unit.scheduler.standing import BUS_CLOSED, GB, GPU, a_row, a_view, ago, its_process, rows

NEED = a_need(6)


def the_fleet(
    *replicas: Replica, nodes: tuple[ObservedNode, ...] | None = None, **facts: Any
) -> PlacementFacts:
    fleet = PlacementFacts(
        nodes=(a_view(),) if nodes is None else nodes,
        replicas=rows(*replicas),
        in_flight=lambda key: 0,
        pinned=(),
        unfit=lambda node: "",
    )
    return replace(fleet, **facts)


def offer(*replicas: Replica, node: ObservedNode | None = None, **facts: Any) -> NodeOffer:
    [only] = offers(NEED, the_fleet(*replicas, nodes=(node or a_view(),), **facts))
    return only


# Memory.


def test_node_without_replicas_offers_what_it_reports() -> None:
    got = offer()
    assert (got.vram_total, got.vram_free) == (24 * GB, 20 * GB)
    assert (got.ram_total, got.ram_free) == (64 * GB, 60 * GB)


@pytest.mark.parametrize("state", [ReplicaState.STAGING, ReplicaState.LOADING])
def test_memory_of_a_replica_on_its_way_is_set_aside(state: ReplicaState) -> None:
    assert offer(a_row(state=state, gb=5)).vram_free == 15 * GB


def test_memory_of_a_loaded_replica_is_in_the_report_that_came_later() -> None:
    assert offer(a_row(gb=5, since_s=30), node=a_view(heard_s=10)).vram_free == 20 * GB


@pytest.mark.parametrize("heard_s", [28, 31])
def test_memory_of_a_loaded_replica_is_set_aside_until_the_report_can_show_it(heard_s: float) -> None:
    assert offer(a_row(gb=5, since_s=30), node=a_view(heard_s=heard_s)).vram_free == 15 * GB


def test_replica_that_leaves_still_uses_what_the_report_shows() -> None:
    assert offer(a_row(state=ReplicaState.UNLOADING, gb=5, since_s=1)).vram_free == 20 * GB


def test_memory_of_a_process_that_has_just_crashed_is_not_counted_twice() -> None:
    """Its row is still there, and the report has its memory as free already."""
    crashed, busy = a_row("crashed", gb=12), a_row("busy", gb=4)
    node = a_view(files=["qwen.gguf"], resources=replace(GPU, available_vram=20 * GB))
    fleet = the_fleet(crashed, busy, nodes=(node,), in_flight=lambda key: int(key.model == "busy"))
    assert isinstance(place(a_need(18), offers(a_need(18), fleet)), Placed), "it fits beside the busy one"
    refused = place(a_need(19), offers(a_need(19), fleet))
    assert isinstance(refused, Unplaceable)
    assert refused.waiting_helps


def test_ram_and_vram_are_set_aside_apart() -> None:
    got = offer(a_row(state=ReplicaState.LOADING, gb=5, in_vram=False))
    assert (got.vram_free, got.ram_free) == (20 * GB, 55 * GB)


def test_ram_in_which_weights_are_mapped_is_not_free_though_the_report_says_so() -> None:
    mapped = a_row(gb=40, in_vram=False, since_s=600)
    assert offer(mapped).ram_free == 24 * GB


@pytest.mark.parametrize(
    "facts",
    [
        {"total_vram": 64 * GB, "available_vram": 60 * GB},
        {"total_vram": 48 * GB, "available_vram": 48 * GB, "capability": "metal"},
        {"total_vram": 48 * GB, "available_vram": 48 * GB, "capability": "nvidia-l4t-cuda-12"},
    ],
)
@pytest.mark.parametrize("in_vram", [True, False])
def test_where_vram_is_ram_each_replica_counts_once_and_for_both(
    facts: dict[str, Any], in_vram: bool
) -> None:
    machine = a_view(resources=replace(GPU, **facts))
    assert offer(node=machine).unified
    got = offer(a_row(state=ReplicaState.LOADING, gb=20, in_vram=in_vram), node=machine)
    assert (got.vram_free, got.ram_free) == (min(40, facts["total_vram"] // GB - 20 * in_vram) * GB, 40 * GB)


def test_vram_of_its_own_is_not_ram() -> None:
    assert not offer().unified
    assert not offer(node=a_view(resources=replace(GPU, total_vram=0, total_ram=0))).unified


def test_more_set_aside_than_free_is_less_than_nothing() -> None:
    assert offer(a_row(state=ReplicaState.STAGING, gb=50)).vram_free == -30 * GB


def test_budget_caps_what_replicas_use_together() -> None:
    budget = a_view(vram_budget="12GB")
    assert offer(node=budget).vram_total == 12 * GB
    assert offer(node=budget).vram_free == 12 * GB
    assert offer(a_row(gb=5), node=budget).vram_free == 7 * GB
    on_its_way = a_row("b", state=ReplicaState.STAGING, gb=4)
    assert offer(a_row(gb=5), on_its_way, node=budget).vram_free == 3 * GB


def test_budget_below_what_is_in_use_is_made_up_for_before_anything_fits() -> None:
    lowered = a_view(vram_budget="12GB")
    got = offer(a_row("a", gb=9), a_row("b", gb=8), node=lowered)
    assert got.vram_free == -5 * GB
    assert isinstance(place(a_need(gb=4), [replace(got, has_file=True)]), Placed), "8 or 9 GB go"
    placed = place(a_need(gb=8), [replace(got, has_file=True)])
    assert isinstance(placed, Placed)
    assert len(placed.evict) == 2, "one of them alone would leave more than 12 GB in use"


def test_budget_does_not_make_more_than_is_free() -> None:
    tight = a_view(vram_budget="12GB", resources=replace(GPU, available_vram=2 * GB))
    assert offer(node=tight).vram_free == 2 * GB


def test_memory_on_screens_is_that_of_placing() -> None:
    """What is free and what is set aside add up to the budget."""
    figures = Resources(total_ram=10 * GB, available_ram=10 * GB)
    measured = a_row("a", gb=5, in_vram=False)
    view = a_view("gpu-1", its_process(measured, ram_bytes=3 * GB), resources=figures)
    free, used = memory_left(view.standing.node, [measured], view.report)
    assert (free.ram_bytes, used.ram_bytes) == (5 * GB, 5 * GB)
    assert memory_left(view.standing.node, [replace(measured, memory_bytes=11 * GB)], None)[0].ram_bytes == 0


# Residents.


def movable(*replicas: Replica, **facts: Any) -> list[str]:
    return [one.key.model for one in offer(*replicas, **facts).residents if one.movable]


def test_idle_loaded_replica_may_go() -> None:
    assert movable(a_row("other")) == ["other"]


def test_replica_goes_for_another_of_its_model_only_if_its_configuration_is_another() -> None:
    same = offer(replace(a_row(), revision=NEED.revision))
    assert [(one.movable, one.hold) for one in same.residents] == [(False, HoldReason.SAME)]
    assert (same.beside, same.spreads) == (True, True)
    assert movable(replace(a_row(), revision="former")) == ["qwen"]


@pytest.mark.parametrize("state", [ReplicaState.STAGING, ReplicaState.LOADING, ReplicaState.UNLOADING])
def test_replica_on_its_way_in_or_out_may_not_go(state: ReplicaState) -> None:
    got = offer(a_row("other", state=state))
    assert [one.movable for one in got.residents] == [False]


def test_busy_replica_may_not_go_and_makes_the_node_busy() -> None:
    got = offer(a_row("a"), a_row("b"), in_flight=lambda key: 3 if key == ReplicaKey("a", 0) else 0)
    assert [(one.key.model, one.movable) for one in got.residents] == [("a", False), ("b", True)]
    assert got.busy == 3


def test_pinned_replica_stays_and_is_not_waited_for() -> None:
    assert offer(a_row("pinned"), pinned={"pinned"}).residents == ()


def test_why_a_replica_stays_is_told() -> None:
    """Idle is not busy."""
    on_its_way, going = a_row("c", state=ReplicaState.LOADING), a_row("d", state=ReplicaState.UNLOADING)
    found = offer(
        a_row("a"),
        a_row("b", since_s=2),
        on_its_way,
        going,
        a_row("e"),
        a_row("pinned"),
        a_row("kept"),
        in_flight=lambda key: int(key.model == "e"),
        pinned={"pinned"},
        spare={"kept": 0},
    )
    assert {one.key.model: one.hold for one in (*found.residents, *found.kept)} == {
        "a": None,
        "b": HoldReason.NEW,
        "c": HoldReason.COMING,
        "d": HoldReason.LEAVING,
        "e": HoldReason.BUSY,
        "pinned": HoldReason.PINNED,
        "kept": HoldReason.KEPT,
    }


def test_pinned_replica_of_the_model_itself_takes_its_slot() -> None:
    [resident] = offer(a_row("qwen"), pinned={"qwen"}).residents
    assert not resident.movable


def test_replica_just_loaded_is_not_taken_from_those_who_waited_for_it() -> None:
    assert movable(a_row(since_s=2)) == []


def test_last_use_is_that_of_the_store_or_the_load() -> None:
    [used] = offer(a_row(last_used=ago(20))).residents
    [unused] = offer(a_row(since_s=60)).residents
    assert (used.last_used, unused.last_used) == (ago(20), ago(60))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"version": "0.2.0"}, "--max-replicas-per-model on its worker"),
        ({"version": ""}, "LOCALAI_MAX_REPLICAS_PER_MODEL on its worker"),
        ({"version": "", "max_replicas_override": 1}, "PUT /api/nodes/id-gpu-1/max-replicas-per-model"),
    ],
)
def test_what_raises_the_number_of_replicas_is_named_as_the_node_knows_it(
    facts: dict[str, Any], told: str
) -> None:
    assert offer(node=a_view(**facts)).slots_raised_by == told


def test_replica_of_the_model_that_leaves_takes_no_slot() -> None:
    node = a_view(max_replicas=2)
    assert offer(node=node).slots == 2
    assert offer(a_row(state=ReplicaState.UNLOADING), a_row("other"), node=node).slots == 3


def test_replicas_on_other_nodes_do_not_count() -> None:
    got = offer(a_row(on="gpu-2", state=ReplicaState.STAGING))
    assert (got.residents, got.vram_free) == ((), 20 * GB)


# What is there.


def test_backend_counts_under_its_alias_and_of_peers_that_only_list() -> None:
    assert offer(node=a_view(installed=["llama-cpp"])).has_backend
    assert offer(node=a_view(installed=["llama-cpp"], reports=False)).has_backend
    assert not offer(node=a_view(installed=["vllm"])).has_backend


def test_file_counts_when_it_is_told_or_folders_are_shared() -> None:
    assert offer(node=a_view(files=["qwen.gguf"])).has_file
    assert offer(node=a_view(files=["qwen.gguf/part-1"])).has_file
    assert not offer(node=a_view(files=["qwen.gguf.old"])).has_file
    assert not offer(node=a_view(reports=False)).has_file
    assert offer(node=a_view(), shared=True).has_file


def test_labels_and_disk_are_handed_on() -> None:
    disk = replace(GPU, total_disk=9, available_disk=4)
    got = offer(node=a_view(labels={"room": "attic"}, resources=disk))
    assert got.labels == {"room": "attic"}
    assert (got.disk_known, got.disk_free) == (True, 4)
    assert not offer().disk_known
    assert not offer(node=a_view(resources=disk), checks_disk=False).disk_known


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (a_view(files=["qwen.gguf"]), FilesTold.ALL),
        (a_view(reports=False), FilesTold.NEVER),
        (replace(a_view(), report=None), FilesTold.NOT_YET),
        (replace(a_view(), report=Report(model_files_more=True)), FilesTold.SOME),
    ],
)
def test_how_far_a_node_has_told_of_its_files_is_handed_on(node: ObservedNode, told: FilesTold) -> None:
    assert offer(node=node).files_told is told


# Who offers nothing.


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (a_view(approved=False), "waiting for approval: remuda nodes approve gpu-1"),
        (a_view(drained=True), "drained by an admin: remuda nodes resume gpu-1"),
        (a_view(leaving=True), "its worker is shutting down"),
        (a_view(heard_s=40), "no heartbeat for 40 s; waiting for its next heartbeat"),
        (a_view(heard_s=90), "no heartbeat for 90 s; check its power, its network and its worker's log"),
        (
            a_view(departed=True),
            "its worker was stopped; start it again there with: remuda worker (with remuda up, where that "
            "had started it)",
        ),
        (a_view(departed=True, left=True), "left the fleet; remove it with: remuda nodes remove gpu-1"),
        (a_view(departed=True, version=""), "its worker was stopped; restart LocalAI's worker there"),
        (
            a_view(node_type=NodeType.AGENT),
            "it is an agent node, which runs no backends; a worker on that machine would: remuda join",
        ),
    ],
)
def test_node_that_takes_no_work_says_what_would_change_that(node: ObservedNode, why: str) -> None:
    assert offer(node=node).unfit == why


def test_node_that_cannot_run_the_backend_says_so() -> None:
    assert offer(unfit=lambda node: "no build for it").unfit == "no build for it"
    assert offer().unfit == ""


def test_node_that_cannot_be_commanded_is_not_waited_for() -> None:
    trouble = StoredBusTrouble(BootId("boot-gpu-1"), 2, "no answer from nats://10.0.0.1:4222")
    silent, cut_off = offer(node=a_view(heard_s=40)), offer(node=a_view(bus_trouble=trouble))
    assert (silent.passing, cut_off.passing) == (True, False)
    assert cut_off.unfit == "its worker is not connected to the bus: no answer from nats://10.0.0.1:4222"


UNREACHED = (
    "registered, but 10.0.0.5:50050 cannot be reached from the frontend (no answer within 3 s); open that "
    "port there, or set --advertise-http-addr on the worker"
)


def test_node_that_this_frontend_cannot_dial_is_left_out_and_not_waited_for() -> None:
    node = a_view(unreached={"fe-1": "no answer within 3 s", "fe-2": ""})
    here, elsewhere = offer(node=node, frontend="fe-1"), offer(node=node, frontend="fe-2")
    assert (here.unfit, here.passing) == (UNREACHED, False)
    assert (elsewhere.unfit, elsewhere.unreached) == ("", False), "another frontend can reach it"


STOPPED = (
    "its worker has stopped, its machine is off, or the network to it is down: check that machine "
    "(10.0.0.5:50050: the connection was refused, and its connection to the bus is closed, too)"
)
KILLED = {"fe-1": f"the connection was refused{BUS_CLOSED}"}


@pytest.mark.parametrize("frontend", ["fe-1", "fe-2"])
def test_killed_worker_is_waited_for_by_all_frontends_whoever_noticed(frontend: str) -> None:
    got = offer(node=a_view(unreached=KILLED), frontend=frontend)
    assert (got.unfit, got.passing) == (STOPPED, True)


def test_killed_worker_is_waited_for_where_only_its_port_and_its_heartbeats_tell() -> None:
    refused = {"fe-1": "the connection was refused"}
    heard, unheard = (
        offer(node=a_view(heard_s=since, unreached=refused), frontend="fe-1") for since in (9, 11)
    )
    assert (heard.passing, unheard.passing) == (False, True)


def test_worker_that_another_frontend_has_reached_since_has_not_stopped() -> None:
    node = a_view().standing.node
    killed = Dial(node.id, "fe-1", KILLED["fe-1"], ago(3), bus_closed=True)
    dials = [killed, Dial(node.id, "fe-2", "", ago(1))]
    heard = ListeningPeriods((ListeningPeriod(ago(3600), NOON),))
    standing = Fleet(NOON, heard, [node], {node.id: dials}).standing(node, THRESHOLDS)
    got = offer(node=replace(a_view(), standing=standing), frontend="fe-2")
    assert (got.unfit, got.passing) == ("", False)


@pytest.mark.parametrize("facts", [{"drained": True}, {"leaving": True}, {"approved": False}])
def test_node_that_will_take_no_work_is_not_waited_for_though_it_is_silent(facts: Any) -> None:
    assert not offer(node=a_view(heard_s=40, **facts)).passing
    assert not offer(node=a_view(unreached=KILLED, **facts)).passing


def test_backends_of_a_localai_worker_have_ports_of_their_own() -> None:
    node = a_view(reports=False, unreached={"fe-1": "the connection was refused"})
    got = offer(node=node, frontend="fe-1")
    assert (got.unfit, got.unreached) == ("", True)


def test_model_goes_where_this_frontend_can_reach_it_or_is_refused_with_the_port_to_open() -> None:
    blocked = a_view("a", files=["qwen.gguf"], unreached={"fe-1": "no answer within 3 s"})
    own = a_view("fe", files=["qwen.gguf"])
    fleet = the_fleet(nodes=(blocked, own), frontend="fe-1")
    placed = place(NEED, offers(NEED, fleet))
    assert isinstance(placed, Placed)
    assert placed.node == own.standing.node.id
    assert place(NEED, offers(NEED, replace(fleet, nodes=(blocked,)))) == Unplaceable({"a": UNREACHED})

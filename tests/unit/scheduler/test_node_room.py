"""A replica that was refused and would be placed now finds more room than there was then."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.model import Resources
from remuda.fleet.verdicts import ObservedNode
from remuda.models.config import ModelConfig
from remuda.scheduler.eviction import spares
from remuda.scheduler.facts import PlacementFacts
from remuda.scheduler.model import Need, Placed, Replica, ReplicaState, Unplaceable
from remuda.scheduler.node_room import RoomInputs, RoomLeft, grew, least, room
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import place
from tests.unit.scheduler.standing import GB, a_row, a_view, its_process, rows

CONFIGS = {
    "pinned": ModelConfig(name="pinned", backend="llama-cpp", pinned=True),
    "kept": ModelConfig(name="kept", backend="llama-cpp", min_replicas=1),
    "free": ModelConfig(name="free", backend="llama-cpp"),
}
BUSY = {ReplicaKey("free", 7): 1}
NEED = Need("qwen", "llama-cpp", "abc", memory_bytes=6 * GB, file="qwen.gguf")


def a_node(held: Sequence[Replica], others_gb: int) -> ObservedNode:
    """With 10 GB of RAM, of which other programs use some."""
    left = (10 - others_gb) * GB - sum(row.memory_bytes for row in held)
    figures = Resources(total_ram=10 * GB, available_ram=left)
    running = [its_process(row) for row in held]
    return a_view("gpu-1", *running, installed=["llama-cpp"], files=["qwen.gguf"], resources=figures)


def of(held: Sequence[Replica], others_gb: int) -> tuple[RoomLeft, Placed | Unplaceable]:
    view = a_node(held, others_gb)
    seen = rows(*held)
    revised = {name: one.model_copy(update={"revision": "abc"}) for name, one in CONFIGS.items()}
    facts = PlacementFacts(
        [view],
        seen,
        lambda key: BUSY.get(key, 0),
        {"pinned"},
        lambda node: "",
        spare=spares(revised, seen.rows),
    )
    found = place(NEED, [replace(one, has_backend=True) for one in offers(NEED, facts)])
    nodes = {NodeId("id-gpu-1"): view}
    return room(RoomInputs(seen, nodes, revised, lambda key: BUSY.get(key, 0))), found


@st.composite
def replicas(draw: st.DrawFn) -> Sequence[Replica]:
    """Pinned or the only one of its model or neither, busy or idle, just loaded or long ago, on its way or
    going."""
    chosen = draw(st.lists(st.integers(0, 8), unique=True, max_size=4))
    return [
        a_row(
            draw(st.sampled_from(sorted(CONFIGS))),
            number,
            gb=draw(st.integers(0, 4)),
            since_s=draw(st.sampled_from([1, 8, 60])),
            state=draw(st.sampled_from(ReplicaState)),
            in_vram=False,
        )
        for number in chosen
    ]


@given(replicas(), st.integers(0, 4), replicas(), st.integers(0, 4))
def test_what_would_be_placed_now_finds_more_room(
    some: Sequence[Replica], others_of_some: int, more: Sequence[Replica], others_of_more: int
) -> None:
    looks = [of(some, others_of_some), of(more, others_of_more)]
    for (then, refused), (now, placed) in permutations(looks):
        if isinstance(refused, Unplaceable) and isinstance(placed, Placed):
            assert grew(then, now)


@given(replicas(), st.integers(0, 4))
def test_nothing_has_grown_where_nothing_has_happened(held: Sequence[Replica], others: int) -> None:
    then, _ = of(held, others)
    again, _ = of(held, others)
    assert not grew(then, again)
    assert not grew(then, least(then, of([], 4)[0]))


def test_a_replica_that_takes_less_memory_is_more_room() -> None:
    held = a_row("pinned", in_vram=False, gb=4)
    assert grew(of([held], 0)[0], of([replace(held, memory_bytes=3 * GB)], 0)[0])


def test_another_program_that_takes_a_little_less_is_no_news() -> None:
    held = [a_row("pinned", in_vram=False)]
    view = a_node(held, 2)
    figures = view.standing.node.resources
    inputs = RoomInputs(rows(*held), {NodeId("id-gpu-1"): view}, CONFIGS)
    seen = replace(figures, available_ram=figures.available_ram // (32 << 20) * (32 << 20))
    for more, news in ((1 << 20, False), (64 << 20, True)):
        then, now = (
            replace(
                view, standing=replace(view.standing, node=replace(view.standing.node, resources=resources))
            )
            for resources in (seen, replace(seen, available_ram=seen.available_ram + more))
        )
        looks = [room(replace(inputs, nodes={NodeId("id-gpu-1"): one})) for one in (then, now)]
        assert grew(*looks) is news

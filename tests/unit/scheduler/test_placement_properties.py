"""What holds of placement whatever the fleet looks like."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.ids import NodeId, ReplicaKey
from remuda.scheduler.model import Need, NodeOffer, Placed, Resident, Unplaceable
from remuda.scheduler.placement import not_chosen, place
from tests.support.examples import examples
from tests.support.nodes import NOON

sizes = st.integers(0, 12)
labels = st.sampled_from(({}, {}, {"room": "attic"}, {"room": "cellar"}))
residents = st.lists(
    st.builds(
        Resident,
        key=st.builds(ReplicaKey, model=st.sampled_from(("qwen", "a", "b", "c")), index=st.integers(0, 9)),
        memory_bytes=sizes,
        in_vram=st.booleans(),
        movable=st.booleans(),
        last_used=st.integers(0, 5).map(lambda age: NOON - timedelta(seconds=age)),
    ),
    max_size=6,
    unique_by=lambda one: one.key,
)
offers = st.builds(
    NodeOffer,
    node=st.integers(0, 99).map(lambda number: NodeId(f"id-{number}")),
    name=st.just(""),
    unfit=st.sampled_from(("", "", "", "drained")),
    has_backend=st.booleans(),
    on_cpu=st.booleans(),
    builtin=st.booleans(),
    has_file=st.sampled_from((True, True, False)),
    labels=labels,
    slots=st.integers(1, 3),
    vram_total=st.sampled_from((0, 8, 24)),
    vram_free=sizes,
    ram_total=st.sampled_from((0, 16, 64)),
    ram_free=sizes,
    unified=st.booleans(),
    disk_known=st.booleans(),
    disk_free=st.sampled_from((0, 1 << 40)),
    residents=residents.map(tuple),
    busy=st.integers(0, 3),
    tokens_per_s=st.sampled_from((0.0, 0.0, 10.0, 11.0, 58.0)),
).map(lambda offer: replace(offer, name=offer.node.removeprefix("id-")))
fleets = st.lists(offers, max_size=6, unique_by=lambda offer: offer.node)
needs = st.builds(
    Need,
    model=st.just("qwen"),
    backend=st.just("llama-cpp"),
    revision=st.just("abc"),
    memory_bytes=sizes,
    file=st.sampled_from(("", "qwen.gguf")),
    selector=labels,
    on_cpu=st.booleans(),
)


def at(placed: Placed, fleet: list[NodeOffer]) -> NodeOffer:
    return next(offer for offer in fleet if offer.node == placed.node)


def gone(placed: Placed, offer: NodeOffer) -> list[Resident]:
    return [one for one in offer.residents if one.key in placed.evict]


@settings(max_examples=examples(200))
@given(needs, fleets)
def test_chosen_node_fits_in_every_respect(need: Need, fleet: list[NodeOffer]) -> None:
    placed = place(need, fleet)
    if not isinstance(placed, Placed):
        return
    offer = at(placed, fleet)
    leaving = gone(placed, offer)
    assert not offer.unfit
    assert offer.labels.items() >= need.selector.items()
    assert offer.has_file or not need.file
    assert len(leaving) == len(placed.evict), "only what is there can go"
    assert all(one.movable for one in leaving)
    assert offer.unified or all(one.in_vram == placed.in_vram for one in leaving)
    assert not (placed.in_vram and (need.on_cpu or offer.on_cpu))
    assert sum(one.key.model == need.model for one in offer.residents) < offer.slots
    total = offer.vram_total if placed.in_vram else offer.ram_total
    free = offer.vram_free if placed.in_vram else offer.ram_free
    if total:
        assert need.memory_bytes <= min(total, free + sum(max(one.memory_bytes, 1) for one in leaving))


@settings(max_examples=examples(200))
@given(needs, fleets)
def test_every_eviction_is_needed(need: Need, fleet: list[NodeOffer]) -> None:
    placed = place(need, fleet)
    if isinstance(placed, Placed) and placed.evict:
        offer = at(placed, fleet)
        free = offer.vram_free if placed.in_vram else offer.ram_free
        for kept in gone(placed, offer):
            others = [one for one in gone(placed, offer) if one is not kept]
            assert free + sum(max(one.memory_bytes, 1) for one in others) < max(need.memory_bytes, 1)


@settings(max_examples=examples(100))
@given(needs, fleets, st.data())
def test_order_of_the_nodes_does_not_matter(need: Need, fleet: list[NodeOffer], data: st.DataObject) -> None:
    assert place(need, data.draw(st.permutations(fleet))) == place(need, fleet)


@settings(max_examples=examples(100))
@given(needs, fleets, offers)
def test_another_node_never_turns_yes_into_no(
    need: Need, fleet: list[NodeOffer], newcomer: NodeOffer
) -> None:
    others = [offer for offer in fleet if offer.node != newcomer.node]
    if isinstance(place(need, others), Placed):
        assert isinstance(place(need, [*others, newcomer]), Placed)


@settings(max_examples=examples(100))
@given(needs, fleets)
def test_every_refusal_has_a_reason_for_every_node(need: Need, fleet: list[NodeOffer]) -> None:
    placed = place(need, fleet)
    if isinstance(placed, Unplaceable):
        assert placed.reasons.keys() == {offer.name for offer in fleet}
        assert all(placed.reasons.values())


@settings(max_examples=examples(100))
@given(needs, fleets)
def test_nothing_leaves_while_a_node_has_room(need: Need, fleet: list[NodeOffer]) -> None:
    placed = place(need, fleet)
    if isinstance(placed, Placed) and placed.evict:
        staying = [replace(offer, residents=tuple(map(_stays, offer.residents))) for offer in fleet]
        assert isinstance(place(need, staying), Unplaceable)


def _stays(resident: Resident) -> Resident:
    return replace(resident, movable=False)


@settings(max_examples=examples(200))
@given(needs, fleets)
def test_each_node_but_the_chosen_one_is_told_why(need: Need, fleet: list[NodeOffer]) -> None:
    placed, behind = place(need, fleet), not_chosen(need, fleet)
    others = {offer.name for offer in fleet}
    if isinstance(placed, Placed):
        others -= {at(placed, fleet).name}
    else:
        assert dict(behind) == dict(placed.reasons)
    assert behind.keys() == others
    assert all(behind.values())


@settings(max_examples=examples(200))
@given(needs, fleets)
def test_order_in_which_nodes_are_told_does_not_matter(need: Need, fleet: list[NodeOffer]) -> None:
    assert place(need, fleet) == place(need, fleet[::-1])

"""Whatever is placed one after the other, before any report shows it, never takes more than was free."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.model import Resources
from remuda.fleet.verdicts import ObservedNode
from remuda.ops.model import OpId
from remuda.scheduler.facts import PlacementFacts
from remuda.scheduler.model import Need, Placed, Replica, ReplicaState
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import place
from tests.support.examples import examples
from tests.unit.scheduler.standing import a_row, a_view, ago, rows

_AWAY = ReplicaState.UNLOADING


@st.composite
def machines(draw: st.DrawFn) -> Resources:
    """Without a GPU, with one, or with one that works in the machine's RAM."""
    total_ram, total_vram = draw(st.integers(1, 64)), draw(st.integers(0, 64))
    ram = draw(st.integers(0, total_ram))
    if draw(st.booleans()):
        return Resources(total_ram, ram, total_ram, ram, capability="metal")
    assume(total_vram != total_ram)  # That would look as if it did.
    return Resources(total_vram, draw(st.integers(0, total_vram)), total_ram, ram)


nodes = st.builds(
    lambda resources, budget: a_view(resources=resources, vram_budget=budget),
    machines(),
    st.sampled_from(("", "", "50%")),
)
needs = st.builds(
    Need,
    model=st.uuids().map(str),
    backend=st.just("llama-cpp"),
    revision=st.just("abc"),
    memory_bytes=st.integers(1, 30),
    on_cpu=st.booleans(),
)
loaded = st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=3)


@settings(max_examples=examples(300))
@given(nodes, st.lists(needs, min_size=1, max_size=8), loaded)
def test_loads_under_way_never_overbook_either_kind_of_memory(
    node: ObservedNode, asked: list[Need], there: list[tuple[int, bool]]
) -> None:
    shown = node.standing.node.resources
    book = [
        replace(a_row(f"old-{number}", since_s=900), memory_bytes=size, in_vram=in_vram, last_used=ago(60))
        for number, (size, in_vram) in enumerate(there)
    ]
    for need in asked:
        book = _after(need, node, book)
    vram, ram = _balance(book, in_vram=True), _balance(book, in_vram=False)
    if shown.capability == "metal":
        assert vram + ram <= shown.available_ram
    else:
        assert vram <= shown.available_vram
        assert ram <= shown.available_ram


def _after(need: Need, node: ObservedNode, book: list[Replica]) -> list[Replica]:
    fleet = PlacementFacts((node,), rows(*book), lambda key: 0, (), lambda id: "")
    placed = place(need, offers(need, fleet))
    if not isinstance(placed, Placed):
        return book
    kept = [replace(row, state=_AWAY) if row.key in placed.evict else row for row in book]
    return [*kept, _on_its_way(need, placed.node, in_vram=placed.in_vram)]


def _on_its_way(need: Need, node: NodeId, *, in_vram: bool) -> Replica:
    return Replica(
        ReplicaKey(need.model, 0),
        node,
        ReplicaState.STAGING,
        OpId("load"),
        need.backend,
        need.revision,
        need.memory_bytes,
        in_vram,
    )


def _balance(book: list[Replica], *, in_vram: bool) -> int:
    """What those on their way will take, less what those that go for them give back."""
    meant = [row for row in book if row.in_vram == in_vram]
    coming = sum(row.memory_bytes for row in meant if row.state is ReplicaState.STAGING)
    return coming - sum(row.memory_bytes for row in meant if row.state is _AWAY)

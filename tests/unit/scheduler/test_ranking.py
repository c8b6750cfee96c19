"""What a request would rather have decides between nodes where its model could go, and costs nobody else."""

from dataclasses import replace

from remuda.fleet.model import Label, LabelSource
from remuda.scheduler.model import Placed
from remuda.scheduler.placement import place
from remuda.scheduler.ranking import NO_WISHES, NodeWishes, shared_wishes
from tests.unit.scheduler.offering import a_need, a_resident, an_offer
from tests.unit.scheduler.standing import a_view

NODE = replace(a_view("gpu-1").standing.node, labels={"room": Label("attic", LabelSource.ADMIN)})


def wished(*prefer: str, avoid: tuple[str, ...] = ()) -> NodeWishes:
    return NodeWishes(frozenset(prefer), frozenset(avoid))


def chosen(*offers: object) -> str:
    placed = place(a_need(), offers)  # type: ignore[arg-type]
    assert isinstance(placed, Placed)
    return placed.node


def test_nodes_are_meant_by_name_or_label() -> None:
    assert wished("gpu-1").of(NODE) == wished("room=attic").of(NODE) == -1
    assert wished("gpu-2").of(NODE) == NO_WISHES.of(NODE) == 0
    assert wished("gpu-1", avoid=("room=attic",)).of(NODE) == 1


def test_preferred_node_is_taken_though_another_is_better() -> None:
    assert chosen(an_offer("a"), an_offer("b", free_gb=10, unwished=-1)) == "id-b"
    assert chosen(an_offer("a"), an_offer("b", has_file=False, copied_from="x", unwished=-1)) == "id-b"


def test_nothing_is_unloaded_for_a_preference() -> None:
    assert chosen(an_offer("a"), an_offer("b", a_resident("old", 20), free_gb=2, unwished=-1)) == "id-a"


def test_avoided_node_is_taken_where_no_other_fits() -> None:
    assert chosen(an_offer("a", unwished=1), an_offer("b", free_gb=10)) == "id-b"
    assert chosen(an_offer("a", unwished=1), an_offer("b", free_gb=1)) == "id-a"


def test_of_several_who_wait_only_what_they_share_counts() -> None:
    assert shared_wishes([wished("a", "b"), wished("b", avoid=("c",))]) == wished("b")
    assert shared_wishes([wished("a"), NO_WISHES]) == NO_WISHES
    assert shared_wishes([]) == NO_WISHES

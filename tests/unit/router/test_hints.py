"""Hints put replicas in order, and never leave one out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.router.hints import AVOIDED, HINTS_MAX, PREFERRED, SPARED, RoutingHints, hints_of
from tests.support.scripted_upstreams import route_to

ROUTES = [
    replace(route_to("m", index, f"n{index}"), labels=frozenset({f"room={room}"}))
    for index, room in enumerate(("attic", "attic", "cellar", "cellar"))
]
named = st.frozensets(st.sampled_from(("n0", "n1", "n2", "room=attic", "room=cellar", "nosuch")))


def test_nodes_and_labels_are_listed_with_commas() -> None:
    assert hints_of("gpu-1, room=attic,", " n2 ") == RoutingHints(
        frozenset({"gpu-1", "room=attic"}), frozenset({"n2"})
    )


def test_too_many_are_refused() -> None:
    with pytest.raises(Invalid, match="X-Remuda-Avoid names 17"):
        hints_of("", ",".join(f"n{number}" for number in range(HINTS_MAX + 1)))


def test_preferred_come_first_and_avoided_last() -> None:
    hints = RoutingHints(frozenset({"room=attic"}), frozenset({"n1"}))
    tiers = [([route.node_name for route in routes], why) for routes, why in hints.tiers(ROUTES)]
    assert tiers == [(["n0"], PREFERRED), (["n2", "n3"], SPARED), (["n1"], AVOIDED)]


def test_avoiding_a_node_without_a_replica_decides_nothing() -> None:
    whys = [why for routes, why in RoutingHints(avoid=frozenset({"elsewhere"})).tiers(ROUTES) if routes]
    assert whys == [""]


@given(named, named)
def test_each_replica_is_in_one_tier(prefer: frozenset[str], avoid: frozenset[str]) -> None:
    tiers = RoutingHints(prefer, avoid).tiers(ROUTES)
    found = [route for routes, _ in tiers for route in routes]
    assert sorted(route.node_name for route in found) == [route.node_name for route in ROUTES]

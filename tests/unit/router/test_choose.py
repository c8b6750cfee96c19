"""Which replica answers next."""

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.router.table import Route, choose
from remuda.router.usage import RequestLedger
from tests.unit.router.holding import holding


def route(
    index: int = 0, node: str = "n1", *, parallel: int = 0, vram_free: int = 0, silent: bool = False
) -> Route:
    return Route(
        ReplicaKey("qwen", index),
        NodeId(node),
        node,
        ReplicaEndpoint(f"{node}:1"),
        parallel=parallel,
        vram_free=vram_free,
        silent=silent,
    )


def test_least_loaded_is_chosen() -> None:
    ledger, busy, idle = RequestLedger(), route(0, "a"), route(1, "b")
    with holding(ledger, busy):
        with holding(ledger, idle):
            pass  # So that it was its turn last.
        assert choose([busy, idle], ledger.load, ledger.last_turn) is idle


def test_equals_take_turns() -> None:
    ledger, routes = RequestLedger(), [route(index, f"n{index}") for index in range(3)]
    chosen = []
    for _ in range(9):
        found = choose(routes, ledger.load, ledger.last_turn)
        assert found is not None
        with holding(ledger, found):
            chosen.append(found.key.index)

    assert chosen == [0, 1, 2] * 3


def test_free_memory_decides_only_between_equals() -> None:
    """D1 row 03: the largest GPU got all requests."""
    ledger, small, large = RequestLedger(), route(0, "a"), route(1, "b", vram_free=1 << 34)
    chosen = []
    for _ in range(4):
        found = choose([small, large], ledger.load, ledger.last_turn)
        assert found is not None
        with holding(ledger, found):
            chosen.append(found)

    assert chosen == [large, small, large, small]


def test_two_replicas_on_one_node_are_told_apart() -> None:
    """D2 row 07."""
    ledger, first, second = RequestLedger(), route(0), route(1)
    with holding(ledger, first):
        assert choose([first, second], ledger.load, ledger.last_turn) is second


def test_what_other_frontends_have_in_flight_counts() -> None:
    ledger, first, second = RequestLedger(), route(0, "a"), route(1, "b")
    ledger.set_elsewhere({first.key: 3})

    assert choose([first, second], ledger.load, ledger.last_turn) is second


def test_full_replica_is_not_chosen() -> None:
    ledger, full = RequestLedger(), route(parallel=1)
    with holding(ledger, full):
        assert choose([full], ledger.load, ledger.last_turn) is None


def test_replica_on_an_overdue_node_comes_last_and_is_better_than_none() -> None:
    ledger, silent, up = RequestLedger(), route(0, "a", silent=True), route(1, "b")
    with holding(ledger, up):
        assert choose([silent, up], ledger.load, ledger.last_turn) is up
    assert choose([silent], ledger.load, ledger.last_turn) is silent


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=8), st.randoms())
def test_order_of_the_table_does_not_matter(facts: list[tuple[int, int]], chance: "object") -> None:
    routes = [route(index, f"n{index}") for index in range(len(facts))]
    loads = {one.key: load for one, (load, _) in zip(routes, facts, strict=True)}
    turns = {one.key: turn for one, (_, turn) in zip(routes, facts, strict=True)}
    shuffled = sorted(routes, key=lambda one: hash((str(chance), one.key)))

    def chosen(among: list[Route]) -> Route | None:
        return choose(among, lambda one: loads[one.key], lambda one: turns[one.key])

    assert chosen(routes) is chosen(shuffled)
    found = chosen(routes)
    assert found is not None
    assert loads[found.key] == min(loads.values())


def test_counts_end_at_zero_however_a_request_ends() -> None:
    ledger, one = RequestLedger(), route()
    for failure in (None, ValueError("broke"), KeyboardInterrupt()):
        try:
            with holding(ledger, one):
                assert ledger.own() == {one.key: 1}
                if failure is not None:
                    raise failure
        except (ValueError, KeyboardInterrupt):
            pass

    assert ledger.own() == {}

"""Which replica has seen how much of a prompt."""

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from remuda.core.ids import ReplicaKey
from remuda.inference.requests import ChatRequest, CompletionRequest, RequestMessage
from remuda.router.prefixes import LIVES_S, WINDOW_BYTES, WINDOWS_MAX, PrefixTree, chain, prompt_text
from remuda.router.table import RouteId

ONE: RouteId = (ReplicaKey("qwen", 0), 1)
TWO: RouteId = (ReplicaKey("qwen", 1), 1)
texts = st.binary(max_size=3 * WINDOW_BYTES)


def test_chain_is_the_one_of_the_contract() -> None:
    text = b"a" * 300
    salt = xxh64_intdigest(b"qwen")
    first = xxh64_intdigest(salt.to_bytes(8, "little") + text[:256])
    assert chain("qwen", text) == (first, xxh64_intdigest(first.to_bytes(8, "little") + text[256:]))
    assert chain("other", text)[0] != first


def test_only_so_much_of_a_prompt_is_looked_at() -> None:
    assert len(chain("qwen", b"a" * (WINDOW_BYTES * WINDOWS_MAX + 9))) == WINDOWS_MAX


@given(texts, texts, texts)
def test_prompts_share_as_many_windows_as_their_common_beginning_fills(
    common: bytes, one: bytes, other: bytes
) -> None:
    chains = chain("qwen", common + one), chain("qwen", common + other)
    shared = sum(left == right for left, right in zip(*chains, strict=False))
    assert shared >= len(common) // WINDOW_BYTES


def test_text_of_a_chat_is_its_roles_and_contents() -> None:
    messages = [RequestMessage("system", "be brief"), RequestMessage("user", "hello")]
    assert prompt_text(ChatRequest(model="qwen", messages=messages)) == b"system\nbe brief\nuser\nhello\n"
    assert prompt_text(CompletionRequest(model="qwen", prompt="once")) == b"once"
    assert prompt_text(CompletionRequest(model="qwen", prompt=["a", "b"])) == b""


def test_replica_matches_as_far_as_it_has_seen() -> None:
    tree, windows = PrefixTree(), (1, 2, 3, 4)
    tree.observe(windows[:2], ONE, 0)
    tree.observe(windows, TWO, 0)
    assert tree.match(windows, (ONE, TWO), 1) == [2, 4]
    assert tree.match((9, 8, 7), (ONE, TWO), 1) == [0, 0]


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    tree = PrefixTree()
    tree.observe((1, 2), ONE, 0)
    assert tree.match((1, 2), (ONE, TWO), LIVES_S - 1) == [2, 0]
    assert tree.match((1, 2), (ONE, TWO), LIVES_S + 1) == [0, 0]
    tree.keep({ONE}, LIVES_S + 1)
    assert len(tree) == 0


def test_only_what_is_new_is_news_and_news_are_repeated_before_they_are_forgotten() -> None:
    tree = PrefixTree()
    assert tree.observe((1, 2), ONE, 0)
    assert not tree.observe((1, 2), ONE, 10)
    assert tree.observe((1, 2, 3), ONE, 10)
    assert tree.observe((1, 2), ONE, LIVES_S / 2 + 11)
    assert tree.match((1, 2), (ONE, TWO), LIVES_S + 11) == [2, 0]


def test_how_long_a_prompt_counts_as_cached_can_be_set() -> None:
    tree = PrefixTree(lives_s=10.0)
    tree.observe((1, 2), ONE, 0.0)
    assert tree.match((1, 2), (ONE,), 9.0) == [2]
    assert tree.match((1, 2), (ONE,), 11.0) == [0]


def test_replicas_that_are_no_more_are_forgotten() -> None:
    tree = PrefixTree()
    tree.observe((1,), ONE, 0)
    tree.observe((1,), TWO, 0)
    tree.keep({TWO}, 1)
    assert tree.match((1,), (ONE, TWO), 1) == [0, 1]
    assert tree.weight(ONE, 1) == 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=5), st.sampled_from((ONE, TWO))), max_size=20))
def test_weight_halves_and_is_never_negative(seen: list[tuple[list[int], RouteId]]) -> None:
    tree = PrefixTree()
    for now_s, (windows, route) in enumerate(seen):
        tree.observe(tuple(windows), route, now_s)
    for route in (ONE, TWO):
        weight = tree.weight(route, 20)
        assert weight >= 0
        assert abs(tree.weight(route, 140) - weight / 2) < 1e-9

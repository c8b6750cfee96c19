"""Whatever frontends take, spend, give back, and lose when they die: a month never costs more than its
budget, and a request never more than was reserved for it."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from remuda.core.prices import TokenPrice
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RequestMessage
from remuda.models.config import ModelConfig
from remuda.servers.budgets import (
    PaidEnding,
    Purse,
    chunk,
    cost_max,
    prompt_tokens_max,
    settled_cost,
    tokens_limit,
)

BUDGET = 1000
steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "answer", "idle", "die"]),
        st.integers(0, 2),
        st.integers(1, 300),
        st.floats(0, 1),
    ),
    max_size=60,
)


@dataclass
class Frontend:
    purse: Purse = field(default_factory=Purse)
    under_way: list[int] = field(default_factory=list)


@settings(max_examples=200)
@given(steps)
def test_no_order_of_events_costs_more_than_the_budget(events: list[tuple[str, int, int, float]]) -> None:
    taken, billed = 0, 0
    frontends = [Frontend(), Frontend(), Frontend()]
    for what, which, amount, share in events:
        one = frontends[which]
        if what == "ask":
            lacking = one.purse.lacks(amount)
            if lacking:
                granted = min(chunk(BUDGET, lacking), BUDGET - taken)
                granted = granted if granted >= lacking else 0
                taken, one.purse.taken = taken + granted, one.purse.taken + granted
            if one.purse.reserve(amount):
                one.under_way.append(amount)
        elif what == "answer" and one.under_way:
            reserved = one.under_way.pop()
            cost = int(reserved * share)
            billed += cost
            one.purse.settle(reserved, cost)
        elif what == "idle":
            taken -= one.purse.give_back()
        elif what == "die":
            billed += sum(one.under_way)  # At worst.
            frontends[which] = Frontend()
        assert one.purse.free >= 0
        committed = billed + sum(sum(each.under_way) for each in frontends)
        assert committed <= taken <= BUDGET


def call_of(
    request: ChatRequest | CompletionRequest | EmbeddingRequest, body: bytes = b"{}"
) -> InferenceCall:
    return InferenceCall(RequestKind.CHAT, request, body, ModelConfig(name="m"), "r", 0)


def chat(**members: object) -> ChatRequest:
    return ChatRequest(model="m", messages=[RequestMessage("user", "hello")], **members)  # type: ignore[arg-type]


def test_only_a_request_with_a_limit_can_be_paid_for() -> None:
    assert tokens_limit(chat(), 0) is None
    assert tokens_limit(chat(), 100) == 100
    assert tokens_limit(chat(max_tokens=5), 100) == 5
    assert tokens_limit(chat(max_tokens=5, max_completion_tokens=7), 100) == 7
    assert tokens_limit(chat(max_tokens=7, max_completion_tokens=5), 100) == 7, "a server may go by either"
    assert tokens_limit(chat(max_tokens=5, n=3), 0) == 15
    many = CompletionRequest(model="m", prompt=["a", "b"], max_tokens=5, n=2, best_of=4)
    assert tokens_limit(many, 0) == 20
    assert tokens_limit(EmbeddingRequest(model="m", input="x"), 0) == 0


@given(st.binary(max_size=2000))
def test_a_prompt_has_no_more_tokens_than_bytes(body: bytes) -> None:
    call = call_of(chat(max_tokens=10), body)
    assert prompt_tokens_max(call) >= len(body)
    price = TokenPrice(1_000_000, 2_000_000)
    assert cost_max(call, price, 10) >= len(body) + 20


@given(st.sampled_from(PaidEnding), st.integers(0, 10**12), st.none() | st.integers(0, 10**12))
def test_a_request_costs_what_is_told_and_broken_off_no_less_than_what_was_reserved(
    ending: PaidEnding, reserved: int, told: int | None
) -> None:
    cost = settled_cost(ending, reserved, told)
    if ending is PaidEnding.REFUSED:
        assert cost == 0
    elif ending is PaidEnding.FINISHED:
        assert cost == (reserved if told is None else told)
    else:
        assert cost >= reserved
        assert told is None or cost >= told


def test_a_prompt_that_is_to_be_kept_may_cost_twice_as_much() -> None:
    price = TokenPrice(1_000_000, 0)
    plain, marked = chat(max_tokens=1), chat(max_tokens=1)
    marked.messages[0].cache_control = Raw(b'{"type":"ephemeral"}')
    assert cost_max(call_of(marked), price, 1) == 2 * cost_max(call_of(plain), price, 1)

"""What echo answers, and the numbers it makes up."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.backends.echo.words import (
    answer_to,
    logprobs_of,
    ranked,
    split_tokens,
    token_id,
    unit_vector,
)
from remuda.rpc import backend_pb2 as pb


def chat(*turns: tuple[str, str]) -> pb.PredictOptions:
    messages = [pb.Message(role=role, content=content) for role, content in turns]
    return pb.PredictOptions(Messages=messages, UseTokenizerTemplate=True)


@given(st.text())
def test_tokens_joined_are_the_text(text: str) -> None:
    assert "".join(split_tokens(text)) == text


def test_a_token_is_a_word_with_the_space_before_it() -> None:
    assert split_tokens("to be  or\nnot ") == ["to", " be", "  or", "\nnot", " "]


def test_a_prompt_is_answered_with_itself() -> None:
    answer = answer_to(pb.PredictOptions(Prompt="two words"))
    assert (answer.text, answer.prompt_tokens) == ("two words", 2)


def test_a_chat_is_answered_with_the_last_words_of_the_user() -> None:
    answer = answer_to(chat(("system", "be brief"), ("user", "hello there"), ("assistant", "hello")))
    assert (answer.text, answer.prompt_tokens) == ("hello there", 5)


def test_a_chat_without_a_user_is_answered_with_its_end() -> None:
    assert answer_to(chat(("system", "be brief"))).text == "be brief"


def test_an_answer_is_no_longer_than_wanted() -> None:
    assert answer_to(pb.PredictOptions(Prompt="one two three", Tokens=2)).text == "one two"


@pytest.mark.parametrize("tokens", [0, -1])
def test_no_limit_is_the_whole_answer(tokens: int) -> None:
    assert answer_to(pb.PredictOptions(Prompt="one two three", Tokens=tokens)).text == "one two three"


def test_the_earliest_stop_word_ends_the_answer_and_is_not_part_of_it() -> None:
    request = pb.PredictOptions(Prompt="one two three", StopPrompts=["three", "", "wo"])
    assert answer_to(request).tokens == ["one", " t"]


def test_without_an_end_the_answer_is_repeated_up_to_the_limit() -> None:
    request = pb.PredictOptions(Prompt="tick tock", IgnoreEOS=True, Tokens=5)
    assert answer_to(request).text == "tick tock tick tock tick"


@given(st.text(max_size=20))
def test_ids_fit_the_wire(token: str) -> None:
    assert pb.TokenizationResponse(tokens=[token_id(token)]).tokens[0] == token_id(token)


@given(st.text(), st.integers(1, 300))
def test_an_embedding_has_length_one(text: str, width: int) -> None:
    vector = unit_vector(text, width)
    assert len(vector) == width
    assert math.isclose(math.hypot(*vector), 1.0)


def test_embeddings_are_a_matter_of_the_text_alone() -> None:
    assert unit_vector("same", 8) == unit_vector("same", 8) != unit_vector("other", 8)


def test_the_document_with_most_words_of_the_query_comes_first() -> None:
    documents = ["about cats", "Dogs and cats", "weather"]
    assert ranked("cats, dogs", documents) == [(1.0, 1), (0.5, 0), (0.0, 2)]


def test_equal_documents_keep_their_order() -> None:
    assert [index for _, index in ranked("cat", ["cat", "a cat", "the cat"])] == [0, 1, 2]


def test_logprobs_have_the_shape_of_the_openai_api() -> None:
    (entry,) = json.loads(json.dumps(logprobs_of(["é"], 3)))["content"]
    assert (entry["token"], entry["bytes"]) == ("é", [195, 169])
    assert entry["logprob"] < 0
    tops = entry["top_logprobs"]
    assert tops[0]["token"] == "é"
    assert [top["logprob"] for top in tops] == sorted((top["logprob"] for top in tops), reverse=True)
    assert len(tops) == 3

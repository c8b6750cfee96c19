import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.upstreams.grpc.reply_decoder import Thoughts


def _told(pieces: list[str]) -> tuple[str, str]:
    thoughts = Thoughts()
    told = [thoughts.feed(piece) for piece in pieces] + [thoughts.feed("", last=True)]
    return "".join(content for content, _ in told), "".join(thought for _, thought in told)


@pytest.mark.parametrize(
    ("text", "content", "thought"),
    [
        ("plain", "plain", ""),
        ("", "", ""),
        ("\n plain", "\n plain", ""),
        ("<think>hm</think>yes", "yes", "hm"),
        ("\n<think>\nhm\n</think>\n\nyes\n", "yes\n", "hm\n"),
        ("<think></think>yes", "yes", ""),
        ("<think>hm", "", "hm"),
        ("<think>a < b </thin", "", "a < b </thin"),
        ("<thin", "<thin", ""),
        ("say <think>hm</think>", "say <think>hm</think>", ""),
        ("<think>a</think>b<think>c</think>", "b<think>c</think>", "a"),
    ],
)
def test_thoughts_are_told_apart_however_they_are_cut(text: str, content: str, thought: str) -> None:
    assert _told([text]) == (content, thought)
    assert _told(list(text)) == (content, thought)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "\n", "a"])).map("".join),
    st.lists(st.integers(0, 60)),
)
def test_where_a_text_is_cut_makes_no_difference(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})

    assert _told([text[start:end] for start, end in itertools.pairwise(places)]) == _told([text])


def test_plain_text_is_told_at_once() -> None:
    assert Thoughts().feed("hello") == ("hello", "")

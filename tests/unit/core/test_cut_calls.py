"""Calls that broke off at the limit of their answer: what was written of them, and no more."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.cut_calls import CutCall, cut_calls, cut_message, whole_arguments

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(), st.dictionaries(st.text(), values, max_size=3), st.integers(0, 500), st.booleans())
def test_cut_anywhere_a_call_has_a_beginning_of_its_arguments_and_no_word_is_made_up(
    name: str, arguments: dict[str, object], at: int, several: bool
) -> None:
    call = json.dumps({"name": name, "arguments": arguments})
    text = f"[{call}, {call}]" if several else call
    cut = cut_calls(text[:at])
    if not text[:at]:
        assert cut is None
        return
    assert cut is not None
    assert all(one.name == name for one in cut)
    for number, (_, told) in enumerate(cut):
        if whole_arguments(told):
            assert json.loads(told) == arguments
        else:
            assert number == len(cut) - 1
            assert f"{json.dumps(arguments)}}}".startswith(told)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("{", []),
        ('{"na', []),
        ('{\n  "name" : "wea', []),
        ('{"name": "weather"', [CutCall("weather")]),
        ('{"name": "weather", "argum', [CutCall("weather")]),
        ('{"name": "weather", "arguments": {"city": "P', [CutCall("weather", '{"city": "P')]),
        ('{"name": "weather", "arguments": {"city": "P"}', [CutCall("weather", '{"city": "P"}')]),
    ],
)
def test_how_far_a_call_is(text: str, calls: list[CutCall]) -> None:
    assert cut_calls(text) == calls


@pytest.mark.parametrize("text", ["", "[]", "Hello", '{"city": "Paris"}', '{"city": "Pa', "7", '"name"'])
def test_other_texts_are_no_calls(text: str) -> None:
    assert cut_calls(text) is None


@given(st.text(), st.integers(0, 300))
def test_of_a_message_the_beginning_is_read(message: str, at: int) -> None:
    text = json.dumps({"message": message})[:at]
    told = cut_message(text)
    whole = message.encode(errors="replace").decode()
    assert whole.startswith((told, told.rstrip("?")))  # Half a character is a question mark.

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.models.tool_text import FoundCall, Parsed, tool_calls_in
from tests.unit.models.schemas import anything, names

NAMES = ("look", "clock")
LOOK = '{"name": "look", "arguments": {"at": "ü"}}'
FOUND = FoundCall("look", '{"at": "ü"}')


def parsed(text: str, no_action: str = "answer") -> Parsed:
    return tool_calls_in(text, NAMES, no_action)


@pytest.mark.parametrize(
    "text",
    [
        LOOK,
        f"\n {LOOK} \n",
        f"[{LOOK}]",
        f"```json\n{LOOK}\n```",
        f"```\n[{LOOK}]```",
        f"<tool_call>\n{LOOK}\n</tool_call>",
        f"<tool_call>{LOOK}",
        f"<tool_call>```json\n{LOOK}\n```</tool_call>",
        '{"arguments": {"at": "ü"}, "name": "look"}',
        '{"name": "look", "parameters": {"at": "ü"}}',
        '{"name": "look", "arguments": "{\\"at\\": \\"ü\\"}"}',
        '{"type": "function", "function": {"name": "look", "arguments": {"at": "ü"}}}',
    ],
)
def test_a_call_is_found(text: str) -> None:
    assert parsed(text) == Parsed("", (FOUND,))


@pytest.mark.parametrize(
    "text",
    [
        f"[{LOOK}, {LOOK}]",
        f"{LOOK}\n{LOOK}",
        f"{LOOK};{LOOK}",
        f"<tool_call>{LOOK}</tool_call>\n<tool_call>{LOOK}</tool_call>",
        f"<tool_call>[{LOOK},{LOOK}]</tool_call>",
    ],
)
def test_several_calls_are_found(text: str) -> None:
    assert parsed(text) == Parsed("", (FOUND, FOUND))


def test_what_is_said_beside_a_call_is_kept() -> None:
    text = f"Let me look.\n<tool_call>{LOOK}</tool_call>\nThere."

    assert parsed(text) == Parsed("Let me look.\nThere.", (FOUND,))


def test_a_call_without_arguments_has_none() -> None:
    assert parsed('{"name": "clock"}') == Parsed("", (FoundCall("clock", "{}"),))


def test_calling_nothing_is_saying_something() -> None:
    assert parsed('{"name": "answer", "arguments": {"message": "Hello\\nyou"}}') == Parsed("Hello\nyou")
    assert parsed('{"name": "answer", "arguments": {"message": [1]}}') == Parsed("[1]")


def test_a_tool_may_have_the_name_of_the_one_that_is_none() -> None:
    assert tool_calls_in(LOOK, NAMES, "look").calls == (FOUND,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello",
        "{}",
        "[]",
        "null",
        '"look"',
        '{"name": "other", "arguments": {}}',
        '{"name": "answer", "arguments": {"message": "x"}}',
        '{"name": "look", "arguments": [1]}',
        '{"name": "look", "arguments": "no JSON"}',
        '{"name": "look", "arguments": {"a": NaN}}',
        '{"name": "look", "arguments": {"a": 1e999}}',
        f"[{LOOK}, 1]",
        f"{LOOK} and so on",
        f"As in {LOOK}",
        "```json\n{}\n```",
        "```",
        "<tool_call>no</tool_call>",
        "<tool_call>",
        '{"name": "look", "argum',
        "[" * 100_000,
        '{"name": "look", "arguments": ' + '{"a":' * 100_000,
        "<tool_call>" * 10_000,
        "```json\n" * 10_000,
        '{"name": "look", "arguments": {"a": ' + "9" * 5000 + "}}",
    ],
)
def test_what_is_no_call_stays_as_it_was_said(text: str) -> None:
    assert parsed(text, no_action="") == Parsed(text)


def test_half_a_character_does_no_harm() -> None:
    call = '{"name": "look", "arguments": {"a": "\\ud800"}}'
    answer = '{"name": "answer", "arguments": {"message": "\\ud800"}}'

    assert parsed(call).calls == (FoundCall("look", '{"a": "\\ud800"}'),)
    assert parsed(answer) == Parsed("?")


@given(st.text() | st.text(alphabet='{}[]<>/`",:\n_acjlmnoste', max_size=80))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(parsed(text), Parsed)


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.dictionaries(names, anything, max_size=3)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(
        ["{}", "```json\n{}\n```", "<tool_call>{}</tool_call>", "Well.\n<tool_call>\n{}\n</tool_call>"]
    ),
)
def test_calls_that_were_written_are_read_back(
    calls: list[tuple[str, dict[str, object]]], around: str
) -> None:
    written = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
    found = parsed(around.replace("{}", written))

    assert [(call.name, json.loads(call.arguments_json)) for call in found.calls] == calls

"""Calls that must be made by models whose templates know no tools."""

import json

import pytest

from remuda.backends.llama_cpp.forced_calls import CallReading, call_schema, with_tools_named
from remuda.rpc import backend_pb2 as pb

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
QUESTION = {"role": "user", "content": "Rain?"}


def piece(text: str, tokens: int) -> pb.Reply:
    return pb.Reply(message=text.encode(), tokens=tokens, chat_deltas=[pb.ChatDelta(content=text)])


def test_the_model_is_told_of_the_tools_before_anything_else() -> None:
    first, *rest = with_tools_named([WEATHER, CLOCK], [QUESTION])
    assert first["role"] == "system"
    assert [json.loads(line)["name"] for line in first["content"].splitlines()[1:]] == ["weather", "clock"]
    assert rest == [QUESTION]


def test_what_the_system_says_comes_first() -> None:
    first, *rest = with_tools_named([CLOCK], [{"role": "system", "content": "Be brief."}, QUESTION])
    assert first["content"].startswith("Be brief.\n\n")
    assert first["content"].endswith('{"name": "clock"}')
    assert rest == [QUESTION]


def test_the_schema_is_that_of_one_call() -> None:
    schema = call_schema([WEATHER, CLOCK])
    assert [call["properties"] for call in schema["anyOf"]] == [
        {"name": {"const": "weather"}, "arguments": {"$ref": "#/$defs/0"}},
        {"name": {"const": "clock"}, "arguments": {"$ref": "#/$defs/1"}},
    ]
    assert schema["$defs"] == {"0": {"type": "object"}, "1": {"type": "object"}}


def test_references_within_parameters_still_lead_somewhere() -> None:
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}, "all": {"anyOf": [{"$ref": "#/$defs/place"}]}},
        "$defs": {"place": {"type": "string"}},
    }
    [moved] = call_schema([{"function": {"name": "f", "parameters": parameters}}])["$defs"].values()
    there = {"$ref": "#/$defs/0/$defs/place"}
    assert moved["properties"] == {"at": there, "all": {"anyOf": [there]}}


def test_a_call_is_told_at_its_end_with_the_numbers_of_the_answer() -> None:
    reading = CallReading("id-1")
    parts = ['{"name": "wea', 'ther", "arguments": {"city": "Köln", "brace": "}"}', "}"]
    heard = [reading.hear(piece(text, number)) for number, text in enumerate(parts, start=1)]
    assert heard == [pb.Reply(tokens=1), pb.Reply(tokens=2), pb.Reply(tokens=3)]
    call = pb.ToolCallDelta(id="id-1", name="weather", arguments='{"city": "Köln", "brace": "}"}')
    assert reading.end() == pb.Reply(tokens=3, chat_deltas=[pb.ChatDelta(tool_calls=[call])])


def test_thoughts_are_told_as_they_come() -> None:
    thought = pb.Reply(chat_deltas=[pb.ChatDelta(reasoning_content="hm")], tokens=1)
    assert CallReading("").hear(thought) == thought


def test_probabilities_are_told_once() -> None:
    reading = CallReading("")
    reply = piece("{", 1)
    reply.logprobs = b"{}"
    assert reading.hear(reply).logprobs == b"{}"
    assert reading.end().logprobs == b""


@pytest.mark.parametrize(
    ("text", "arguments"),
    [('{"name": "weather", "argum', ""), ('{"name": "weather", "arguments": {"city": "}}', '{"city": "}}')],
)
def test_of_a_call_that_breaks_off_the_beginning_is_told(text: str, arguments: str) -> None:
    reading = CallReading("id-1")
    reading.hear(piece(text, 5))
    call = pb.ToolCallDelta(id="id-1", name="weather", arguments=arguments)
    assert reading.end() == pb.Reply(tokens=5, chat_deltas=[pb.ChatDelta(tool_calls=[call])])


def test_a_call_that_breaks_off_before_its_name_is_told_as_nothing() -> None:
    reading = CallReading("id-1")
    reading.hear(piece('{"name": "wea', 5))
    assert reading.end() == pb.Reply(tokens=5, chat_deltas=[pb.ChatDelta()])


def test_what_is_no_call_is_told_as_it_is() -> None:
    reading = CallReading("")
    reading.hear(piece("[]", 5))
    assert reading.end() == piece("[]", 5)


def test_an_answer_without_a_word_stays_without() -> None:
    assert CallReading("").end() == pb.Reply()

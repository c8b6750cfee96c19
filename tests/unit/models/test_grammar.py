import contextlib
import json
from collections.abc import Callable

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.models import grammar as schema_grammar
from remuda.models.grammar import JSON_GRAMMAR, ToolSpec
from tests.unit.models.gbnf import Grammar
from tests.unit.models.grammars import grammar_of_schema, grammar_of_tools
from tests.unit.models.schemas import Described, anything, described, spoiled

Schema = dict[str, JsonValue]
PERSON: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", 'q"\\\n', 1, None]}, "maxItems": 2},
    },
    "required": ["name"],
    "additionalProperties": False,
}
WEATHER = ToolSpec("weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
CLOCK = ToolSpec("clock", parameters=None)


def accepts(schema: JsonValue, document: JsonValue) -> bool:
    return Grammar(grammar_of_schema(schema)).accepts(json.dumps(document, ensure_ascii=False))


def refusal(schema: JsonValue) -> str:
    with pytest.raises(Invalid) as refused:
        grammar_of_schema(schema)
    return refused.value.message


@pytest.mark.parametrize(
    "text", ['{"a": [1, -2.5e3, {"b": null}], "c": "x\\n\\u00e9\\""}', "{}", '{\n  "a": true\n}']
)
def test_any_object_is_json(text: str) -> None:
    assert Grammar(JSON_GRAMMAR).accepts(text)


@pytest.mark.parametrize("text", ["", "[1]", '{"a":}', '{"a": 01}', '{"a": "\n"}', "{} {}", '{"a" 1}', "{,}"])
def test_what_is_no_object_is_refused(text: str) -> None:
    assert not Grammar(JSON_GRAMMAR).accepts(text)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (PERSON, {"name": "ü", "age": 3, "tags": ["a", 'q"\\\n']}, {"age": 3}),
        (PERSON, {"name": "x", "tags": []}, {"name": ""}),
        (PERSON, {"name": "x"}, {"name": "x", "more": 1}),
        (PERSON, {"name": "x"}, {"name": "x", "tags": ["a", "a", "a"]}),
        ({"type": ["string", "null"]}, None, 1),
        ({"const": {"a": 1}}, None, {"a": 2}),
        ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}]}, [True], ["x"]),
        ({"type": "array", "minItems": 2, "items": {"type": "integer"}}, [1, 2], [1]),
        ({"type": "array", "maxItems": 0}, [], [1]),
        ({"prefixItems": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [1, "a"]),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "null"}}, ["a", None], ["a", 1]),
        ({"type": "string", "maxLength": 3}, "äöü", "four"),
        ({"type": "string", "maxLength": 9999}, "x" * 99, 1),
        ({"type": "object", "properties": {}}, {}, {"a": 1}),
        ({"type": "object"}, {"a": [1]}, []),
        ({"required": ["a"]}, {"a": 1}, {}),
        ({"additionalProperties": {"type": "integer"}}, {"a": 1, "b": 2}, {"a": "x"}),
        (
            {"properties": {"ab": {"type": "integer"}}, "additionalProperties": True},
            {"ab": 1, "a": "x"},
            {"ab": "x"},
        ),
        (
            {"properties": {"": True, 'q"': True}, "additionalProperties": {"type": "null"}},
            {"q": None},
            {"x": 1},
        ),
        ({}, [{"a": 1.5}], ...),
        (True, "x", ...),
    ],
)
def test_a_schema_is_followed(schema: JsonValue, good: JsonValue, bad: object) -> None:
    if not isinstance(schema, dict) or "const" not in schema:
        assert accepts(schema, good)
    if bad is not ...:
        assert not Grammar(grammar_of_schema(schema)).accepts(json.dumps(bad))


def test_a_constant_is_written_in_the_shortest_way() -> None:
    assert Grammar(grammar_of_schema({"const": {"a": [1, 2]}})).accepts('{"a":[1,2]}')


def test_references_are_followed() -> None:
    schema: Schema = {
        "$defs": {"a/b": {"type": "integer"}, "c": {"$ref": "#/$defs/a~1b"}},
        "properties": {"x": {"$ref": "#/$defs/c"}, "y": {"$ref": "#/$defs/c", "description": "again"}},
        "required": ["x", "y"],
    }

    assert accepts(schema, {"x": 1, "y": 2})
    assert not accepts(schema, {"x": 1, "y": "2"})


def test_all_of_several_is_one_object() -> None:
    base: Schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema: Schema = {
        "$defs": {"base": base},
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}],
    }

    assert accepts(schema, {"a": 1, "b": None})
    assert not accepts(schema, {"a": 1})


def test_what_stands_beside_a_choice_holds_for_each() -> None:
    schema: Schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    }

    assert accepts(schema, {"b": 1})
    assert not accepts(schema, {})


def deep(levels: int) -> JsonValue:
    schema: JsonValue = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(make: Callable[[JsonValue], Schema]) -> Schema:
    """Each definition names the next one twice."""
    defs: Schema = {f"d{n}": make({"$ref": f"#/$defs/d{n + 1}"}) for n in range(40)}
    return {"$defs": {**defs, "d40": {"type": "object"}}, "$ref": "#/$defs/d0"}


LOOP: Schema = {"$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (LOOP, "the schema at #/$ref/properties/b: #/$defs/a refers to itself"),
        (
            {"properties": {"a": {"$ref": "#"}}},
            "the schema at #/properties/a/$ref/properties/a: # refers to itself",
        ),
        (
            {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            "the schema at #/$ref: #/$defs/a refers",
        ),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "the schema at #/"),
        ({"items": {"$ref": "#/$defs/x"}}, "the schema at #/items: #/$defs/x refers to nothing"),
        ({"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{}]}, "the schema at #: #/anyOf/999"),
        ({"$ref": "other.json"}, "the schema at #: other.json is not within this schema"),
        ({"$ref": "#/$defs", "$defs": [1]}, "the schema at #: #/$defs is no schema"),
        (deep(200), "the schema at #/items/items"),
        (doubling(lambda next_: {"allOf": [next_, next_]}), "the JSON schema is too complex"),
        ({"type": "text"}, 'the schema at #: "text" is not a type; use string, number'),
        ({"type": []}, "the schema at #: no type is left"),
        ({"enum": []}, "the schema at #: enum must be a list of one or more"),
        ({"anyOf": {}}, "the schema at #: anyOf must be a list"),
        ({"properties": []}, "the schema at #: properties must be a map"),
        ({"properties": {"a": 1}}, "the schema at #/properties/a: a schema must be an object or true"),
        ({"items": False, "minItems": -1}, "the schema at #: minItems must be a whole number"),
        ({"minLength": 3, "maxLength": 2}, "the schema at #: minLength is more than maxLength"),
        ({"minItems": 5000}, "the schema at #: minItems is more than 2000"),
        (
            {"allOf": [{"type": "string"}, {"type": "null"}]},
            "the schema at #/allOf/1: nothing can be string and null",
        ),
        ({"enum": ["x" * 2_000_000]}, "a constant is longer than 32768 characters"),
        (False, "the schema at #: a schema must be an object or true"),
        ("x", "the schema at #: a schema must be an object or true"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_where_it_stands(schema: JsonValue, said: str) -> None:
    assert refusal(schema).startswith(said)


def test_definitions_used_twice_are_written_once() -> None:
    schema = doubling(lambda next_: {"properties": {"a": next_, "b": next_}})

    assert len(grammar_of_schema(schema)) < 20_000


def test_half_a_character_does_no_harm() -> None:
    assert grammar_of_schema(
        {"properties": {"\ud800": {"enum": ["\ud800"]}}, "additionalProperties": True}
    ).encode()


def test_the_same_schema_has_the_same_grammar() -> None:
    assert grammar_of_schema(PERSON) == grammar_of_schema(json.loads(json.dumps(PERSON)))


# Tools


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('{"name": "weather", "arguments": {"city": "Bern"}}', True),
        ('{"name":"clock","arguments":{"any":1}}', True),
        ('{"name": "answer", "arguments": {"message": "Hello"}}', True),
        ('{"name": "answer", "arguments": {}}', False),
        ('{"name": "other", "arguments": {}}', False),
        ('{"name": "weather", "arguments": {"city": 1}}', False),
        ('{"name": "weather"}', False),
        ('[{"name": "weather", "arguments": {}}]', False),
    ],
)
def test_a_call_is_one_of_the_tools_or_none(text: str, accepted: bool) -> None:
    grammar = grammar_of_tools([WEATHER, CLOCK], parallel=False, no_action="answer")

    assert Grammar(grammar).accepts(text) is accepted


def test_several_calls_are_a_list() -> None:
    grammar = Grammar(grammar_of_tools([WEATHER, CLOCK], parallel=True, no_action=None))
    call = '{"name": "weather", "arguments": {}}'

    assert grammar.accepts(call)
    assert grammar.accepts(f"[{call}, {call}]")
    assert not grammar.accepts("[]")
    assert not grammar.accepts('{"name": "answer", "arguments": {"message": "x"}}')


def test_a_tool_may_be_called_as_the_one_that_is_none() -> None:
    grammar = Grammar(grammar_of_tools([ToolSpec("answer")], parallel=False, no_action="answer"))

    assert grammar.accepts('{"name": "answer", "arguments": {"other": 1}}')


@pytest.mark.parametrize("parameters", [[], "x", {"type": "string"}, LOOP])
def test_a_tool_without_sound_parameters_is_named(parameters: JsonValue) -> None:
    with pytest.raises(Invalid, match="the tool look: "):
        grammar_of_tools([ToolSpec("look", parameters=parameters)], parallel=False, no_action="")


def test_there_must_be_something_to_call() -> None:
    with pytest.raises(Invalid, match="no tool"):
        grammar_of_tools([], parallel=True, no_action=None)


# Any schema


@given(st.data(), described, st.sampled_from([None, 1, 4]))
def test_every_value_of_a_schema_is_accepted(
    data: st.DataObject, case: Described, indent: int | None
) -> None:
    value = data.draw(case.values)

    assert Grammar(grammar_of_schema(case.schema)).accepts(
        json.dumps(value, ensure_ascii=False, indent=indent)
    )


@given(st.data(), described)
def test_nothing_else_is_accepted(data: st.DataObject, case: Described) -> None:
    value = data.draw(spoiled(data.draw(case.values)))

    if accepts(case.schema, value):
        assert jsonschema_rs.is_valid(case.schema, value)


@given(anything)
def test_whatever_claims_to_be_a_schema_is_followed_or_refused(schema: JsonValue) -> None:
    with contextlib.suppress(Invalid):
        assert Grammar(grammar_of_schema(schema))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties cannot be kept"),
        ({"$dynamicRef": "#a"}, "dynamicRef cannot be kept"),
        ({"type": "string", "enum": ["a", 1]}, "enum has a value that is not of type string"),
        (
            {"type": ["integer", "null"], "const": 1.5},
            "const has a value that is not of type integer or null",
        ),
        ({"type": "integer", "const": True}, "const has a value that is not of type integer"),
        ({"required": ["a"], "properties": {}, "additionalProperties": False}, "it requires a, which is not"),
    ],
)
def test_strict_refuses_what_would_not_be_kept(schema: JsonValue, words: str) -> None:
    assert at_once(schema_grammar.grammar_of_schema({"properties": {"x": schema}}))
    with pytest.raises(Invalid, match=words):
        at_once(schema_grammar.grammar_of_schema({"properties": {"x": schema}}, strict=True))


def test_strict_takes_lists_of_values_of_their_type() -> None:
    schema: JsonValue = {
        "properties": {
            "a": {"type": ["string", "null"], "enum": ["a", None]},
            "b": {"type": "integer", "const": 1.0},
        },
        "unevaluatedProperties": False,
    }

    assert at_once(schema_grammar.grammar_of_schema(schema, strict=True))

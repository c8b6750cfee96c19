"""Bounds of numbers, formats of texts, and what is said of keywords that no grammar keeps."""

import datetime
import functools
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.models import grammar
from remuda.models import grammar_values as values
from remuda.models.grammar import ToolSpec
from tests.unit.models.gbnf import Grammar
from tests.unit.models.grammars import grammar_of_schema

BOUND = st.none() | st.integers(-1200, 1200) | st.integers(-(10**17), 10**17)


@functools.cache
def of_format(name: str) -> Grammar:
    return Grammar(f'root ::= "\\"" {values.FORMATS[name]} "\\""')


def strictly(schema: JsonValue) -> Grammar:
    return Grammar(at_once(grammar.grammar_of_schema(schema, strict=True)))


@given(BOUND, BOUND, st.booleans(), st.booleans(), st.data())
def test_whole_numbers_keep_their_bounds(
    least: int | None, most: int | None, above: bool, below: bool, data: st.DataObject
) -> None:
    schema: dict[str, JsonValue] = {"type": "integer"}
    low = -(10**18) + 1 if least is None else least + above
    high = 10**18 - 1 if most is None else most - below
    if least is not None:
        schema["exclusiveMinimum" if above else "minimum"] = least
    if most is not None:
        schema["exclusiveMaximum" if below else "maximum"] = most
    if low > high:
        with pytest.raises(Invalid, match="no number"):
            values.whole_range(schema)
        return

    found = Grammar(f"root ::= {values.whole_numbers(values.whole_range(schema))}")

    near = [edge + step for edge in (low, high, 0) for step in (-11, -1, 0, 1, 11)]
    for number in [*near, data.draw(st.integers(low, high)), -low, -high]:
        assert found.accepts(str(number)) == (low <= number <= high and abs(number) < 10**18), number
    assert not found.accepts("-0")
    assert not found.accepts("01")


@given(st.integers(-30, 30), st.integers(0, 40), st.decimals(-80, 80, places=2))
def test_numbers_keep_whole_bounds(least: int, wide: int, number: object) -> None:
    wanted = values.number_range({"minimum": least, "maximum": least + wide})
    found = Grammar(f"root ::= {values.numbers(wanted)}")

    assert found.accepts(str(number)) == (least <= float(str(number)) <= least + wide)


def test_bounds_of_older_schemas_and_fractions_are_read() -> None:
    older = strictly({"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 9.5})

    assert [n for n in range(12) if older.accepts(str(n))] == list(range(2, 10))


@given(st.dates(), st.times(), st.uuids())
def test_formats_are_kept(date: datetime.date, time: datetime.time, unique: uuid.UUID) -> None:
    both = datetime.datetime.combine(date, time)
    good = {
        "date": str(date),
        "time": f"{time}Z",
        "date-time": f"{both.isoformat()}+01:00",
        "uuid": str(unique),
    }
    for name, text in good.items():
        found = of_format(name)
        leap_day = "-02-29" in text
        assert found.accepts(json.dumps(text)) != leap_day
        assert not found.accepts(json.dumps(text[:-1]))


@pytest.mark.parametrize("text", ["2023-02-30", "2023-04-31", "2023-13-01", "2023-00-10", "2023-1-1"])
def test_what_is_no_date_is_not_written(text: str) -> None:
    assert not strictly({"format": "date"}).accepts(json.dumps(text))
    assert strictly({"type": "string", "format": "date"}).accepts('"2023-02-28"')
    assert strictly({"type": "integer", "minimum": 3}).accepts("3")
    assert not strictly({"minimum": 3}).accepts("2.5")


UNKEPT: list[tuple[dict[str, JsonValue], str]] = [
    ({"type": "string", "pattern": "^a+$"}, "pattern"),
    ({"type": "string", "format": "email"}, "format"),
    ({"type": "string", "format": "date", "maxLength": 9}, "format"),
    ({"type": "string", "maxLength": 5000}, "maxLength"),
    ({"type": "integer", "multipleOf": 5}, "multipleOf"),
    ({"type": "number", "minimum": 0.5}, "minimum"),
    ({"type": "number", "exclusiveMaximum": 1}, "exclusiveMaximum"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "maxItems": 3000}, "maxItems"),
    ({"type": "object", "minProperties": 1}, "minProperties"),
    ({"type": "object", "patternProperties": {"^a": {}}}, "patternProperties"),
    ({"not": {"type": "string"}}, "not"),
    ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "oneOf"),
]


@pytest.mark.parametrize(("schema", "keyword"), UNKEPT)
def test_a_strict_schema_is_refused_for_what_cannot_be_kept(schema: JsonValue, keyword: str) -> None:
    whole: JsonValue = {"type": "object", "properties": {"a/b": {"anyOf": [schema]}}}

    with pytest.raises(Invalid) as refused:
        at_once(grammar.grammar_of_schema(whole, strict=True))
    tools = [ToolSpec("t", parameters=whole, strict=True)]
    with pytest.raises(Invalid) as tool:
        at_once(grammar.grammar_of_tools(tools, parallel=False, no_action=None))

    assert f"the schema at #/properties/a~1b/anyOf/0: {keyword} cannot be kept" in refused.value.message
    assert tool.value.message.startswith("the tool t: the schema at #/properties/a~1b")


@pytest.mark.parametrize(("schema", "keyword"), UNKEPT)
def test_without_strict_it_is_not_looked_at(schema: JsonValue, keyword: str) -> None:
    assert keyword in json.dumps(schema)
    assert Grammar(grammar_of_schema(schema))


def test_keywords_that_ask_for_nothing_do_no_harm() -> None:
    idle: JsonValue = {"type": "array", "uniqueItems": False, "minItems": 0, "title": "t", "x-order": 1}

    assert strictly(idle).accepts("[1, 1]")


@pytest.mark.parametrize("bound", ["1", True, [], float("inf")])
def test_a_bound_must_be_a_number(bound: JsonValue) -> None:
    with pytest.raises(Invalid, match="the schema at #: minimum"):
        grammar_of_schema({"type": "integer", "minimum": bound})

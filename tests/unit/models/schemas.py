"""JSON schemas by chance, each with the values it allows, and values that went a little wrong."""

from typing import NamedTuple

from hypothesis import strategies as st
from pydantic import JsonValue

Values = st.SearchStrategy[JsonValue]
characters = st.characters(exclude_categories=["Cs"])
names = st.text(characters, max_size=4)
texts = st.text(characters, max_size=6)
integers = st.integers(-(10**17), 10**17)
numbers = st.floats(-1e30, 1e30).filter(lambda number: number == 0 or abs(number) > 1e-30)
anything: Values = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


class Described(NamedTuple):
    schema: dict[str, JsonValue]
    values: Values


def _of_length(least: int) -> Described:
    schema: dict[str, JsonValue] = {"type": "string", "minLength": least, "maxLength": least + 1}
    return Described(schema, st.text(characters, min_size=least, max_size=least + 1))


def _one_of(items: list[JsonValue]) -> Described:
    return Described({"enum": items}, st.sampled_from(items))


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[Described]) -> Described:
    item, least, more = draw(inner), draw(st.integers(0, 2)), draw(st.integers(0, 2))
    schema: dict[str, JsonValue] = {
        "type": "array",
        "items": item.schema,
        "minItems": least,
        "maxItems": least + more,
    }
    return Described(schema, st.lists(item.values, min_size=least, max_size=least + more))


@st.composite
def _choices(draw: st.DrawFn, inner: st.SearchStrategy[Described]) -> Described:
    ways = draw(st.lists(inner, min_size=1, max_size=3))
    return Described({"anyOf": [way.schema for way in ways]}, st.one_of([way.values for way in ways]))


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Described]) -> Described:
    known = draw(st.dictionaries(names, inner, max_size=4))
    required: list[JsonValue] = [name for name in known if draw(st.booleans())]
    ways: list[JsonValue] = [False, True, {"type": "integer"}]
    others = draw(st.sampled_from(ways))
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {name: item.schema for name, item in known.items()},
        "required": required,
        "additionalProperties": others,
    }

    @st.composite
    def values(draw: st.DrawFn) -> JsonValue:
        kept = [name for name in known if name in required or draw(st.booleans())]
        value = {name: draw(known[name].values) for name in kept}
        more = st.dictionaries(st.text("xyz", min_size=5, max_size=6), st.integers(0, 9), max_size=2)
        return value if others is False else {**value, **draw(more)}

    return Described(schema, values())


_simple: list[Described] = [
    Described({"type": "string"}, texts),
    Described({"type": "number"}, numbers),
    Described({"type": "integer"}, integers),
    Described({"type": "boolean"}, st.booleans()),
    Described({"type": "null"}, st.none()),
]
_items: Values = st.none() | st.booleans() | st.integers(-9, 9) | texts
described: st.SearchStrategy[Described] = st.recursive(
    st.sampled_from(_simple)
    | st.integers(0, 4).map(_of_length)
    | st.lists(_items, min_size=1, max_size=4).map(_one_of),
    lambda inner: _objects(inner) | _arrays(inner) | _choices(inner),
    max_leaves=5,
)


@st.composite
def spoiled(draw: st.DrawFn, value: JsonValue) -> JsonValue:
    """The value with something in it replaced, added, or left out."""
    if draw(st.integers(0, 3)) == 0:
        return draw(anything)
    match value:
        case dict() if value:
            name = draw(st.sampled_from(sorted(value)))
            rest = {key: item for key, item in value.items() if key != name}
            changed = {key: draw(spoiled(item)) if key == name else item for key, item in value.items()}
            return draw(st.sampled_from([rest, changed, {**value, draw(names): draw(anything)}]))
        case list() if value:
            at = draw(st.integers(0, len(value) - 1))
            other = [draw(spoiled(item)) if index == at else item for index, item in enumerate(value)]
            return draw(st.sampled_from([value[:at], [*value, *value], other]))
        case str():
            return value + draw(texts)
    return draw(anything)

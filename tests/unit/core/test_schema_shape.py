"""Schemas that refer to themselves have no end, those that refer to each other once have one."""

import pytest

from remuda.core.errors import Invalid
from remuda.core.schema_shape import NODES_MAX, check_references
from remuda.core.slices import at_once

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"items": {"$ref": "#/properties/a"}}}},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [TEXT, {"$ref": "#/$defs/a"}]}},
        },
        {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"items": {"$ref": "#/definitions/a~1b"}}}},
    ],
)
def test_what_refers_to_itself_is_refused_by_name(schema: object) -> None:
    with pytest.raises(Invalid, match=r"#\S* refers to itself"):
        at_once(check_references(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"properties": {"$ref": TEXT}},
        {"items": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": TEXT}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": TEXT}},
        {"$defs": {"unused": {"$ref": "#/$defs/unused"}}},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "https://example.com/schema"},
    ],
)
def test_what_ends_is_left_alone(schema: object) -> None:
    at_once(check_references(schema))


def test_many_references_are_bounded() -> None:
    count = NODES_MAX // 100
    chain = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(count)}
    at_once(check_references({"$ref": "#/$defs/d0", "$defs": chain}))
    wide = {"items": [{"$ref": f"#/$defs/d{number}"} for number in range(NODES_MAX)]}
    with pytest.raises(Invalid, match="too complex"):
        at_once(check_references(wide))

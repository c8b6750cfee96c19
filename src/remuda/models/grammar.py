"""From JSON schemas and tools to grammars that bind what a model writes. Pure.

A grammar says which values there are and how they are nested. What it cannot say is left to whoever reads the
answer: patterns and formats of texts, bounds of numbers, items that must differ. Properties come in the order
of the schema, and others than those named only where the schema says so.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.models.grammar_rules import (
    COLON,
    COMMA,
    REPETITIONS_MAX,
    Rules,
    either,
    json_literal,
    other_string,
    repeated,
)

DEPTH_MAX: Final = 64
PARTS_MAX: Final = 20_000  # Schemas and their properties, those behind references counted each time.
JSON_GRAMMAR: Final = Rules().grammar("object")

_PRIMITIVES: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
_CHOICES: Final = ("anyOf", "oneOf")
_NOTES: Final = frozenset(
    {"$defs", "definitions", "title", "description", "default", "examples", "$schema", "$id"}
)
_PLACE: Final = re.compile(r"[0-9]{1,8}")

Schema = Mapping[str, JsonValue]
Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: JsonValue = None
    strict: bool = False


def grammar_of_schema(schema: JsonValue) -> str:
    """For values of this schema. Invalid says where it cannot be followed."""
    rules = Rules()
    return rules.grammar(_Writer(rules, schema).rule(schema, ()))


def grammar_of_tools(tools: Sequence[ToolSpec], *, parallel: bool, no_action: str | None) -> str:
    """For a call of one of the tools, `{"name": ..., "arguments": {...}}`, or if `parallel` for a list, too.

    `no_action` is the name of a function that stands for calling none, and has a message as its argument.
    """
    rules = Rules()
    calls = [_call(rules, tool) for tool in tools]
    if no_action and no_action not in {tool.name for tool in tools}:
        message: JsonValue = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
        calls.append(_call(rules, ToolSpec(no_action, parameters=message)))
    if not calls:
        raise Invalid("there is no tool to be called")
    call = rules.add(either(calls))
    several = f'{call} | "[" ws {call} ( {COMMA} {call} )* ws "]"'
    return rules.grammar(several if parallel else call)


def _call(rules: Rules, tool: ToolSpec) -> str:
    try:
        arguments = _arguments(rules, tool.parameters)
    except Invalid as error:
        raise Invalid(f"the tool {tool.name[:80]}: {error.message}") from None
    name = f"{json_literal('name')} {COLON} {json_literal(tool.name)}"
    return rules.add(f'"{{" ws {name} {COMMA} {json_literal("arguments")} {COLON} {arguments} ws "}}"')


def _arguments(rules: Rules, parameters: JsonValue) -> str:
    schema = {} if parameters is None else parameters
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise Invalid("its parameters must be the schema of an object")
    return _Writer(rules, schema).rule({"type": "object", **schema}, ())


class _Writer:
    """Writes the rules of one schema. References are followed within `root`."""

    def __init__(self, rules: Rules, root: JsonValue) -> None:
        self._rules = rules
        self._root = root
        self._following: list[str] = []  # References whose rules are being written.
        self._written: dict[str, str] = {}
        self._left = PARTS_MAX

    def rule(self, schema: JsonValue, place: Place) -> str:
        """The name of a rule for values of the schema that stands at `place`."""
        self._spend(1, place)
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            raise Invalid(f"{_at(place)}a schema must be a map or true")
        return self._of_map(schema, place)

    def _spend(self, parts: int, place: Place) -> None:
        """Every step is paid for: schemas that refer to each other grow without limit, or go round."""
        self._left -= parts
        if self._left < 0:
            raise Invalid(f"{_at(place)}with what it refers to it has more than {PARTS_MAX} parts")
        if len(place) > 2 * DEPTH_MAX:
            raise Invalid(f"{_at(place)}it is nested more than {DEPTH_MAX} deep")

    def _of_map(self, schema: Schema, place: Place) -> str:
        if "$ref" in schema:
            return self._referred(schema, place)
        if "const" in schema:
            return self._rules.add(json_literal(schema["const"]))
        if "enum" in schema:
            return self._rules.add(either(json_literal(item) for item in _list(schema, "enum", place)))
        if "allOf" in schema:
            return self.rule(dict(self._merged(schema, place)), (*place, "allOf"))
        for choice in _CHOICES:
            if choice in schema:
                return self._chosen(schema, choice, place)
        kinds = _kinds(schema, place)
        return self._rules.add(either(self._of_kind(kind, schema, place) for kind in kinds))

    def _of_kind(self, kind: str, schema: Schema, place: Place) -> str:
        match kind:
            case "object":
                return self._object(schema, place)
            case "array":
                return self._array(schema, place)
            case "string":
                return self._string(schema, place)
        return kind

    # References and combinations

    def _referred(self, schema: Schema, place: Place) -> str:
        """A reference beside which other keys stand is merged with them; alone it has a rule of its own."""
        reference = str(schema["$ref"])
        others = {key: value for key, value in schema.items() if key != "$ref" and key not in _NOTES}
        if others:
            merged = self._merge(self._target(reference, place), others, place)
            return self._follow(reference, merged, place)
        if reference not in self._written:
            self._written[reference] = self._follow(reference, self._target(reference, place), place)
        return self._written[reference]

    def _follow(self, reference: str, schema: Schema, place: Place) -> str:
        if reference in self._following:
            raise Invalid(f"{_at(place)}{reference[:80]} refers to itself")
        self._following.append(reference)
        name = self.rule(dict(schema), (*place, "$ref"))
        self._following.pop()
        return name

    def _target(self, reference: str, place: Place) -> Schema:
        pointer = reference.removeprefix("#")
        if pointer == reference or (pointer and not pointer.startswith("/")):
            raise Invalid(f"{_at(place)}{reference[:80]} is not within this schema")
        found: JsonValue = self._root
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and _PLACE.fullmatch(key) and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise Invalid(f"{_at(place)}{reference[:80]} refers to nothing")
        if found is True:
            return {}
        if not isinstance(found, dict):
            raise Invalid(f"{_at(place)}{reference[:80]} is no schema")
        return found

    def _chosen(self, schema: Schema, choice: str, place: Place) -> str:
        beside = {key: value for key, value in schema.items() if key != choice and key not in _NOTES}
        ways = []
        for index, way in enumerate(_list(schema, choice, place)):
            at = (*place, choice, str(index))
            if beside and isinstance(way, dict):
                way = dict(self._merge(beside, self._plain(way, at), at))
            ways.append(self.rule(way, at))
        return self._rules.add(either(ways))

    def _merged(self, schema: Schema, place: Place) -> Schema:
        """One schema for all that are asked for at once."""
        whole: Schema = {key: value for key, value in schema.items() if key != "allOf"}
        for index, part in enumerate(_list(schema, "allOf", place)):
            at = (*place, "allOf", str(index))
            if not isinstance(part, dict):
                raise Invalid(f"{_at(at)}a schema must be a map")
            whole = self._merge(whole, self._plain(part, at), at)
        return whole

    def _plain(self, schema: Schema, place: Place) -> Schema:
        """Without a reference or further parts at its top, so that it can be merged."""
        for _ in range(DEPTH_MAX):
            if "$ref" in schema:
                others = {key: value for key, value in schema.items() if key != "$ref"}
                schema = self._merge(self._target(str(schema["$ref"]), place), others, place)
            elif "allOf" in schema:
                schema = self._merged(schema, place)
            else:
                return schema
        raise Invalid(f"{_at(place)}a reference refers to itself")

    def _merge(self, one: Schema, other: Schema, place: Place) -> Schema:
        self._spend(1 + len(_map(one, "properties", place)) + len(_map(other, "properties", place)), place)
        merged = {**one, **other}
        if one.get("type", merged.get("type")) != merged.get("type"):
            raise Invalid(f"{_at(place)}nothing can be {one.get('type')} and {other.get('type')} at once")
        if "properties" in one and "properties" in other:
            merged["properties"] = {**_map(one, "properties", place), **_map(other, "properties", place)}
        if "required" in one and "required" in other:
            merged["required"] = [*_list(one, "required", place), *_list(other, "required", place)]
        return merged

    # Kinds of values

    def _string(self, schema: Schema, place: Place) -> str:
        least, most = _bounds(schema, "minLength", "maxLength", place)
        if (least, most) == (0, None):
            return "string"
        return self._rules.add(f'"\\"" {repeated("char", least, most)} "\\""')

    def _array(self, schema: Schema, place: Place) -> str:
        items = schema.get("items", True)
        first = schema.get("prefixItems", items if isinstance(items, list) else None)
        if first is not None:
            return self._tuple(schema, place)
        least, most = _bounds(schema, "minItems", "maxItems", place)
        if most == 0 or items is False:
            return self._rules.add('"[" ws "]"')
        item = self.rule(items, (*place, "items"))
        more = repeated(f"( {COMMA} {item} )", max(least - 1, 0), None if most is None else most - 1)
        listed = f"{item} {more} ws"
        return self._rules.add(f'"[" ws {listed if least else f"( {listed} )?"} "]"')

    def _tuple(self, schema: Schema, place: Place) -> str:
        """A list in which each place has its own schema. Others may follow if the schema says which."""
        key = "prefixItems" if "prefixItems" in schema else "items"
        parts = [self.rule(part, (*place, key, str(i))) for i, part in enumerate(_list(schema, key, place))]
        body = f" {COMMA} ".join(parts)
        rest = schema.get("items") if key == "prefixItems" else schema.get("additionalItems")
        if rest is not None and rest is not False:
            body += f" ( {COMMA} {self.rule(rest, (*place, 'items'))} )*"
        return self._rules.add(f'"[" ws {body} ws "]"')

    def _object(self, schema: Schema, place: Place) -> str:
        properties = dict(_map(schema, "properties", place))
        required = {str(name) for name in _list(schema, "required", place, empty=True)}
        properties.update({name: True for name in sorted(required - properties.keys())})
        others = schema.get("additionalProperties", "properties" not in schema and not properties)
        if others is True and not properties:
            return "object"
        # Each rule is what may follow a property, from the last one to the first.
        rest, firsts = "", list[str]()
        if others is not False:
            other = self._pair(
                other_string(self._rules, list(properties)), others, (*place, "additionalProperties")
            )
            rest = self._rules.add(f"( {COMMA} {other} )*")
            firsts = [f"{other} {rest}"]
        for name, inner in reversed(properties.items()):
            pair = self._pair(json_literal(name), inner, (*place, "properties", name))
            if name in required:
                firsts = []
            firsts.append(f"{pair} {rest}".rstrip())
            rest = self._rules.add(f"( {COMMA} {pair} ){'' if name in required else '?'} {rest}".rstrip())
        some = f"( {either(reversed(firsts))} ) ws" if firsts else ""
        return self._rules.add(f'"{{" ws {some if required else f"( {some} )?" if some else ""} "}}"')

    def _pair(self, name: str, value: JsonValue, place: Place) -> str:
        return self._rules.add(f"{name} {COLON} {self.rule(value, place)}")


def _kinds(schema: Schema, place: Place) -> list[str]:
    """The types it allows; where none is named, the one that its other keys speak of."""
    named = schema.get("type")
    if named is None:
        if schema.keys() & {"properties", "required", "additionalProperties"}:
            return ["object"]
        if schema.keys() & {"items", "prefixItems", "minItems", "maxItems"}:
            return ["array"]
        return ["string"] if schema.keys() & {"minLength", "maxLength"} else ["value"]
    kinds = named if isinstance(named, list) else [named]
    for kind in kinds:
        if kind not in _PRIMITIVES:
            raise Invalid(
                f"{_at(place)}{json.dumps(kind)[:80]} is no type; there are {', '.join(_PRIMITIVES)}"
            )
    if not kinds:
        raise Invalid(f"{_at(place)}no type is left")
    return [str(kind) for kind in kinds]


def _bounds(schema: Schema, least_key: str, most_key: str, place: Place) -> tuple[int, int | None]:
    least, most = schema.get(least_key, 0), schema.get(most_key)
    for key, bound in ((least_key, least), (most_key, most or 0)):
        if not isinstance(bound, int) or isinstance(bound, bool) or bound < 0:
            raise Invalid(f"{_at(place)}{key} must be a whole number of 0 or more")
    assert isinstance(least, int), "it was just checked"
    assert most is None or isinstance(most, int), "it was just checked"
    if most is not None and least > most:
        raise Invalid(f"{_at(place)}{least_key} is more than {most_key}")
    if least > REPETITIONS_MAX:
        raise Invalid(f"{_at(place)}{least_key} is more than {REPETITIONS_MAX}, which no grammar counts to")
    return least, most


def _list(schema: Schema, key: str, place: Place, *, empty: bool = False) -> list[JsonValue]:
    found = schema.get(key, [])
    if not isinstance(found, list) or not (found or empty):
        raise Invalid(f"{_at(place)}{key} must be a list{'' if empty else ' of one or more'}")
    return found


def _map(schema: Schema, key: str, place: Place) -> Schema:
    found = schema.get(key, {})
    if not isinstance(found, dict):
        raise Invalid(f"{_at(place)}{key} must be a map")
    return found


def _at(place: Place) -> str:
    pointer = "/".join(("#", *(step.replace("~", "~0").replace("/", "~1")[:40] for step in place[:12])))
    return f"the schema at {pointer}: "

"""From JSON schemas and tools to grammars that bind what a model writes. Pure.

A grammar says which values there are and how they are nested. What it cannot say, such as patterns of texts
and items that must differ, is left to the reader of the answer, or refused where a client wants it strict.
Properties come in the order of the schema, and others than those named only where the schema says so.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.gbnf import REPETITIONS_MAX, check_grammar
from remuda.core.gbnf_expansion import RuleRefused
from remuda.core.slices import Budget, Sliced
from remuda.models import grammar_values as values
from remuda.models.grammar_rules import (
    COLON,
    COMMA,
    Rules,
    either,
    json_literal,
    other_string,
)

DEPTH_MAX: Final = 64
STEPS_MAX: Final = 200_000  # For one grammar, however many schemas it is made of: a fifth of a second or so.
JSON_GRAMMAR: Final = Rules(Budget("JSON", 1)).grammar("object")
_NODE_STEPS: Final = 4  # What a schema, a reference or a property costs, compared to a value in a list.
_POINTER_CHARS_MAX: Final = 1000

_PRIMITIVES: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
_CHOICES: Final = ("anyOf", "oneOf")
_NOTES: Final = frozenset(
    {"$defs", "definitions", "title", "description", "default", "examples", "$schema", "$id"}
)
_PLACE: Final = re.compile(r"[0-9]{1,8}")

Schema = Mapping[str, JsonValue]
SchemaPlace = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: JsonValue = None
    strict: bool = False


def grammar_of_schema(schema: JsonValue, *, strict: bool = False) -> Sliced[str]:
    """For values of this schema. Invalid says where it cannot be followed, and if `strict` also where a
    keyword of it would not be kept."""
    budget = Budget("the JSON schema", STEPS_MAX)
    rules = Rules(budget)
    root = yield from _Writer(rules, schema, budget, strict=strict).rule(schema, ())
    return (yield from _checked(rules, root))


def grammar_of_tools(tools: Sequence[ToolSpec], *, parallel: bool, no_action: str | None) -> Sliced[str]:
    """For a call of one of the tools, `{"name": ..., "arguments": {...}}`, or if `parallel` for a list, too.

    `no_action` is the name of a function that stands for calling none, and has a message as its argument.
    """
    budget = Budget("what the tools take", STEPS_MAX)
    rules, calls = Rules(budget), list[str]()
    for tool in tools:
        calls.append((yield from _call(rules, tool, budget)))
    if no_action and no_action not in {tool.name for tool in tools}:
        message: JsonValue = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
        calls.append((yield from _call(rules, ToolSpec(no_action, parameters=message), budget)))
    if not calls:
        raise Invalid("there is no tool to be called")
    call = rules.add(either(calls))
    several = f'{call} | "[" ws {call} ( {COMMA} {call} )* ws "]"'
    return (yield from _checked(rules, several if parallel else call))


def _checked(rules: Rules, root: str) -> Sliced[str]:
    """The grammar, if an engine may be given it."""
    text = rules.grammar(root)
    try:
        yield from check_grammar(text)
    except RuleRefused as error:
        raise Invalid(
            f"{rules.origin_of(error.rule)}it makes a grammar that takes an engine too long",
            hint="make more of its properties required, or split it into smaller objects",
        ) from None
    return text


def _call(rules: Rules, tool: ToolSpec, budget: Budget) -> Sliced[str]:
    try:
        with rules.origin(f"the tool {tool.name[:80]}: "):
            arguments = yield from _arguments(rules, tool, budget)
    except Invalid as error:
        raise Invalid(f"the tool {tool.name[:80]}: {error.message}", hint=error.hint) from None
    name = f"{json_literal('name')} {COLON} {json_literal(tool.name)}"
    return rules.add(f'"{{" ws {name} {COMMA} {json_literal("arguments")} {COLON} {arguments} ws "}}"')


def _arguments(rules: Rules, tool: ToolSpec, budget: Budget) -> Sliced[str]:
    schema = {} if tool.parameters is None else tool.parameters
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise Invalid("its parameters must be the schema of an object")
    writer = _Writer(rules, schema, budget, strict=tool.strict)
    return (yield from writer.rule({"type": "object", **schema}, ()))


class _Writer:
    """Writes the rules of one schema. References are followed within `root`.

    Every method that depends on the schema's size pays for what it does: schemas that refer to each other
    grow without limit, or go round.
    """

    def __init__(self, rules: Rules, root: JsonValue, budget: Budget, *, strict: bool) -> None:
        self._strict = strict
        self._rules = rules
        self._root = root
        self._budget = budget
        self._following: list[str] = []  # References whose rules are being written.
        self._written: dict[str, str] = {}
        self._enums: dict[int, str] = {}  # By the list itself, which merging with other keys leaves the same.

    def rule(self, schema: JsonValue, place: SchemaPlace) -> Sliced[str]:
        """The name of a rule for values of the schema that stands at `place`."""
        yield from self._spend(_NODE_STEPS)
        if len(place) > 2 * DEPTH_MAX:
            raise Invalid(f"{_at(place)}it is nested more than {DEPTH_MAX} deep")
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            raise Invalid(f"{_at(place)}a schema must be an object or true")
        if self._strict and (key := values.unkept(schema)):
            raise _unkept(key, place)
        if self._strict and len(_list(schema, "oneOf", place) if "oneOf" in schema else ()) > 1:
            raise Invalid(
                f"{_at(place)}oneOf cannot be kept: more than one of its schemas may fit", hint="use anyOf"
            )
        with self._rules.origin(_at(place)):
            return (yield from self._of_map(schema, place))

    def _spend(self, steps: int) -> Sliced[None]:
        if self._budget.spend(steps):
            yield

    def _of_map(self, schema: Schema, place: SchemaPlace) -> Sliced[str]:
        if "$ref" in schema:
            return (yield from self._referred(schema, place))
        if self._strict and "type" in schema:
            yield from self._check_type(schema, place)
        if "const" in schema:
            return self._rules.add(self._rules.constant(schema["const"]))
        if "enum" in schema:
            return (yield from self._enum(_list(schema, "enum", place)))
        if "allOf" in schema:
            merged = yield from self._merged(schema, place)
            return (yield from self.rule(dict(merged), (*place, "allOf")))
        for choice in _CHOICES:
            if choice in schema:
                return (yield from self._chosen(schema, choice, place))
        ways = []
        for kind in _kinds(schema, place):
            ways.append((yield from self._of_kind(kind, schema, place)))
        return self._rules.add(either(ways))

    def _check_type(self, schema: Schema, place: SchemaPlace) -> Sliced[None]:
        """The values that const and enum list are written whatever type stands beside them."""
        for key in ("const", "enum"):
            if key in schema:
                listed = [schema[key]] if key == "const" else _list(schema, key, place)
                yield from self._spend(len(listed))
                kinds = _kinds(schema, place)
                if not all(values.is_of_type(value, kinds) for value in listed):
                    raise Invalid(f"{_at(place)}{key} has a value that is not of type {' or '.join(kinds)}")

    def _enum(self, values: list[JsonValue]) -> Sliced[str]:
        known = self._enums.get(id(values))
        if known is None:
            self._rules.choice(len(values))
            literals = []
            for value in values:
                yield from self._spend(1)
                literals.append(self._rules.constant(value))
            known = self._enums[id(values)] = self._rules.add(either(literals))
        return known

    def _of_kind(self, kind: str, schema: Schema, place: SchemaPlace) -> Sliced[str]:
        match kind:
            case "object":
                return (yield from self._object(schema, place))
            case "array":
                return (yield from self._array(schema, place))
            case "string":
                return self._string(schema, place)
            case "integer" | "number":
                return self._number(kind, schema, place)
        return kind

    # References and combinations

    def _referred(self, schema: Schema, place: SchemaPlace) -> Sliced[str]:
        """A reference beside which other keys stand is merged with them; alone it has a rule of its own."""
        reference = str(schema["$ref"])
        others = {key: value for key, value in schema.items() if key != "$ref" and key not in _NOTES}
        if others:
            target = yield from self._target(reference, place)
            merged = yield from self._merge(target, others, place)
            return (yield from self._follow(reference, merged, place))
        if reference not in self._written:
            target = yield from self._target(reference, place)
            self._written[reference] = yield from self._follow(reference, target, place)
        return self._written[reference]

    def _follow(self, reference: str, schema: Schema, place: SchemaPlace) -> Sliced[str]:
        if reference in self._following:
            raise Invalid(f"{_at(place)}{reference[:80]} refers to itself")
        self._following.append(reference)
        name = yield from self.rule(dict(schema), (*place, "$ref"))
        self._following.pop()
        return name

    def _target(self, reference: str, place: SchemaPlace) -> Sliced[Schema]:
        pointer = reference.removeprefix("#")
        if pointer == reference or (pointer and not pointer.startswith("/")):
            raise Invalid(f"{_at(place)}{reference[:80]} is not within this schema")
        if len(pointer) > _POINTER_CHARS_MAX:
            raise Invalid(f"{_at(place)}{reference[:80]}... is longer than {_POINTER_CHARS_MAX} characters")
        found: JsonValue = self._root
        steps = pointer.split("/")[1:]
        yield from self._spend(len(steps))
        for step in steps:
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

    def _chosen(self, schema: Schema, choice: str, place: SchemaPlace) -> Sliced[str]:
        beside = {key: value for key, value in schema.items() if key != choice and key not in _NOTES}
        ways, choices = [], _list(schema, choice, place)
        self._rules.choice(len(choices))
        for index, way in enumerate(choices):
            at = (*place, choice, str(index))
            if beside and isinstance(way, dict):
                plain = yield from self._plain(way, at)
                way = dict((yield from self._merge(beside, plain, at)))
            ways.append((yield from self.rule(way, at)))
        return self._rules.add(either(ways))

    def _merged(self, schema: Schema, place: SchemaPlace) -> Sliced[Schema]:
        """One schema for all that are asked for at once."""
        whole: Schema = {key: value for key, value in schema.items() if key != "allOf"}
        for index, part in enumerate(_list(schema, "allOf", place)):
            at = (*place, "allOf", str(index))
            if not isinstance(part, dict):
                raise Invalid(f"{_at(at)}a schema must be a map")
            plain = yield from self._plain(part, at)
            whole = yield from self._merge(whole, plain, at)
        return whole

    def _plain(self, schema: Schema, place: SchemaPlace) -> Sliced[Schema]:
        """Without a reference or further parts at its top, so that it can be merged."""
        if len(place) > 2 * DEPTH_MAX:
            raise Invalid(f"{_at(place)}it is nested more than {DEPTH_MAX} deep")
        for _ in range(DEPTH_MAX):
            if "$ref" in schema:
                others = {key: value for key, value in schema.items() if key != "$ref"}
                target = yield from self._target(str(schema["$ref"]), place)
                schema = yield from self._merge(target, others, place)
            elif "allOf" in schema:
                schema = yield from self._merged(schema, place)
            else:
                return schema
        raise Invalid(f"{_at(place)}a reference refers to itself")

    def _merge(self, one: Schema, other: Schema, place: SchemaPlace) -> Sliced[Schema]:
        properties = _map(one, "properties", place), _map(other, "properties", place)
        required = _list(one, "required", place, empty=True), _list(other, "required", place, empty=True)
        yield from self._spend(_NODE_STEPS + sum(map(len, (one, other, *properties, *required))))
        merged = {**one, **other}
        if one.get("type", merged.get("type")) != merged.get("type"):
            kinds = [_shown(each.get("type")).strip('"') for each in (one, other)]
            raise Invalid(f"{_at(place)}nothing can be {' and '.join(kinds)} at once")
        if "properties" in one and "properties" in other:
            merged["properties"] = {**properties[0], **properties[1]}
        if "required" in one and "required" in other:
            merged["required"] = [*required[0], *required[1]]
        return merged

    # Kinds of values

    def _string(self, schema: Schema, place: SchemaPlace) -> str:
        least, most = _bounds(schema, "minLength", "maxLength", place)
        known = values.FORMATS.get(str(schema.get("format", "")))
        if known is not None and (least, most) == (0, None):
            return self._rules.add(f'"\\"" {known} "\\""')
        if self._strict and "format" in schema:
            raise _unkept("format", place, f"; known are {', '.join(values.FORMATS)}, without bounds")
        if (least, most) == (0, None):
            return "string"
        self._countable(most, "maxLength", place)
        return self._rules.add(f'"\\"" {self._rules.repeated("char", least, most)} "\\""')

    def _number(self, kind: str, schema: Schema, place: SchemaPlace) -> str:
        if not schema.keys() & set(values.BOUNDS):
            return kind
        try:
            wanted = (values.whole_range if kind == "integer" else values.number_range)(schema)
        except Invalid as error:
            raise Invalid(f"{_at(place)}{error.message}") from None
        if self._strict and not wanted.exact:
            key = next(key for key in values.BOUNDS if key in schema)
            raise _unkept(key, place, " for a number, unless its bounds are whole and included")
        if wanted.unbounded:
            return kind
        return self._rules.add((values.whole_numbers if kind == "integer" else values.numbers)(wanted))

    def _countable(self, most: int | None, key: str, place: SchemaPlace) -> None:
        if self._strict and most is not None and not self._rules.can_count_to(most):
            raise _unkept(key, place, f" of more than {REPETITIONS_MAX}, or of so many in one schema")

    def _array(self, schema: Schema, place: SchemaPlace) -> Sliced[str]:
        items = schema.get("items", True)
        first = schema.get("prefixItems", items if isinstance(items, list) else None)
        if first is not None:
            return (yield from self._tuple(schema, place))
        least, most = _bounds(schema, "minItems", "maxItems", place)
        if most == 0 or items is False:
            return self._rules.add('"[" ws "]"')
        item = yield from self.rule(items, (*place, "items"))
        self._countable(most, "maxItems", place)
        more = self._rules.repeated(
            f"( {COMMA} {item} )", max(least - 1, 0), None if most is None else most - 1
        )
        listed = f"{item} {more} ws"
        return self._rules.add(f'"[" ws {listed if least else f"( {listed} )?"} "]"')

    def _tuple(self, schema: Schema, place: SchemaPlace) -> Sliced[str]:
        """A list in which each place has its own schema. Others may follow if the schema says which."""
        key = "prefixItems" if "prefixItems" in schema else "items"
        parts = []
        for index, part in enumerate(_list(schema, key, place)):
            parts.append((yield from self.rule(part, (*place, key, str(index)))))
        body = f" {COMMA} ".join(parts)
        rest = schema.get("items") if key == "prefixItems" else schema.get("additionalItems")
        if rest is not None and rest is not False:
            others = yield from self.rule(rest, (*place, "items"))
            body += f" ( {COMMA} {others} )*"
        return self._rules.add(f'"[" ws {body} ws "]"')

    def _object(self, schema: Schema, place: SchemaPlace) -> Sliced[str]:
        named, wanted = _map(schema, "properties", place), _list(schema, "required", place, empty=True)
        self._rules.room(len(named), len(wanted))
        yield from self._spend(len(named) + len(wanted))
        properties, required = dict(named), {str(name) for name in wanted}
        if self._strict and schema.get("additionalProperties") is False and required - properties.keys():
            name = min(required - properties.keys())[:80]
            raise Invalid(f"{_at(place)}it requires {name}, which is not among its properties, and no others")
        properties.update({name: True for name in sorted(required - properties.keys())})
        others = schema.get("additionalProperties", "properties" not in schema and not properties)
        if others is True and not properties:
            return "object"
        # Each rule is what may follow a property, from the last one to the first.
        rest, firsts = "", list[str]()
        if others is not False:
            unnamed = yield from other_string(self._rules, list(properties))
            other = yield from self._pair(unnamed, others, (*place, "additionalProperties"))
            rest = self._rules.add(f"( {COMMA} {other} )*")
            firsts = [f"{other} {rest}"]
        for name, inner in reversed(properties.items()):
            literal = self._rules.constant(name)
            pair = yield from self._pair(literal, inner, (*place, "properties", name))
            if name in required:
                firsts = []
            firsts.append(f"{pair} {rest}".rstrip())
            rest = self._rules.add(f"( {COMMA} {pair} ){'' if name in required else '?'} {rest}".rstrip())
        some = f"( {either(reversed(firsts))} ) ws" if firsts else ""
        return self._rules.add(f'"{{" ws {some if required else f"( {some} )?" if some else ""} "}}"')

    def _pair(self, name: str, value: JsonValue, place: SchemaPlace) -> Sliced[str]:
        inner = yield from self.rule(value, place)
        return self._rules.add(f"{name} {COLON} {inner}")


def _kinds(schema: Schema, place: SchemaPlace) -> list[str]:
    """The types it allows; where none is named, the one that its other keys speak of."""
    named = schema.get("type")
    if named is None:
        if schema.keys() & {"properties", "required", "additionalProperties"}:
            return ["object"]
        if schema.keys() & {"items", "prefixItems", "minItems", "maxItems"}:
            return ["array"]
        if schema.keys() & set(values.BOUNDS):
            return ["number"]
        return ["string"] if schema.keys() & {"minLength", "maxLength", "format"} else ["value"]
    kinds = list[JsonValue](named) if isinstance(named, list) else [named]
    if len(kinds) > len(_PRIMITIVES):
        raise Invalid(f"{_at(place)}type names more types than the {len(_PRIMITIVES)} there are")
    found = [kind for kind in kinds if isinstance(kind, str) and kind in _PRIMITIVES]
    for wrong in kinds if len(found) < len(kinds) else ():
        if wrong not in found:
            known = ", ".join(_PRIMITIVES)
            raise Invalid(f"{_at(place)}{_shown(wrong)} is not a type; use {known}")
    if not found:
        raise Invalid(f"{_at(place)}no type is left")
    return list(dict.fromkeys(found))


def _unkept(key: str, place: SchemaPlace, why: str = "") -> Invalid:
    return Invalid(
        f"{_at(place)}{key} cannot be kept{why}",
        hint=f"leave {key} out, or leave strict out: then it is not looked at",
    )


def _shown(value: JsonValue) -> str:
    """A value in a message: at length only if it cannot be long."""
    return json.dumps(value[:80]) if isinstance(value, str) else f"a {type(value).__name__}"


def _bounds(schema: Schema, least_key: str, most_key: str, place: SchemaPlace) -> tuple[int, int | None]:
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


def _list(schema: Schema, key: str, place: SchemaPlace, *, empty: bool = False) -> list[JsonValue]:
    found = schema.get(key, [])
    if not isinstance(found, list) or not (found or empty):
        raise Invalid(f"{_at(place)}{key} must be a list{'' if empty else ' of one or more'}")
    return found


def _map(schema: Schema, key: str, place: SchemaPlace) -> Schema:
    found = schema.get(key, {})
    if not isinstance(found, dict):
        raise Invalid(f"{_at(place)}{key} must be a map")
    return found


def _at(place: SchemaPlace) -> str:
    pointer = "/".join(("#", *(step.replace("~", "~0").replace("/", "~1")[:40] for step in place[:12])))
    return f"the schema at {pointer}: "

"""Grammars as the engine itself reads them: what a model of random weights writes must be what they say."""

import json
import subprocess
import sys
from collections.abc import Sequence

import jsonschema_rs
from pydantic import JsonValue

from remuda.models.grammar import ToolSpec
from tests.support.models import tiny_model
from tests.unit.models.gbnf import Grammar
from tests.unit.models.grammars import grammar_of_schema, grammar_of_tools

WORD: JsonValue = {"type": "string", "minLength": 1, "maxLength": 5}
SCHEMAS: list[dict[str, JsonValue]] = [
    {
        "type": "object",
        "properties": {"name": WORD, "n": {"type": "integer"}, "k": {"enum": ['a"b', "ü\\\n", None, 1.5]}},
        "required": ["name", "k"],
    },
    {
        "type": "array",
        "items": {"$ref": "#/$defs/x"},
        "minItems": 2,
        "maxItems": 3,
        "$defs": {"x": {"type": "boolean"}},
    },
    {
        "properties": {"a": WORD, "[^-]": True},
        "additionalProperties": {"type": "null"},
        "required": ["a", "[^-]"],
    },
    {"anyOf": [{"type": ["number", "null"]}, {"prefixItems": [WORD, {"const": {"a": []}}]}]},
]
TOOLS = [ToolSpec("look", parameters=SCHEMAS[0]), ToolSpec('q"\\', parameters={"properties": {}})]
ENGINE_S = 60


def written(grammars: Sequence[str]) -> list[str | None]:
    program = [sys.executable, "-m", "tests.unit.models.grammar_engine", str(tiny_model())]
    order = json.dumps(grammars) + "\n"
    done = subprocess.run(program, input=order, capture_output=True, text=True, timeout=ENGINE_S, check=True)
    answers: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_what_an_engine_writes_by_a_grammar_is_what_it_says() -> None:
    grammars = [grammar_of_schema(schema) for schema in SCHEMAS]
    grammars.append(grammar_of_tools(TOOLS, parallel=True, no_action="answer"))

    answers = written(grammars)

    each = len(answers) // len(grammars)
    for index, grammar in enumerate(grammars):
        said = [answer for answer in answers[index * each : (index + 1) * each] if answer is not None]
        assert said, grammar
        assert all(Grammar(grammar).accepts(answer) for answer in said)
        if index < len(SCHEMAS):
            assert all(jsonschema_rs.is_valid(SCHEMAS[index], json.loads(answer)) for answer in said)


def test_an_engine_refuses_what_is_no_grammar() -> None:
    assert set(written(["root ::= nothing"])) == {None}

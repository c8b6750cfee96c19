"""Grammars, made at once."""

from collections.abc import Sequence

from pydantic import JsonValue

from remuda.core.slices import at_once
from remuda.models import grammar
from remuda.models.grammar import ToolSpec


def grammar_of_schema(schema: JsonValue) -> str:
    return at_once(grammar.grammar_of_schema(schema))


def grammar_of_tools(tools: Sequence[ToolSpec], *, parallel: bool, no_action: str | None) -> str:
    return at_once(grammar.grammar_of_tools(tools, parallel=parallel, no_action=no_action))

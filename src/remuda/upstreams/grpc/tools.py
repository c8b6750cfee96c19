"""Which tools a chat may call, the grammar that binds its answer, and how calls are found in it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from remuda.core.errors import Invalid
from remuda.core.slices import Sliced
from remuda.inference.requests import ChatRequest, NamedTool, ResponseFormat, Tool
from remuda.models.config import ModelConfig
from remuda.models.grammar import JSON_GRAMMAR
from remuda.upstreams.grpc.grammars import Grammars


@dataclass(frozen=True, slots=True)
class ToolCallSearch:
    """How tool calls are found in a text. `bound`: by its grammar the whole text is one."""

    names: frozenset[str]
    no_action: str | None = None  # The tool that stands for a plain answer.
    bound: bool = False


@dataclass(frozen=True, slots=True)
class OutputRules:
    """What an answer has to keep to."""

    grammar: str = ""
    reading: ToolCallSearch | None = None  # None: there is nothing to call.


def offered_tools(request: ChatRequest) -> Sequence[Tool]:
    """Those that may be called now: the one that was named, else all. Invalid for one that is not there."""
    choice = request.tool_choice
    if not request.tools or choice == "none":
        return ()
    if not isinstance(choice, NamedTool):
        return request.tools
    named = [tool for tool in request.tools if tool.function.name == choice.function.name]
    if not named:
        raise Invalid(f"tool_choice names {choice.function.name[:80]!r}, which is not among tools")
    return named


def rules_for(
    config: ModelConfig, request: ChatRequest, grammars: Grammars, *, own_template: bool
) -> Sliced[OutputRules]:
    """`own_template`: the backend applies the model's own, which also knows how that model calls tools."""
    tools = offered_tools(request)
    if not tools:
        return OutputRules((yield from _asked_grammar(request, grammars)))
    names = frozenset(tool.function.name for tool in tools)
    strict = any(tool.function.strict for tool in tools)
    function = config.function
    if strict or not (own_template or function.grammar.disable):
        forced = isinstance(request.tool_choice, NamedTool) or request.tool_choice == "required"
        answers = not (strict or forced or function.disable_no_action)
        no_action = function.no_action_function_name if answers else None
        grammar = yield from grammars.of_tools(
            [
                (tool.function.name, bytes(tool.function.parameters), bool(tool.function.strict))
                for tool in tools
            ],
            parallel=function.grammar.parallel_calls and request.parallel_tool_calls is not False,
            no_action=no_action,
        )
        return OutputRules(grammar, ToolCallSearch(names, no_action, bound=True))
    return OutputRules((yield from _asked_grammar(request, grammars)), ToolCallSearch(names))


def _asked_grammar(request: ChatRequest, grammars: Grammars) -> Sliced[str]:
    """By the format that the answer is to have, else by the client's own grammar."""
    match request.response_format:
        case ResponseFormat(type="json_object") | ResponseFormat(type="json_schema", json_schema=None):
            return JSON_GRAMMAR
        case ResponseFormat(type="json_schema", json_schema=schema) if schema is not None:
            return (yield from grammars.of_schema(bytes(schema.schema), strict=bool(schema.strict)))
    return request.grammar or ""

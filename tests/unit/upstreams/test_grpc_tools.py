from typing import Any

import pytest
from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.inference.model import RequestKind
from remuda.inference.requests import ChatRequest
from remuda.models.grammar import JSON_GRAMMAR, ToolSpec
from remuda.upstreams.grpc.grammars import Grammars
from remuda.upstreams.grpc.predict_request import OutputRules, ToolCallSearch, rules_for
from tests.support.grpc_calls import HELLO, call_of, config_of
from tests.unit.models.grammars import grammar_of_schema, grammar_of_tools

OBJECT: JsonValue = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": OBJECT}}
TIME = {"type": "function", "function": {"name": "time", "parameters": OBJECT}}
STRICT = {"type": "function", "function": {"name": "weather", "parameters": OBJECT, "strict": True}}
BOTH = frozenset({"weather", "time"})
JUST_WEATHER = frozenset({"weather"})
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": OBJECT}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def _rules(
    function: dict[str, object] | None = None, *, own_template: bool = False, **body: Any
) -> OutputRules:
    request = call_of(RequestKind.CHAT, {**HELLO, **body}).request
    assert isinstance(request, ChatRequest)
    config = config_of(function=function or {})
    return at_once(rules_for(config, request, Grammars(), own_template=own_template))


def _grammar(*names: str, parallel: bool = False, no_action: str | None = None) -> str:
    specs = [ToolSpec(name, parameters=OBJECT) for name in names]
    return grammar_of_tools(specs, parallel=parallel, no_action=no_action)


def test_without_tools_and_formats_nothing_is_bound() -> None:
    assert _rules() == OutputRules()
    assert _rules(response_format={"type": "text"}) == OutputRules()


def test_tools_bind_the_answer_to_a_call_or_to_saying_something() -> None:
    assert _rules(tools=[WEATHER, TIME]) == OutputRules(
        _grammar("weather", "time", no_action="answer"), ToolCallSearch(BOTH, "answer", bound=True)
    )


@pytest.mark.parametrize("function", [{"disable_no_action": True}, {"no_action_function_name": "speak"}])
def test_how_to_say_something_is_configured(function: dict[str, object]) -> None:
    no_action = "speak" if "no_action_function_name" in function else None

    assert _rules(function, tools=[WEATHER]) == OutputRules(
        _grammar("weather", no_action=no_action), ToolCallSearch(JUST_WEATHER, no_action, bound=True)
    )


def test_a_named_tool_is_the_only_one() -> None:
    assert _rules(tools=[WEATHER, TIME], tool_choice=NAMED) == OutputRules(
        _grammar("weather"), ToolCallSearch(JUST_WEATHER, bound=True)
    )


def test_a_named_tool_must_be_there() -> None:
    with pytest.raises(Invalid, match="'weather', which is not among tools"):
        _rules(tools=[TIME], tool_choice=NAMED)


def test_when_a_tool_is_required_nothing_else_can_be_said() -> None:
    assert _rules(tools=[WEATHER], tool_choice="required").grammar == _grammar("weather")


def test_tools_that_may_not_be_called_bind_nothing() -> None:
    assert _rules(tools=[WEATHER], tool_choice="none") == OutputRules()


def test_the_models_own_template_needs_no_grammar_for_tools() -> None:
    assert _rules(own_template=True, tools=[WEATHER]) == OutputRules("", ToolCallSearch(JUST_WEATHER))


def test_grammars_for_tools_can_be_switched_off() -> None:
    assert _rules({"grammar": {"disable": True}}, tools=[WEATHER]) == OutputRules(
        "", ToolCallSearch(JUST_WEATHER)
    )


@pytest.mark.parametrize("own_template", [True, False])
def test_a_strict_tool_always_has_its_grammar(own_template: bool) -> None:
    rules = _rules({"grammar": {"disable": True}}, own_template=own_template, tools=[STRICT])

    assert rules == OutputRules(_grammar("weather"), ToolCallSearch(JUST_WEATHER, bound=True))


@pytest.mark.parametrize(("asked", "parallel"), [(None, True), (True, True), (False, False)])
def test_calls_at_once_need_configuration_and_consent(asked: bool | None, parallel: bool) -> None:
    function: dict[str, object] = {"grammar": {"parallel_calls": True}}

    rules = _rules(function, tools=[WEATHER], parallel_tool_calls=asked)

    assert rules.grammar == _grammar("weather", parallel=parallel, no_action="answer")


def test_a_format_is_a_grammar() -> None:
    assert _rules(response_format={"type": "json_object"}).grammar == JSON_GRAMMAR
    assert _rules(response_format=SCHEMA).grammar == grammar_of_schema(OBJECT)


def test_a_format_goes_before_a_grammar_and_tools_before_both() -> None:
    body: dict[str, Any] = {"response_format": SCHEMA, "grammar": "root ::= mine"}

    assert _rules(**body).grammar == grammar_of_schema(OBJECT)
    assert _rules(**body, tools=[WEATHER]).grammar == _grammar("weather", no_action="answer")
    assert _rules(grammar="root ::= mine").grammar == "root ::= mine"


def test_a_format_stays_in_force_beside_tools_of_the_models_own_template() -> None:
    rules = _rules(own_template=True, tools=[WEATHER], response_format={"type": "json_object"})

    assert rules == OutputRules(JSON_GRAMMAR, ToolCallSearch(JUST_WEATHER))


def test_a_schema_that_refers_to_itself_is_refused_or_followed() -> None:
    """Never a crash, nor a grammar without end."""
    cycle = {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}

    with pytest.raises(Invalid):
        _rules(response_format=cycle)

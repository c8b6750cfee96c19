"""What tools must not ask an engine to write."""

import msgspec
import pytest

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.gateway.inference.bodies import check_complexity
from remuda.inference.requests import ChatRequest

ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


def chat(choice: object) -> ChatRequest:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("ends", {"type": "object"}), ("goes_on", ENDLESS))
    ]
    messages = [{"role": "user", "content": "go on"}]
    asked = {"model": "m", "messages": messages, "tools": tools, "tool_choice": choice}
    return msgspec.json.decode(msgspec.json.encode(asked), type=ChatRequest)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "goes_on"}}])
def test_a_demanded_call_that_could_go_on_for_ever_is_refused(choice: object) -> None:
    with pytest.raises(Invalid, match="refers to itself") as refused:
        at_once(check_complexity(chat(choice)))
    assert refused.value.param == "tools[1].function.parameters"


@pytest.mark.parametrize("choice", ["auto", "none", {"type": "function", "function": {"name": "ends"}}])
def test_tools_that_need_not_be_called_are_left_to_the_engine(choice: object) -> None:
    at_once(check_complexity(chat(choice)))

"""Requests for tokens: what is counted, and what is refused."""

import json
from typing import Any

import msgspec
import pytest

from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.openai.endpoints import ENDPOINTS
from remuda.gateway.openai.tokens import tokens_answer
from remuda.inference.answers import Tokens
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest, TokenizeRequest
from remuda.models.config import ModelConfig

HI = [{"role": "user", "content": "hi"}]


def parsed(**members: Any) -> TokenizeRequest:
    known = ENDPOINTS["/v1/tokenize"].parse(json.dumps({"model": "m", **members}).encode())
    assert isinstance(known.request, TokenizeRequest)
    return known.request


@pytest.mark.parametrize("name", ["content", "prompt"])
@pytest.mark.parametrize("text", ["hi", ""])
def test_a_text_has_either_name(name: str, text: str) -> None:
    assert parsed(**{name: text}).prompt == text


def test_a_chat_is_counted_with_its_tools() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    chat = parsed(messages=HI, tools=[tool]).prompt
    assert isinstance(chat, ChatRequest)
    assert [one.function.name for one in chat.tools or ()] == ["look"]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({}, "content"),
        ({"content": "a", "prompt": "b"}, "content"),
        ({"prompt": "a", "messages": HI}, "content"),
        ({"prompt": 3}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": HI, "tools": [{"type": "web"}]}, "tools[0].type"),
        ({"messages": HI, "add_generation_prompt": False}, "add_generation_prompt"),
        ({"prompt": "a", "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "a", "return_token_strs": True}, "return_token_strs"),
    ],
)
def test_what_cannot_be_counted_is_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parsed(**members)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("tokens", "context", "shown"),
    [
        (Tokens(2, [5, 6]), 512, {"tokens": [5, 6], "count": 2, "max_model_len": 512}),
        (Tokens(2), 0, {"tokens": None, "count": 2, "max_model_len": None}),
        (Tokens(0), 0, {"tokens": [], "count": 0, "max_model_len": None}),
    ],
)
def test_what_is_not_known_is_null(tokens: Tokens, context: int, shown: dict[str, Any]) -> None:
    request = TokenizeRequest(model="m", prompt="hi")
    call = InferenceCall(
        RequestKind.TOKENIZE, request, b"", ModelConfig(name="m"), "r", created=1, context=context
    )
    assert msgspec.json.decode(tokens_answer(call, tokens)) == shown

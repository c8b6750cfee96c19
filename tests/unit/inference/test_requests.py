"""Requests written again as OpenAI's JSON say what was asked, and nothing of what was not."""

import msgspec

from remuda.inference.requests import ChatRequest, openai_json

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"default": None}}}


def test_what_a_request_does_not_have_is_left_out_and_nulls_within_schemas_stay() -> None:
    messages = [{"role": "user", "content": [IMAGE]}, {"role": "assistant", "tool_calls": [CALL]}]
    asked = {"model": "m", "messages": messages, "temperature": 0.0, "tools": [TOOL], "stream": False}
    parsed = msgspec.json.decode(msgspec.json.encode(asked | {"stop": None}), type=ChatRequest)
    assert msgspec.json.decode(openai_json(parsed)) == asked

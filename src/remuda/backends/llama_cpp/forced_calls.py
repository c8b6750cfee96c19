"""A call that has to be made: the model is bound to write one as JSON, which is taken out of its answer here.
One whose chat template knows nothing of tools gets them described in its prompt. Pure.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from remuda.core.cut_calls import cut_calls
from remuda.rpc import backend_pb2 as pb

_ASKED = (
    "Answer with a call of one of these functions, as JSON with its name and its arguments,"
    " and with nothing else:"
)
_CALL = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,'
    r'\s*"arguments"\s*:\s*(?P<arguments>\{.*\})\s*\}\s*',
    re.DOTALL,
)

Tools = Sequence[Mapping[str, Any]]
ChatMessages = Sequence[Mapping[str, Any]]


def with_tools_named(tools: Tools, messages: ChatMessages) -> list[Mapping[str, Any]]:
    """The messages, the first of which is the system's and names the tools."""
    words = "\n".join([_ASKED, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)])
    if messages and messages[0]["role"] == "system":
        first, *rest = messages
        return [{**first, "content": f"{first['content']}\n\n{words}"}, *rest]
    return [{"role": "system", "content": words}, *messages]


def call_schema(tools: Tools) -> Mapping[str, Any]:
    """For a call of one of them. Parameters lie at the root, for engines do not find what lies in lists."""
    parameters = {
        str(number): _moved(tool["function"].get("parameters") or {"type": "object"}, f"#/$defs/{number}")
        for number, tool in enumerate(tools)
    }
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": {"$ref": f"#/$defs/{number}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for number, tool in enumerate(tools)
    ]
    return {"$defs": parameters, "anyOf": calls}


def _moved(schema: Any, place: str) -> Any:
    """The same schema within another: what refers to its root refers to `place`."""
    match schema:
        case {"$ref": str(target)} if target.startswith("#"):
            return {**schema, "$ref": place + target[1:]}
        case dict():
            return {name: _moved(value, place) for name, value in schema.items()}
        case list():
            return [_moved(value, place) for value in schema]
    return schema


class CallReading:
    """One answer, the whole text of which is a call. Nothing of it is sent before its end."""

    def __init__(self, call_id: str) -> None:
        self._id = call_id
        self._text: list[str] = []
        self._last = pb.Reply()

    def hear(self, reply: pb.Reply) -> pb.Reply:
        """The reply without the text."""
        self._text += [delta.content for delta in reply.chat_deltas]
        answer = pb.Reply()
        answer.CopyFrom(reply)
        answer.message = b""
        del answer.chat_deltas[:]
        answer.chat_deltas.extend(
            pb.ChatDelta(reasoning_content=delta.reasoning_content)
            for delta in reply.chat_deltas
            if delta.reasoning_content
        )
        self._last = answer
        return answer

    def end(self) -> pb.Reply:
        """The call, as far as it was written, with the numbers of the last reply. Text that is not a call
        stays as it is."""
        text = "".join(self._text)
        reply = pb.Reply()
        reply.CopyFrom(self._last)
        reply.logprobs = b""  # They were sent already.
        del reply.chat_deltas[:]
        if call := _read(text, self._id):
            reply.chat_deltas.add(tool_calls=[call])
        elif (cut := cut_calls(text)) is not None:
            calls = [pb.ToolCallDelta(id=self._id, name=one.name, arguments=one.arguments) for one in cut]
            reply.chat_deltas.add(tool_calls=calls)
        elif text:
            reply.message = text.encode()
            reply.chat_deltas.add(content=text)
        return reply


def _read(text: str, call_id: str) -> pb.ToolCallDelta | None:
    found = _CALL.fullmatch(text)
    if found is None:
        return None
    try:
        json.loads(found["arguments"])
        return pb.ToolCallDelta(id=call_id, name=json.loads(found["name"]), arguments=found["arguments"])
    except (ValueError, RecursionError):
        return None

"""From chats to the conversations of Anthropic's API. Pure.

RequestUnsupported and InputUnsupported say what of a chat that API has no place for.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from remuda.inference.failures import InputUnsupported, RequestUnsupported
from remuda.inference.requests import (
    NULL,
    CalledTool,
    ChatRequest,
    NamedTool,
    Part,
    RequestMessage,
    Tool,
    text_of,
)

TOKENS_USUAL: Final = 4096  # Of an answer, where the request has no limit: this API demands one.
_TEMPERATURE_MAX: Final = 1.0
_DATA_URL: Final = re.compile(r"data:(image/[a-z0-9.+-]{1,60});base64,(.*)", re.DOTALL)
_SYSTEM: Final = ("system", "developer")
_BREAK: Final = "\n\n"

JsonObject = dict[str, object]
_image: Final = msgspec.json.Decoder(msgspec.defstruct("ImageUrl", [("url", str)]))
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def conversation_of(chat: ChatRequest, model: str, *, max_tokens: int = 0) -> bytes:
    """The request as JSON. `max_tokens` is asked for in place of the chat's own limit."""
    _check_supported(chat)
    limit = max_tokens or chat.max_completion_tokens or chat.max_tokens or TOKENS_USUAL
    body: dict[str, object] = {"model": model, "max_tokens": limit, "messages": list(_turns(chat.messages))}
    if system := _system([message for message in chat.messages if message.role in _SYSTEM]):
        body["system"] = system
    body |= _sampling(chat) | _tools(chat)
    if chat.response_format is not None and chat.response_format.json_schema is not None:
        schema = chat.response_format.json_schema.schema
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return msgspec.json.encode(body)


def _check_supported(chat: ChatRequest) -> None:
    if (chat.n or 1) > 1:
        raise RequestUnsupported(f"{chat.model} gives one answer at a time: n must be 1")
    if chat.logprobs:
        raise RequestUnsupported(f"{chat.model} does not return logprobs")
    if chat.grammar:
        raise RequestUnsupported(f"{chat.model} takes no grammar")
    if chat.response_format is not None and chat.response_format.type == "json_object":
        words = f"{chat.model} answers in JSON by a schema: send response_format json_schema"
        raise RequestUnsupported(words)


def _system(messages: Sequence[RequestMessage]) -> str | Sequence[JsonObject]:
    """As blocks only where one of them is to be kept."""
    blocks = [_marked({"type": "text", "text": text_of(one, _BREAK)}, _mark_of(one)) for one in messages]
    if any("cache_control" in block for block in blocks):
        return [block for block in blocks if block["text"]]
    return _BREAK.join(str(block["text"]) for block in blocks)


def _mark_of(message: RequestMessage) -> msgspec.Raw:
    parts = message.content if isinstance(message.content, list) else ()
    marks = (message.cache_control, *(part.cache_control for part in parts))
    return next((mark for mark in marks if is_mark(mark)), NULL)


def is_mark(cache_control: msgspec.Raw) -> bool:
    """Whether the prompt up to here is to be kept by the server."""
    return bytes(memoryview(cache_control)[:1]) == b"{"


def _marked(block: JsonObject, mark: msgspec.Raw) -> JsonObject:
    return {**block, "cache_control": mark} if is_mark(mark) else block


def _turns(messages: Sequence[RequestMessage]) -> Iterator[JsonObject]:
    """Messages of one role after the other are one turn: roles take turns there."""
    role, blocks = "", list[JsonObject]()
    for message in messages:
        if message.role in _SYSTEM:
            continue
        speaker = "assistant" if message.role == "assistant" else "user"
        if speaker != role and blocks:
            yield {"role": role, "content": blocks}
            blocks = []
        role = speaker
        said = _blocks(message)
        if said:
            said[-1] = _marked(said[-1], message.cache_control)
        blocks += said
    if blocks:
        yield {"role": role, "content": blocks}


def _blocks(message: RequestMessage) -> list[JsonObject]:
    if message.role in ("tool", "function"):
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id or message.name or ""}
        return [{**result, "content": _shown(message)}]
    shown = _shown(message)
    if message.role == "assistant":
        shown += [_called(call) for call in message.tool_calls or ()]
    return shown


def _shown(message: RequestMessage) -> list[JsonObject]:
    """Empty texts are refused there."""
    content = message.content
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_marked(_part(part), part.cache_control) for part in content if part.type != "text" or part.text]


def _part(part: Part) -> JsonObject:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    if part.type != "image_url":
        raise InputUnsupported(f"a model behind Anthropic's API takes texts and images, not {part.type}")
    try:
        url: str = _image.decode(part.image_url).url  # type: ignore[attr-defined]
    except msgspec.DecodeError:
        raise InputUnsupported("image_url must be an object with a url") from None
    data = _DATA_URL.fullmatch(url)
    if data is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}


def _called(call: CalledTool) -> JsonObject:
    try:
        arguments: Mapping[str, object] = _object.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = {"INVALID_JSON": call.function.arguments}
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}


def _sampling(chat: ChatRequest) -> dict[str, object]:
    stop = [chat.stop] if isinstance(chat.stop, str) else chat.stop
    given: dict[str, object | None] = {
        "stream": chat.stream or None,
        "temperature": None if chat.temperature is None else min(chat.temperature, _TEMPERATURE_MAX),
        "top_p": chat.top_p,
        "top_k": chat.top_k if chat.top_k and chat.top_k > 0 else None,
        "stop_sequences": [text for text in stop or () if text.strip()] or None,
        "metadata": {"user_id": chat.user} if chat.user else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tools(chat: ChatRequest) -> dict[str, object]:
    if not chat.tools:
        return {}
    choice: dict[str, object] = {"type": "auto"}
    if isinstance(chat.tool_choice, NamedTool):
        choice = {"type": "tool", "name": chat.tool_choice.function.name}
    elif chat.tool_choice == "none":
        choice = {"type": "none"}
    elif chat.tool_choice == "required":
        choice = {"type": "any"}
    if chat.parallel_tool_calls is False and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    tools: dict[str, object] = {"tools": [_tool(tool) for tool in chat.tools]}
    return tools if choice == {"type": "auto"} else {**tools, "tool_choice": choice}


def _tool(tool: Tool) -> JsonObject:
    function = tool.function
    schema: object = {"type": "object"} if function.parameters is NULL else function.parameters
    described = {"description": function.description} if function.description else {}
    return _marked({"name": function.name, **described, "input_schema": schema}, tool.cache_control)

"""Messages as Ollama's clients write them, in OpenAI's terms: calls of tools have objects for arguments and
often no ids, and pictures stand beside the text. Pure.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct, field

from remuda.gateway.inference.body_errors import InvalidField
from remuda.inference.requests import (
    NULL,
    PARTS_MAX,
    TOOLS_MAX,
    CalledFunction,
    CalledTool,
    FunctionSpec,
    Part,
    RequestMessage,
    Role,
    Tool,
)

_absent: Final = NULL.copy
Pictures = Annotated[list[Raw], Meta(max_length=PARTS_MAX)]
"""In base64, each still as its JSON has it: they may be large."""


class OllamaCall(Struct):
    name: str
    arguments: Raw = field(default_factory=_absent)


class OllamaToolCall(Struct):
    function: OllamaCall
    id: str | None = None


class OllamaMessage(Struct):
    role: Role
    content: str | None = None
    thinking: str | None = None
    images: Pictures | None = None
    tool_calls: Annotated[list[OllamaToolCall], Meta(max_length=TOOLS_MAX)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaTool(Struct):
    function: FunctionSpec
    type: str | None = None


def translated(messages: Sequence[OllamaMessage]) -> list[RequestMessage]:
    """InvalidField names what no model can take."""
    calls = _Calls()
    return [_message(message, f"messages[{index}]", calls) for index, message in enumerate(messages)]


def _message(message: OllamaMessage, place: str, calls: "_Calls") -> RequestMessage:
    made = RequestMessage(message.role, message.content)
    if message.images:
        made.content = with_pictures(message.content or "", message.images, place)
    if message.thinking:
        made.reasoning_content = message.thinking
    if message.tool_calls:
        made.tool_calls = [
            calls.made(call, f"{place}.tool_calls[{number}].function.arguments")
            for number, call in enumerate(message.tool_calls)
        ]
    if message.role == "tool":
        made.name = message.tool_name
        made.tool_call_id = message.tool_call_id or calls.answered(message.tool_name or "")
    return made


class _Calls:
    """Which calls have no result yet, in their order: results name at most the tool."""

    def __init__(self) -> None:
        self._open: list[CalledTool] = []
        self._count = 0

    def made(self, call: OllamaToolCall, place: str) -> CalledTool:
        written = bytes(call.function.arguments).strip()
        if written != b"null" and not written.startswith(b"{"):
            raise InvalidField(f"{place} must be an object", place)
        arguments = "{}" if written == b"null" else written.decode()
        self._count += 1
        made = CalledTool(
            call.id or f"call_{self._count}", "function", CalledFunction(call.function.name, arguments)
        )
        self._open.append(made)
        return made

    def answered(self, tool: str) -> str | None:
        """The id of the call that a result is of."""
        found = next((call for call in self._open if tool in ("", call.function.name)), None)
        if found is None:
            return None
        self._open.remove(found)
        return found.id


def with_pictures(text: str, pictures: Sequence[Raw], place: str) -> list[Part]:
    """A message's text after what is to be seen."""
    for number, picture in enumerate(pictures):
        if bytes(memoryview(picture)[:1]) != b'"':
            where = f"{place}.images[{number}]".removeprefix(".")
            raise InvalidField(f"{where} must be a text: the picture in base64", where)
    shown = [Part("image_url", image_url=picture) for picture in pictures]
    return [*shown, Part("text", text)] if text else shown


def offered(tools: Sequence[OllamaTool] | None) -> list[Tool] | None:
    """InvalidField for a tool that is no function, or whose parameters are no schema."""
    return None if not tools else [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: OllamaTool, place: str) -> Tool:
    if tool.type not in (None, "", "function"):
        raise InvalidField(f"{place}.type cannot be {tool.type[:40]!r}; use function", f"{place}.type")
    parameters = tool.function.parameters
    if bytes(memoryview(parameters)[:1]) not in (b"{", b"n"):
        where = f"{place}.function.parameters"
        raise InvalidField(f"{where} must be an object, a JSON schema", where)
    return Tool("function", tool.function)


_SIGNATURES: Final = {  # Of files, in base64.
    b"iVBORw0KGgo": b"image/png",
    b"/9j/": b"image/jpeg",
    b"R0lGOD": b"image/gif",
    b"UklGR": b"image/webp",
    b"Qk": b"image/bmp",
}


def linked(picture: Raw) -> Raw:
    """The picture as OpenAI's API has it: a data URL, with the type that its first bytes tell."""
    content = memoryview(picture)[1:-1]
    start = bytes(content[:16])
    if start[:5].lower() in (b"data:", b"http:", b"https"):
        return Raw(b'{"url":%b}' % bytes(picture))
    kind = next((kind for begin, kind in _SIGNATURES.items() if start.startswith(begin)), b"image/png")
    return Raw(b"".join((b'{"url":"data:', kind, b";base64,", content, b'"}')))


def with_links(messages: Sequence[RequestMessage]) -> list[RequestMessage]:
    """The same messages, with pictures as servers of OpenAI's API take them."""
    return [
        msgspec.structs.replace(message, content=[_linked(part) for part in message.content])
        if isinstance(message.content, list)
        else message
        for message in messages
    ]


def _linked(part: Part) -> Part:
    return part if part.type != "image_url" else Part("image_url", image_url=linked(part.image_url))

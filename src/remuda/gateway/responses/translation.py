"""Translates items of the Responses API into chats. Pure.

InvalidField names what no model here can be given, and says why.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Raw

from remuda.gateway.inference.body_errors import InvalidField, check_effort
from remuda.gateway.responses.bodies import (
    CONTENT,
    ChosenTool,
    Item,
    ItemContent,
    ItemPart,
    ResponsesBody,
    TextFormat,
    ToolBody,
)
from remuda.inference.requests import (
    CalledFunction,
    CalledTool,
    ChatRequest,
    FunctionSpec,
    JsonSchema,
    NamedFunction,
    NamedTool,
    Part,
    RequestMessage,
    ResponseFormat,
    Tool,
)

_BREAK: Final = "\n\n"  # Between texts that came as parts of their own.
_NULL: Final = b"null"
_SHOWN_BELOW: Final = "(An image: it follows after the results.)"
_TEXTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_EFFORTS: Final = {"minimal": "low", "xhigh": "high", "max": "high"}  # As far as templates know them.
_LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDED: Final = (_LOGPROBS, "reasoning.encrypted_content")
ToolMode = Literal["none", "auto", "required"]
_encode: Final = msgspec.json.Encoder().encode
_text: Final = msgspec.json.Decoder(str)


def chat_of(body: ResponsesBody) -> ChatRequest:
    """The same conversation as a chat, without what was said before it."""
    _check_absent(body)
    messages = _Messages()
    for place, item in _given_items(body):
        messages.take(place, item)
    chat = ChatRequest(model=body.model, messages=messages.all())
    if body.previous_response_id is None:
        if not chat.messages:
            raise InvalidField("input must not be empty", "input")
        _put_before(chat, body, ())
    _choose(chat, body)
    _shape(chat, body)
    chat.stream = body.stream
    chat.max_tokens = body.max_output_tokens
    chat.temperature, chat.top_p, chat.user = body.temperature, body.top_p, body.user
    chat.parallel_tool_calls = body.parallel_tool_calls if chat.tools else None
    return chat


def continued(chat: ChatRequest, body: ResponsesBody, history: Sequence[Item]) -> ChatRequest:
    """The chat with what was said before it, the oldest first."""
    messages = _Messages()
    for item in history:
        messages.take("previous_response_id", item)
    known = msgspec.structs.replace(chat, messages=list(chat.messages))
    _put_before(known, body, messages.all())
    return known


def _put_before(chat: ChatRequest, body: ResponsesBody, earlier: Sequence[RequestMessage]) -> None:
    told = [RequestMessage("system", body.instructions)] if body.instructions else []
    chat.messages[:0] = [*told, *earlier]
    if not chat.messages:
        raise InvalidField("input must not be empty", "input")
    calls = set[str]()
    for message in chat.messages:
        calls.update(call.id for call in message.tool_calls or ())
        if message.role == "tool" and message.tool_call_id not in calls:
            words = (
                f"no function_call before its output has the call_id {(message.tool_call_id or '')[:80]!r}"
            )
            hint = "send the call, too, or the previous_response_id of the response that has it"
            raise InvalidField(words, "input", hint=hint)


def _check_absent(body: ResponsesBody) -> None:
    if bytes(body.conversation) != _NULL:
        words = "conversation: conversations are not kept as such here"
        raise InvalidField(words, "conversation", hint="send previous_response_id instead")
    if bytes(body.prompt) != _NULL:
        raise InvalidField("prompt: prompts are not kept here", "prompt", hint="send input and instructions")
    if body.truncation == "auto":
        words = "truncation: nothing is left out of a conversation here"
        raise InvalidField(words, "truncation", hint="send disabled, or leave it out")
    for index, included in enumerate(body.include or ()):
        if included not in _INCLUDED:
            words = f"include[{index}]: {included[:80]!r} is supported by OpenAI's own servers only"
            raise InvalidField(words, f"include[{index}]", hint=f"use {_LOGPROBS}, or leave it out")


def _given_items(body: ResponsesBody) -> Iterator[tuple[str, Item]]:
    if body.input is None:
        if body.previous_response_id is None:
            raise InvalidField("input is missing", "input")
        return
    if isinstance(body.input, str):
        yield "input", Item(role="user", content=body.input)
        return
    for index, item in enumerate(body.input):
        yield f"input[{index}]", item


class _Messages:
    """What the assistant thinks, says and calls in a row becomes one message."""

    def __init__(self) -> None:
        self._messages: list[RequestMessage] = []
        self._thoughts: list[str] = []
        self._said: list[str] = []
        self._called: list[CalledTool] = []
        self._shown: list[Part] = []  # By results, which can only be texts.

    def add(self, message: RequestMessage) -> None:
        self._messages.append(message)

    def all(self) -> list[RequestMessage]:
        self._end_turn()
        self._show()
        return self._messages

    def take(self, place: str, item: Item) -> None:
        match item.type or ("message" if item.role is not None else "item_reference"):
            case "message":
                self._message(place, item)
            case "reasoning":
                self._thoughts += _thoughts(item)
            case "function_call":
                self._call(place, item)
            case "function_call_output":
                self._result(place, item)
            case "item_reference":
                words = f"{place}: an item is not found by its id alone here"
                raise InvalidField(words, place, hint="send the item itself, or previous_response_id")
            case other:
                words = f"{place}: items of the type {other[:80]!r} are known to OpenAI's own servers only"
                raise InvalidField(words, f"{place}.type", hint="leave it out")

    def _message(self, place: str, item: Item) -> None:
        if item.role is None:
            raise InvalidField(f"{place}.role is missing", f"{place}.role")
        if item.content is None:
            raise InvalidField(f"{place}.content is missing", f"{place}.content")
        content = _content(place, item.content)
        if item.role == "assistant":
            if not isinstance(content, str):
                words = f"{place}: a message of the assistant has texts only"
                raise InvalidField(words, f"{place}.content")
            if self._called:  # What was called before it was said needs a message of its own.
                self._end_turn()
            self._said.append(content)
            return
        self._end_turn()
        self._show()
        self.add(RequestMessage("user" if item.role == "user" else "system", content))

    def _call(self, place: str, item: Item) -> None:
        if not item.call_id or not item.name:
            missing = f"{place}.{'name' if item.call_id else 'call_id'}"
            raise InvalidField(f"{missing} is missing", missing)
        arguments = _text_of(f"{place}.arguments", item.arguments)
        self._show()
        self._called.append(CalledTool(item.call_id, function=CalledFunction(item.name, arguments)))

    def _result(self, place: str, item: Item) -> None:
        self._end_turn()
        if not item.call_id:
            raise InvalidField(f"{place}.call_id is missing", f"{place}.call_id")
        try:
            output = CONTENT.decode(item.output)
        except msgspec.DecodeError:
            raise InvalidField(f"{place}.output must be a text or a list", f"{place}.output") from None
        parts = _parts(place, [ItemPart("input_text", output)] if isinstance(output, str) else output)
        text = _BREAK.join(part.text if part.type == "text" else _SHOWN_BELOW for part in parts)
        self._shown += (part for part in parts if part.type != "text")
        self.add(RequestMessage("tool", text, tool_call_id=item.call_id))

    def _end_turn(self) -> None:
        if not (self._thoughts or self._said or self._called):
            return
        text = _BREAK.join(filter(None, self._said))
        thoughts = _BREAK.join(filter(None, self._thoughts))
        called = self._called or None
        self.add(
            RequestMessage(
                "assistant",
                text or (None if called else ""),
                tool_calls=called,
                reasoning_content=thoughts or None,
            )
        )
        self._thoughts, self._said, self._called = [], [], []

    def _show(self) -> None:
        if self._shown:
            self.add(RequestMessage("user", self._shown))
            self._shown = []


def _thoughts(item: Item) -> Iterator[str]:
    """A summary stands for thoughts that are withheld."""
    content = item.content if isinstance(item.content, list) else ()
    yield from (part.text for part in content or item.summary or ())


def _text_of(place: str, raw: Raw) -> str:
    try:
        return _text.decode(raw)
    except msgspec.DecodeError:
        raise InvalidField(f"{place} must be a text", place) from None


def _content(place: str, content: ItemContent) -> str | list[Part]:
    """Text alone as text: not every chat template reads parts."""
    if isinstance(content, str):
        return content
    parts = _parts(f"{place}.content", content)
    if all(part.type == "text" for part in parts):
        return _BREAK.join(part.text for part in parts)
    return parts


def _parts(place: str, parts: Sequence[ItemPart]) -> list[Part]:
    return [_part(f"{place}[{index}]", part) for index, part in enumerate(parts)]


def _part(place: str, part: ItemPart) -> Part:
    if part.type in _TEXTS:
        return Part("text", part.text)
    if part.type == "refusal":
        return Part("text", part.refusal)
    if part.type == "input_image" and part.image_url:
        return Part("image_url", image_url=Raw(_encode({"url": part.image_url})))
    if part.type == "input_audio" and bytes(part.input_audio) != _NULL:
        return Part("input_audio", input_audio=part.input_audio)
    if part.type in ("input_image", "input_file") and part.file_id:
        raise InvalidField(f"{place}: files are not kept here", place, hint="send the content itself")
    if part.type == "input_file":
        words = f"{place}: files such as PDF are not read"
        raise InvalidField(words, place, hint="send their text, as a part of the type input_text")
    known = part.type in ("input_image", "input_audio")
    missing = f"{place}.{'image_url' if part.type == 'input_image' else 'input_audio'}"
    if known:
        raise InvalidField(f"{missing} is missing", missing)
    raise InvalidField(f"{place}: there are no parts of the type {part.type[:80]!r}", f"{place}.type")


def _choose(chat: ChatRequest, body: ResponsesBody) -> None:
    tools = [_tool(f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ())]
    choice, tools = _chosen(body.tool_choice, tools)
    must_call = choice == "required" or isinstance(choice, NamedTool)
    if must_call and not tools:
        raise InvalidField("tool_choice needs tools to choose from", "tool_choice", hint="send tools, too")
    chat.tools = tools or None
    chat.tool_choice = choice if tools else None


def _tool(place: str, tool: ToolBody) -> Tool:
    if tool.type != "function":
        words = f"{place}: tools of the type {tool.type[:80]!r} run on OpenAI's own servers, or are known to "
        words += "their models only"
        raise InvalidField(words, f"{place}.type", hint="send tools of the type function")
    if not tool.name:
        raise InvalidField(f"{place}.name is missing", f"{place}.name")
    if bytes(memoryview(tool.parameters)[:1]) not in (b"{", b"n"):
        raise InvalidField(f"{place}.parameters must be an object, a JSON schema", f"{place}.parameters")
    return Tool("function", FunctionSpec(tool.name, tool.description, tool.parameters, tool.strict))


def _chosen(
    choice: ToolMode | ChosenTool | None, tools: list[Tool]
) -> tuple[ToolMode | NamedTool | None, list[Tool]]:
    if not isinstance(choice, ChosenTool):
        return choice, tools
    names = {tool.function.name for tool in tools}
    if choice.type == "function":
        if choice.name not in names:
            words = f"tool_choice names {(choice.name or '')[:80]!r}, which is not among tools"
            raise InvalidField(words, "tool_choice.name")
        return NamedTool("function", NamedFunction(choice.name or "")), tools
    if choice.type == "allowed_tools":
        allowed = {tool.name for tool in choice.tools or ()}
        if unknown := sorted(str(name) for name in allowed - names):
            words = f"tool_choice allows {unknown[0][:80]!r}, which is not among tools"
            raise InvalidField(words, "tool_choice.tools")
        return choice.mode or "auto", [tool for tool in tools if tool.function.name in allowed]
    words = f"tool_choice: tools of the type {choice.type[:80]!r} are known to OpenAI's own servers only"
    raise InvalidField(words, "tool_choice.type", hint="use function or allowed_tools")


def _shape(chat: ChatRequest, body: ResponsesBody) -> None:
    """In which form the answer is to be, how much is thought before, and what is reported of its tokens."""
    if body.text is not None and body.text.format is not None:
        chat.response_format = _format(body.text.format)
    effort = body.reasoning.effort if body.reasoning is not None else None
    if effort:
        check_effort(effort, "reasoning.effort")
    if effort == "none":
        chat.metadata = {"enable_thinking": "false"}
    elif effort:
        chat.reasoning_effort = _EFFORTS.get(effort, effort)
    if body.top_logprobs or _LOGPROBS in (body.include or ()):
        chat.logprobs, chat.top_logprobs = True, body.top_logprobs


def _format(wanted: TextFormat) -> ResponseFormat | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ResponseFormat("json_object")
    if bytes(memoryview(wanted.schema)[:1]) != b"{":
        missing = bytes(wanted.schema) == _NULL
        words = "is missing" if missing else "must be an object, a JSON schema"
        raise InvalidField(f"text.format.schema {words}", "text.format.schema")
    schema = JsonSchema(wanted.name or "answer", wanted.schema, wanted.strict, wanted.description)
    return ResponseFormat("json_schema", schema)

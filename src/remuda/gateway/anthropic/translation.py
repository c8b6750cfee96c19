"""From Anthropic's conversations to the chats that upstreams know. Pure.

InvalidField says of a part what it is and why no model here can take it.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from remuda.gateway.anthropic.messages import (
    AnyChoice,
    AutoChoice,
    Base64Source,
    ContentSource,
    CountTokensBody,
    DocumentBlock,
    FileSource,
    ImageBlock,
    InputMessage,
    MessageBlock,
    MessagesBody,
    NoChoice,
    RedactedThinkingBlock,
    ResultBlock,
    SearchResultBlock,
    ShownBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolNamed,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from remuda.gateway.inference.body_errors import InvalidField
from remuda.inference.requests import (
    NULL,
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

Body = MessagesBody | CountTokensBody
_UNMARKED: Final = (ThinkingBlock, RedactedThinkingBlock)
_BREAK: Final = "\n\n"  # Between texts that came as blocks of their own.
_IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_SHOWN_BELOW: Final = "(An image: it follows after the results.)"
# Claude Code begins its system prompt with one of these. It differs in each request, and would have the
# engine read the whole prompt anew each time.
_BILLING: Final = "x-anthropic-billing-header:"
_SERVER_TOOL: Final = re.compile(r"(?:web_search|web_fetch|code_execution|tool_search\w*)_\d+")
_EFFORTS: Final = {"xhigh": "high", "max": "high"}  # As far as templates know them.
_encode: Final = msgspec.json.Encoder().encode


def chat_of(body: Body) -> ChatRequest:
    """The same conversation as a chat."""
    _check_absent(body)
    messages = [*_system(body.system)]
    for place, role, blocks in _turns(body.messages):
        before = len(messages)
        match role:
            case "user":
                messages += _asked(place, blocks)
            case "assistant":
                messages.append(_said(place, blocks))
            case _:
                messages.append(RequestMessage("system", _BREAK.join(_only_texts(place, role, blocks))))
        if len(messages) > before:
            messages[-1].cache_control = _kept_until(blocks)
    if bytes(body.cache_control) != b"null":
        messages[-1].cache_control = body.cache_control
    tools = [_tool(f"tools[{index}]", body, index) for index in range(len(body.tools or ()))]
    chat = ChatRequest(model=body.model, messages=messages, tools=tools or None)
    _choose(chat, body)
    _think(chat, body)
    if isinstance(body, MessagesBody):
        _sample(chat, body)
    return chat


def _check_absent(body: Body) -> None:
    if body.mcp_servers:
        words = "mcp_servers are called by Anthropic's own servers only"
        raise InvalidField(words, "mcp_servers", hint="have the client call them, and send their tools")
    if bytes(body.container) != b"null":
        raise InvalidField("container: there is none to run code in", "container", hint="leave it out")


def _system(system: str | Sequence[TextBlock] | None) -> Iterator[RequestMessage]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    told = [text for text in texts if text and not text.startswith(_BILLING)]
    if told:
        marked = () if isinstance(system, str) else system or ()
        yield RequestMessage("system", _BREAK.join(told), cache_control=_kept_until(marked))


def _kept_until(blocks: Sequence[MessageBlock]) -> msgspec.Raw:
    """To servers of this API. Blocks of one message become one text: it is kept to its end."""
    marks = (block.cache_control for block in blocks if not isinstance(block, _UNMARKED))
    return next((mark for mark in marks if bytes(mark) != b"null"), NULL)


def _turns(messages: Sequence[InputMessage]) -> Iterator[tuple[str, str, list[MessageBlock]]]:
    """What each side says in one go, and where the first of it stands: messages of one role after the other
    are one turn."""
    place, role, blocks = "", "", list[MessageBlock]()
    for index, message in enumerate(messages):
        if message.role != role:
            if role:
                yield place, role, blocks
            place, role, blocks = f"messages[{index}]", message.role, []
        content = message.content
        blocks += (TextBlock(content),) if isinstance(content, str) else content
    yield place, role, blocks


def _asked(place: str, blocks: Sequence[MessageBlock]) -> Iterator[RequestMessage]:
    """Results of tools come first: they answer the calls in the message before. As they can only be texts,
    images in them are shown after them."""
    shown: list[Part] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            content = block.content
            parts = [Part("text", content)] if isinstance(content, str) else _parts(place, content or ())
            text = _BREAK.join(part.text if part.type == "text" else _SHOWN_BELOW for part in parts)
            shown += (part for part in parts if part.type != "text")
            text = f"Error: {text}" if block.is_error else text
            yield RequestMessage("tool", text, tool_call_id=block.tool_use_id)
    rest = [block for block in blocks if not isinstance(block, ToolResultBlock)]
    parts = shown + _parts(place, _visible(place, rest))
    if parts or not any(isinstance(block, ToolResultBlock) for block in blocks):
        yield RequestMessage("user", _content(parts))


def _said(place: str, blocks: Sequence[MessageBlock]) -> RequestMessage:
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
    said = [block for block in blocks if not isinstance(block, ThinkingBlock | ToolUseBlock)]
    text = _BREAK.join(_only_texts(place, "assistant", said))
    called = [
        CalledTool(call.id, function=CalledFunction(call.name, _arguments(place, call))) for call in calls
    ]
    return RequestMessage(
        "assistant",
        text or (None if called else ""),
        tool_calls=called or None,
        reasoning_content=_BREAK.join(thoughts) or None,
    )


def _arguments(place: str, call: ToolUseBlock) -> str:
    if bytes(memoryview(call.input)[:1]) != b"{":
        raise InvalidField(f"{place}: the input of tool_use {call.name[:80]!r} must be an object", place)
    return bytes(call.input).decode()


def _only_texts(place: str, role: str, blocks: Sequence[MessageBlock]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, TextBlock):
            if block.text:
                yield block.text
        elif isinstance(block, ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock):
            kind = type(block).__struct_config__.tag
            raise InvalidField(f"{place}: a message of the {role} has no blocks of type {kind!r}", place)


def _visible(place: str, blocks: Sequence[MessageBlock]) -> Iterator[ShownBlock]:
    for block in blocks:
        if isinstance(block, TextBlock | ImageBlock | DocumentBlock | SearchResultBlock):
            yield block
        else:
            kind = type(block).__struct_config__.tag
            raise InvalidField(f"{place}: a message of the user has no blocks of type {kind!r}", place)


def _content(parts: Sequence[Part]) -> str | list[Part]:
    """Text alone as text: not every chat template reads parts."""
    if all(part.type == "text" for part in parts):
        return _BREAK.join(part.text for part in parts)
    return list(parts)


def _parts(place: str, blocks: Iterator[ShownBlock] | Sequence[ResultBlock]) -> list[Part]:
    parts: list[Part] = []
    for block in blocks:
        match block:
            case TextBlock():
                parts += (Part("text", block.text),) if block.text else ()
            case ImageBlock():
                parts.append(_image(place, block))
            case DocumentBlock():
                parts += _document(place, block)
            case SearchResultBlock():
                found = _BREAK.join((block.title, block.source, *(part.text for part in block.content)))
                parts.append(Part("text", found))
            case ToolReferenceBlock():
                parts.append(Part("text", f"The tool {block.tool_name}"))
    return parts


def _image(place: str, block: ImageBlock) -> Part:
    match block.source:
        case UrlSource(url=url):
            pass
        case Base64Source(data=data, media_type=media_type):
            if media_type not in _IMAGE_TYPES:
                words = f"{place}: an image's media_type must be one of {', '.join(_IMAGE_TYPES)}"
                raise InvalidField(words, place)
            url = f"data:{media_type};base64,{data}"
        case FileSource():
            raise _no_files(place)
    return Part("image_url", image_url=msgspec.Raw(_encode({"url": url})))


def _document(place: str, block: DocumentBlock) -> Iterator[Part]:
    if heading := _BREAK.join(filter(None, (block.title, block.context))):
        yield Part("text", heading)
    match block.source:
        case TextSource(data=text) | ContentSource(content=str(text)):
            yield Part("text", text)
        case ContentSource(content=content):
            assert not isinstance(content, str)
            yield from _parts(place, content)
        case FileSource():
            raise _no_files(place)
        case Base64Source() | UrlSource():
            words = f"{place}: documents other than plain text, such as PDF, are not read"
            raise InvalidField(words, place, hint="send their text, as a source of type text")


def _no_files(place: str) -> InvalidField:
    return InvalidField(f"{place}: files are not kept here", place, hint="send the content itself")


def _tool(place: str, body: Body, index: int) -> Tool:
    assert body.tools is not None
    tool = body.tools[index]
    kind = tool.type or "custom"
    if kind != "custom":
        where = "runs on Anthropic's servers" if _SERVER_TOOL.fullmatch(kind) else "is known to their models"
        words = f"{place}: the tool {kind[:80]!r} {where} only"
        raise InvalidField(words, f"{place}.type", hint="send a tool with a name and an input_schema")
    schema = tool.input_schema
    if bytes(memoryview(schema)[:1]) != b"{":
        missing = bytes(schema) == b"null"
        words = "is missing" if missing else "must be an object, a JSON schema"
        raise InvalidField(f"{place}.input_schema {words}", f"{place}.input_schema")
    spec = FunctionSpec(tool.name, tool.description, schema, tool.strict or None)
    return Tool("function", spec, tool.cache_control)


def _choose(chat: ChatRequest, body: Body) -> None:
    choice = body.tool_choice
    match choice:
        case None:
            return
        case AutoChoice():
            chat.tool_choice = "auto" if chat.tools else None
        case NoChoice():
            chat.tool_choice = "none" if chat.tools else None
        case AnyChoice():
            chat.tool_choice = "required"
        case ToolNamed(name=name):
            chat.tool_choice = NamedTool("function", NamedFunction(name))
    if isinstance(choice, AnyChoice | ToolNamed) and not chat.tools:
        raise InvalidField("tool_choice needs tools to choose from", "tool_choice", hint="send tools, too")
    if isinstance(choice, ToolNamed) and all(tool.function.name != choice.name for tool in chat.tools or ()):
        words = f"tool_choice names {choice.name[:80]!r}, which is not among tools"
        raise InvalidField(words, "tool_choice.name")
    if not isinstance(choice, NoChoice) and choice.disable_parallel_tool_use and chat.tools:
        chat.parallel_tool_calls = False


def _think(chat: ChatRequest, body: Body) -> None:
    """Whether and how much, and in which form the answer is to be. How many tokens may be thought is not
    passed on: no backend counts them."""
    if body.thinking is not None:
        chat.metadata = {"enable_thinking": "false" if body.thinking.type == "disabled" else "true"}
    config = body.output_config
    wanted = body.output_format
    if config is not None:
        chat.reasoning_effort = _EFFORTS.get(config.effort, config.effort) if config.effort else None
        wanted = config.format or wanted
    if wanted is not None:
        if bytes(memoryview(wanted.schema)[:1]) != b"{":
            words = "output_config.format.schema must be an object, a JSON schema"
            raise InvalidField(words, "output_config.format.schema")
        chat.response_format = ResponseFormat("json_schema", JsonSchema("answer", wanted.schema))


def _sample(chat: ChatRequest, body: MessagesBody) -> None:
    for index, text in enumerate(body.stop_sequences or ()):
        if not text:
            place = f"stop_sequences[{index}]"
            raise InvalidField(f"{place} must not be empty", place)
    chat.max_tokens = body.max_tokens
    chat.stream = body.stream
    chat.stop = body.stop_sequences or None
    chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    chat.user = body.metadata.user_id if body.metadata is not None else None

"""The bodies of Anthropic's requests, as its official client writes them. Fields that nothing here reads are
left out, and ignored: signatures among them. Data only.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Raw, Struct, field

from remuda.inference.requests import MESSAGES_MAX, NULL, PARTS_MAX, STOPS_MAX, TOOLS_MAX, ModelName, Positive

_absent: Final = NULL.copy
_TEXT_CHARS_MAX: Final = 256  # Of names.
ToolName = Annotated[str, Meta(min_length=1, max_length=_TEXT_CHARS_MAX)]


class _Tagged(Struct, tag_field="type"):
    """One of several things, distinguished by `type`."""


class _Block(Struct, tag_field="type", kw_only=True):
    """A part of what is said. `cache_control`: servers of this API keep the prompt up to here."""

    cache_control: Raw = field(default_factory=_absent)


class Base64Source(_Tagged, tag="base64"):
    data: str
    media_type: str


class UrlSource(_Tagged, tag="url"):
    url: str


class FileSource(_Tagged, tag="file"):
    file_id: str = ""


class TextSource(_Tagged, tag="text"):
    data: str


class TextBlock(_Block, tag="text"):
    text: str


class ImageBlock(_Block, tag="image"):
    source: Base64Source | UrlSource | FileSource


class ContentSource(_Tagged, tag="content"):
    content: str | Annotated[list[TextBlock | ImageBlock], Meta(max_length=PARTS_MAX)]


class DocumentBlock(_Block, tag="document"):
    source: TextSource | ContentSource | Base64Source | UrlSource | FileSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(_Block, tag="search_result"):
    source: str
    title: str
    content: Annotated[list[TextBlock], Meta(max_length=PARTS_MAX)]


class ThinkingBlock(_Tagged, tag="thinking"):
    thinking: str


class RedactedThinkingBlock(_Tagged, tag="redacted_thinking"):
    """Only its writer can read it."""


class ToolUseBlock(_Block, tag="tool_use"):
    id: str
    name: str
    input: Raw


class ToolReferenceBlock(_Tagged, tag="tool_reference"):
    tool_name: str = ""


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(_Block, tag="tool_result"):
    tool_use_id: str
    content: str | Annotated[list[ResultBlock], Meta(max_length=PARTS_MAX)] | None = None
    is_error: bool | None = None


MessageBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)
ShownBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class InputMessage(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[MessageBlock], Meta(max_length=PARTS_MAX)]


class ClientTool(Struct):
    """A tool with a schema; one without is known to Anthropic's own models and servers only."""

    name: ToolName
    input_schema: Raw = field(default_factory=_absent)
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: Raw = field(default_factory=_absent)


class AutoChoice(_Tagged, tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(_Tagged, tag="any"):
    disable_parallel_tool_use: bool | None = None


class ToolNamed(_Tagged, tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(_Tagged, tag="none"):
    pass


class Thinking(Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None


class CallerMetadata(Struct):
    user_id: str | None = None


class OutputFormat(Struct):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class _Conversation(Struct, kw_only=True):
    """What a model reads."""

    model: ModelName
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    system: str | Annotated[list[TextBlock], Meta(max_length=PARTS_MAX)] | None = None
    tools: Annotated[list[ClientTool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolNamed | NoChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # Where it was before `output_config` came.
    mcp_servers: list[Raw] | None = None
    container: Raw = field(default_factory=_absent)
    cache_control: Raw = field(default_factory=_absent)  # Of all that is said.


class CountTokensBody(_Conversation, kw_only=True):
    pass


class MessagesBody(_Conversation, kw_only=True):
    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=STOPS_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    metadata: CallerMetadata | None = None

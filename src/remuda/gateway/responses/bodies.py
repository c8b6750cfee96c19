"""The bodies of requests for responses, parsed and checked in one go. Items and tools come in many types, of
which most are known to OpenAI's own servers only: they are read into one type, and told apart later.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Raw, Struct, field, json

from remuda.gateway.inference.body_errors import Choices
from remuda.inference.requests import NULL, TOOLS_MAX, ModelName, Positive, Share, Temperature

_absent: Final = NULL.copy
ITEMS_MAX: Final = 10_000
PARTS_MAX: Final = 10_000  # Of one item.
_METADATA_MAX: Final = 16
_METADATA_NAME_MAX: Final = 64
_METADATA_TEXT_MAX: Final = 512
_ID_MAX: Final = 128
ShortText = Annotated[str, Meta(max_length=_METADATA_TEXT_MAX)]
ItemId = Annotated[str, Meta(min_length=1, max_length=_ID_MAX)]


class ItemPart(Struct):
    """One part of what an item says or shows."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None
    file_id: str | None = None
    input_audio: Raw = field(default_factory=_absent)


ItemContent = str | Annotated[list[ItemPart], Meta(max_length=PARTS_MAX)]


class Item(Struct, kw_only=True):
    """One thing that was said, thought, called or answered."""

    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: ItemContent | None = None
    summary: Annotated[list[ItemPart], Meta(max_length=PARTS_MAX)] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Raw = field(default_factory=_absent)
    output: Raw = field(default_factory=_absent)


class ToolBody(Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: Raw = field(default_factory=_absent)
    strict: bool | None = None


class ChosenTool(Struct):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[ToolBody], Meta(max_length=TOOLS_MAX)] | None = None


class TextFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema: Raw = field(default_factory=_absent)
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningWish(Struct):
    effort: str | None = None
    summary: str | None = None


ResponseMetadata = Annotated[
    dict[Annotated[str, Meta(max_length=_METADATA_NAME_MAX)], ShortText], Meta(max_length=_METADATA_MAX)
]


class ResponsesBody(Struct, kw_only=True):
    """A request for a response."""

    model: ModelName
    input: str | Annotated[list[Item], Meta(max_length=ITEMS_MAX)] | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    tools: Annotated[list[ToolBody], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningWish | None = None
    max_output_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: Annotated[list[ShortText], Meta(max_length=64)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: ResponseMetadata | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    service_tier: ShortText | None = None
    conversation: Raw = field(default_factory=_absent)
    prompt: Raw = field(default_factory=_absent)


class GivenMembers(Struct):
    """Parts of a body as they were written."""

    input: Raw = field(default_factory=_absent)
    tools: Raw = field(default_factory=_absent)
    tool_choice: Raw = field(default_factory=_absent)


CHOICES: Final[Choices] = {
    "input.role": ("user", "assistant", "system", "developer"),
    "tool_choice": ("none", "auto", "required"),
    "text.format.type": ("text", "json_object", "json_schema"),
    "truncation": ("disabled",),
}
BODY: Final = json.Decoder(ResponsesBody)
GIVEN: Final = json.Decoder(GivenMembers)
ITEMS: Final = json.Decoder(str | list[Item])
CONTENT: Final = json.Decoder(ItemContent)

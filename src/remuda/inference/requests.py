"""The bodies of OpenAI's inference requests, parsed and checked in one go. Fields that no part of ours reads
are left out here: they still reach upstreams that are relayed to.

JSON that is passed on unread is `Raw`: `NULL` where the request has none, and always valid JSON.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Raw, Struct, field, json

Positive = Annotated[int, Meta(ge=1, lt=1 << 31)]
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Text = str | list[str | Token | list[Token]]  # One, several, or as tokens; `mixed` says if it is neither.
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Factor = Annotated[float, Meta(ge=0, le=100)]
Span = Annotated[int, Meta(ge=-1, lt=1 << 31)]  # Of tokens; -1: all there are.
Bias = Annotated[float, Meta(ge=-100, le=100)]
# Work on each of these blocks the loop, so each has a bound that no real request comes near.
MESSAGES_MAX: Final = 10_000
PARTS_MAX: Final = 10_000  # Of one message.
TOOLS_MAX: Final = 1000  # To be called, and called in one message.
STOPS_MAX: Final = 64
BIASES_MAX: Final = 10_000
METADATA_MAX: Final = 100
NULL: Final = Raw(b"null")  # msgspec takes nothing but null for `Raw | None`.
_absent: Final = NULL.copy  # Is NULL itself. As a plain default it would have no JSON schema.
ModelName = Annotated[str, Meta(min_length=1, max_length=512)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Part(Struct):
    """One part of a message's content. What is in a part of another type than text is passed on as it is."""

    type: str
    text: str = ""
    image_url: Raw = field(default_factory=_absent)
    input_audio: Raw = field(default_factory=_absent)
    video_url: Raw = field(default_factory=_absent)
    audio_url: Raw = field(default_factory=_absent)
    cache_control: Raw = field(default_factory=_absent)  # Anthropic's: its servers keep all up to here.


class CalledFunction(Struct, frozen=True):
    name: str = ""
    arguments: str = ""


class CalledTool(Struct):
    id: str = ""
    type: str = "function"
    function: CalledFunction = CalledFunction()


class RequestMessage(Struct):
    role: Role
    content: str | Annotated[list[Part], Meta(max_length=PARTS_MAX)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CalledTool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Raw = field(default_factory=_absent)  # The same under another name, if it is a text.
    cache_control: Raw = field(default_factory=_absent)  # As of its last part.


class FunctionSpec(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Raw = field(default_factory=_absent)  # A JSON schema.
    strict: bool | None = None


class Tool(Struct):
    type: Literal["function"]
    function: FunctionSpec
    cache_control: Raw = field(default_factory=_absent)


class NamedFunction(Struct):
    name: str


class NamedTool(Struct):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Struct):
    name: str = ""
    schema: Raw = field(default_factory=_absent)
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Struct):
    include_usage: bool = False


class _Sampling(Struct, kw_only=True):
    """What chat and completions share. Beside OpenAI's fields, those of LocalAI and llama.cpp that our
    backend for llama.cpp reads: their ranges take in the values that mean "off" there."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Span | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    tfz: Factor | None = None
    tfs_z: Factor | None = None  # The same, by llama.cpp's name.
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Factor | None = None
    mirostat_eta: Share | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=STOPS_MAX)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repeat_penalty: Factor | None = None
    repeat_last_n: Span | None = None
    n_keep: Span | None = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=BIASES_MAX)] | None = None
    grammar: str | None = None
    user: str | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=METADATA_MAX)] | None = None


class ChatRequest(_Sampling, kw_only=True):
    messages: Annotated[list[RequestMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Positive | None = None
    tools: Annotated[list[Tool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: str | None = None


class CompletionRequest(_Sampling, kw_only=True):
    prompt: Text
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None


class EmbeddingRequest(Struct, kw_only=True):
    model: ModelName
    input: Text
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    user: str | None = None


class RerankRequest(Struct, kw_only=True):
    model: ModelName
    query: str
    documents: Annotated[list[str], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None
    return_documents: bool | None = None


class TokenizeRequest(Struct, kw_only=True):
    """To be made into tokens: a text as it is, or a chat as its model reads it, tools and the opening of the
    answer included."""

    model: ModelName
    prompt: str | ChatRequest


def mixed(text: Text) -> bool:
    """It is a list of things of different kinds, which means nothing."""
    return isinstance(text, list) and len({type(item) for item in text}) > 1


def answer_count(request: ChatRequest | CompletionRequest) -> int:
    """How many answers it is to have: `n` for each of its prompts."""
    each = request.n or 1
    if isinstance(request, ChatRequest) or isinstance(request.prompt, str):
        return each
    tokens = any(isinstance(item, int) for item in request.prompt)
    return each if tokens else each * max(len(request.prompt), 1)


def text_of(message: RequestMessage, between: str = "") -> str:
    """Its text; of several parts those that are text, one after the other."""
    content = message.content
    if isinstance(content, list):
        return between.join(part.text for part in content if part.type == "text")
    return content or ""


def has_media(request: object) -> bool:
    """Some message has a part that is not text. Few requests do: what looks closer is left out for others."""
    if not isinstance(request, ChatRequest):
        return False
    return any(
        part.type != "text"
        for message in request.messages
        if isinstance(message.content, list)
        for part in message.content
    )


def media_of(chat: ChatRequest) -> tuple[int, int]:
    """How many images and recordings it has, and how many bytes of it these are."""
    count, size = 0, 0
    for message in chat.messages:
        for part in message.content if isinstance(message.content, list) else ():
            if part.type != "text":
                count += 1
                size += sum(len(bytes(one)) for one in _media_in(part) if one is not NULL)
    return count, size


def _media_in(part: Part) -> tuple[Raw, ...]:
    return part.image_url, part.input_audio, part.video_url, part.audio_url


def openai_json(request: Struct) -> bytes:
    """The request as OpenAI's API has it, for servers that speak it: without fields that it does not have, as
    not every server takes null for them."""
    return json.encode(_present(request))


_SCALARS: Final = frozenset({str, int, float, bool})


def _present(value: object) -> object:
    """Most members are absent or plain, and each request has dozens: those are recognised first."""
    if isinstance(value, list):
        return [_present(item) for item in value]
    if not isinstance(value, Struct):
        return value
    written: dict[str, object] = {}
    for name in value.__struct_fields__:
        member = getattr(value, name)
        if member is None or member is NULL:
            continue
        if type(member) in _SCALARS:
            written[name] = member
        elif not _is_null(member) and name != "cache_control":  # Which is not OpenAI's.
            written[name] = _present(member)
    if isinstance(value, Part) and value.type != "text":
        del written["text"]
    return written


def _is_null(member: object) -> bool:
    return isinstance(member, Raw) and len(member) == len(NULL) and member == NULL

"""From a request and its model's configuration to what a backend is asked for text: prompt, sampling,
media, the tools that may be called, and the grammar that binds the answer. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from remuda.core.errors import Invalid, in_field
from remuda.core.slices import Budget, Sliced
from remuda.inference.model import InferenceCall
from remuda.inference.requests import (
    NULL,
    ChatRequest,
    CompletionRequest,
    NamedTool,
    RequestMessage,
    ResponseFormat,
    Tool,
    has_media,
    mixed,
    text_of,
)
from remuda.models.config import ModelConfig
from remuda.models.grammar import JSON_GRAMMAR
from remuda.models.templates import ChatMessage, render_chat, render_completion
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits
from remuda.upstreams.grpc.grammars import Grammars
from remuda.upstreams.grpc.media import NO_MEDIA, Content, Media, marked_text, media_in


class ToolCallSearch(msgspec.Struct, frozen=True):
    """How tool calls are found in a text. `bound`: by its grammar the whole text is one."""

    names: frozenset[str]
    no_action: str | None = None  # The tool that stands for a plain answer.
    bound: bool = False


class OutputRules(msgspec.Struct, frozen=True):
    """What an answer has to keep to."""

    grammar: str = ""
    reading: ToolCallSearch | None = None  # None: there is nothing to call.


def offered_tools(request: ChatRequest) -> Sequence[Tool]:
    """Those that may be called now: the one that was named, else all. Invalid for one that is not there."""
    choice = request.tool_choice
    if not request.tools or choice == "none":
        return ()
    if not isinstance(choice, NamedTool):
        return request.tools
    named = [tool for tool in request.tools if tool.function.name == choice.function.name]
    if not named:
        words = f"tool_choice names {choice.function.name[:80]!r}, which is not among tools"
        raise Invalid(words, param="tool_choice")
    return named


def rules_for(
    config: ModelConfig, request: ChatRequest, grammars: Grammars, *, own_template: bool
) -> Sliced[OutputRules]:
    """`own_template`: the backend applies the model's own, which also knows how that model calls tools."""
    tools = offered_tools(request)
    if not tools:
        return OutputRules((yield from _asked_grammar(request, grammars)))
    names = frozenset(tool.function.name for tool in tools)
    strict = any(tool.function.strict for tool in tools)
    function = config.function
    if strict or not (own_template or function.grammar.disable):
        forced = isinstance(request.tool_choice, NamedTool) or request.tool_choice == "required"
        answers = not (strict or forced or function.disable_no_action)
        no_action = function.no_action_function_name if answers else None
        with in_field("tools"):
            grammar = yield from grammars.of_tools(
                [
                    (tool.function.name, bytes(tool.function.parameters), bool(tool.function.strict))
                    for tool in tools
                ],
                parallel=function.grammar.parallel_calls and request.parallel_tool_calls is not False,
                no_action=no_action,
            )
        return OutputRules(grammar, ToolCallSearch(names, no_action, bound=True))
    return OutputRules((yield from _asked_grammar(request, grammars)), ToolCallSearch(names))


def _asked_grammar(request: ChatRequest, grammars: Grammars) -> Sliced[str]:
    """By the format that the answer is to have, else by the client's own grammar."""
    match request.response_format:
        case ResponseFormat(type="json_object") | ResponseFormat(type="json_schema", json_schema=None):
            return JSON_GRAMMAR
        case ResponseFormat(type="json_schema", json_schema=schema) if schema is not None:
            place = "response_format.json_schema.schema"
            if bytes(schema.schema) == b"null":
                raise Invalid(
                    f"{place} is missing", hint="for any JSON, use the type json_object", param=place
                )
            with in_field(place):
                return (yield from grammars.of_schema(bytes(schema.schema), strict=bool(schema.strict)))
    return request.grammar or ""


SEEDS: Final = 1 << 31  # A seed is one of so many.
TEMPERATURE_USUAL: Final = 0.9
TOP_P_USUAL: Final = 0.95
TOP_K_OF_LLAMA: Final = 40
MIROSTAT_ETA_USUAL: Final = 0.1
MIROSTAT_TAU_USUAL: Final = 5.0
_ROLES: Final = {"developer": "system", "function": "tool"}  # Those that chat templates know by another name.
_SAMPLING: Final = (  # What a request may say of them goes before what the configuration says.
    ("max_tokens", "Tokens"),
    ("temperature", "Temperature"),
    ("top_p", "TopP"),
    ("top_k", "TopK"),
    ("min_p", "MinP"),
    ("typical_p", "TypicalP"),
    ("tfs_z", "TailFreeSamplingZ"),
    ("tfz", "TailFreeSamplingZ"),
    ("mirostat", "Mirostat"),
    ("mirostat_tau", "MirostatTAU"),
    ("mirostat_eta", "MirostatETA"),
    ("frequency_penalty", "FrequencyPenalty"),
    ("presence_penalty", "PresencePenalty"),
    ("repeat_penalty", "Penalty"),
    ("repeat_last_n", "Repeat"),
    ("n_keep", "NKeep"),
    ("ignore_eos", "IgnoreEOS"),
)
_SAMPLING_FIELDS: Final = tuple(field for _, field in _SAMPLING)
_sampling_of: Final = attrgetter(*(name for name, _ in _SAMPLING))
_MESSAGES_PER_SLICE: Final = 200
_LONG_TEXT_CHARS: Final = 128 << 10
_PROMPT_STEPS: Final = 100
_PROMPT_STEPS_MAX: Final = 1 << 20  # Never reached: bodies are bounded.
_LENGTH_DELIMITED: Final = 2  # Protobuf's wire type of texts.
_encode: Final = msgspec.json.Encoder().encode

Draw = Callable[[], int]
Texts = ChatRequest | CompletionRequest


class Preset:
    """What a model's configuration says of all requests for it, made ready once."""

    def __init__(self, config: ModelConfig, grammars: Grammars) -> None:
        self.config = config
        self.grammars = grammars
        self.options = _preset_options(config)


class GenerationRequest(msgspec.Struct, frozen=True):
    """One answer to be made. `options` are shared by all answers of a request, which may be long.

    Made for every request, for which a frozen dataclass takes ten times as long."""

    options: pb.PredictOptions
    prompt: int = 0  # Which of the request's prompts it answers.
    rendered: str | None = None  # The prompt itself, where the options have none.
    seed: int = 0
    media: Media = NO_MEDIA
    chat: bool = False
    reading: ToolCallSearch | None = None
    logprobs: bool = False
    one_call: bool = False  # At most one tool is to be called.

    def message(self) -> Sequence[Content]:
        """What the backend is sent, in pieces: pictures stay where they are in the request's body."""
        options = self.options
        options.Seed = self.seed
        if self.rendered is not None:
            options.Prompt = self.rendered
        written = options.SerializeToString()
        return (written,) if self.media is NO_MEDIA else (written, *_media_fields(self.media))


class _AsSent(msgspec.Struct):
    """Parts of a request that are passed on letter by letter."""

    tools: msgspec.Raw
    tool_choice: msgspec.Raw = msgspec.Raw(b"")


def chat_generations(
    preset: Preset, call: InferenceCall, request: ChatRequest, draw: Draw
) -> Sliced[Sequence[GenerationRequest]]:
    """As many as are asked for. `draw` gives seeds. Invalid for what no backend could be asked."""
    config = preset.config
    own_template = config.template.use_tokenizer_template or not config.template.written
    options = _sampling(preset, call, request)
    if own_template:
        options.UseTokenizerTemplate = True
        yield from _add_messages(options, config, request.messages)
    else:
        options.Prompt = yield from _rendered(config, request)
    if request.tools:
        sent = msgspec.json.decode(call.body, type=_AsSent)
        options.Tools = bytes(sent.tools).decode()
        options.ToolChoice = bytes(sent.tool_choice).decode() if request.tool_choice is not None else ""
    media = (yield from media_in(request.messages)) if has_media(request) else NO_MEDIA
    if request.logprobs:
        options.Logprobs = options.TopLogprobs = request.top_logprobs or 1
    rules = yield from rules_for(config, request, preset.grammars, own_template=own_template)
    options.Grammar = rules.grammar
    generation = GenerationRequest(
        options,
        media=media,
        chat=True,
        reading=rules.reading,
        logprobs=bool(request.logprobs),
        one_call=request.parallel_tool_calls is False,
    )
    return [replace(generation, seed=seed) for seed in _seeds(request, config, draw)]


def completion_generations(
    preset: Preset, call: InferenceCall, request: CompletionRequest, draw: Draw
) -> Sliced[Sequence[GenerationRequest]]:
    """For each prompt as many as are asked for, one prompt after the other. Invalid for what no backend could
    be asked."""
    if request.suffix:
        raise Invalid(
            "suffix is not supported",
            hint="leave it out, and write the prompt as the model wants it",
            param="suffix",
        )
    if (request.best_of or 1) > (request.n or 1):
        raise Invalid("best_of is not supported", hint="ask for n answers, and choose one", param="best_of")
    prompts = _prompts(request)
    if len(prompts) * (request.n or 1) > limits.GENERATIONS_MAX:
        words = f"more than {limits.GENERATIONS_MAX} answers are asked for at once"
        raise Invalid(words, param="prompt" if len(prompts) > 1 else "n")
    options = _sampling(preset, call, request)
    options.Grammar = request.grammar or preset.config.grammar
    if request.logprobs is not None:
        options.Logprobs = options.TopLogprobs = request.logprobs or 1
    generations, budget = [], Budget("the prompts", _PROMPT_STEPS_MAX)
    for number, prompt in enumerate(prompts):
        if budget.spend(_PROMPT_STEPS + len(prompt) // 1000):
            yield
        rendered = render_completion(preset.config, prompt)
        if not rendered:
            raise Invalid("prompt is empty", param="prompt")
        generation = GenerationRequest(
            options, number, rendered=rendered, logprobs=request.logprobs is not None
        )
        generations += [replace(generation, seed=seed) for seed in _seeds(request, preset.config, draw)]
    return generations


def _prompts(request: CompletionRequest) -> Sequence[str]:
    given = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    if mixed(request.prompt) or len(texts) < len(given):
        words = "prompt has tokens in it, which backends do not take"
        raise Invalid(words, hint="send it as text", param="prompt")
    if not texts:
        raise Invalid("prompt is empty", param="prompt")
    return texts


def _seeds(request: Texts, config: ModelConfig, draw: Draw) -> Sequence[int]:
    """One for each answer: with the same seed they would all be the same."""
    fixed = request.seed if request.seed is not None else config.parameters.seed
    drawn = fixed is None or fixed == -1
    return [draw() if drawn else ((fixed or 0) + number) % SEEDS for number in range(request.n or 1)]


def _media_fields(media: Media) -> Iterator[Content]:
    """As protobuf writes repeated texts: fields of a message may stand one after the other in any order."""
    fields = pb.PredictOptions.DESCRIPTOR.fields_by_name
    for name, contents in (("Images", media.images), ("Videos", media.videos), ("Audios", media.audios)):
        for content in contents:
            yield _varint(fields[name].number << 3 | _LENGTH_DELIMITED) + _varint(len(content))
            yield content


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _copy(options: pb.PredictOptions) -> pb.PredictOptions:
    copied = pb.PredictOptions()
    copied.CopyFrom(options)
    return copied


def _add_messages(
    options: pb.PredictOptions, config: ModelConfig, messages: Sequence[RequestMessage]
) -> Sliced[None]:
    if config.system_prompt and not any(_role(message) == "system" for message in messages):
        options.Messages.add(role="system", content=config.system_prompt)
    for count, message in enumerate(messages, 1):
        _add_message(options, message)
        if count % _MESSAGES_PER_SLICE == 0:
            yield


def _add_message(options: pb.PredictOptions, message: RequestMessage) -> None:
    added = options.Messages.add(role=_role(message), content=text_of(message))
    if message.name:
        added.name = message.name
    if message.tool_call_id:
        added.tool_call_id = message.tool_call_id
    if thought := message.reasoning_content or _text_in(message.reasoning):
        added.reasoning_content = thought
    if message.tool_calls:
        added.tool_calls = _encode(message.tool_calls).decode()


def _text_in(value: msgspec.Raw) -> str:
    """Empty for JSON of any other kind."""
    if value is NULL:
        return ""
    text = bytes(value)
    return msgspec.json.decode(text, type=str) if text.startswith(b'"') else ""


def _role(message: RequestMessage) -> str:
    return _ROLES.get(message.role, message.role)


def _rendered(config: ModelConfig, request: ChatRequest) -> Sliced[str]:
    """The whole prompt, by the templates that the configuration has."""
    messages = []
    for count, message in enumerate(request.messages, 1):
        messages.append(_chat_message(message))
        if count % _MESSAGES_PER_SLICE == 0:
            yield
    functions = [_function(tool) for tool in offered_tools(request)]
    has_system = any(message.role == "system" for message in messages)
    system_prompt = "" if has_system else config.system_prompt
    functions_json = _encode(functions).decode() if functions else ""
    if len(functions_json) > _LONG_TEXT_CHARS:
        yield
    return (yield from render_chat(config, messages, functions_json, system_prompt))


def _chat_message(message: RequestMessage) -> ChatMessage:
    content = message.content
    return ChatMessage(
        role=_role(message),
        content=content if isinstance(content, str) else marked_text(message),
        name=message.name or "",
        tool_calls_json=_encode(message.tool_calls).decode() if message.tool_calls else "",
        tool_call_id=message.tool_call_id or "",
    )


def _function(tool: Tool) -> dict[str, object]:
    function = tool.function
    described = {"description": function.description} if function.description else {}
    return {"name": function.name, **described, "parameters": function.parameters}


def _sampling(preset: Preset, call: InferenceCall, request: Texts) -> pb.PredictOptions:
    """All that chat and text completions have in common: the request's word, else the configuration's."""
    options = _copy(preset.options)
    options.CorrelationId = call.request_id
    for field, value in zip(_SAMPLING_FIELDS, _sampling_of(request), strict=True):
        if value is not None:
            setattr(options, field, value)
    last_n = request.repeat_last_n
    if (preset.config.parameters.repeat_last_n if last_n is None else last_n) == 0:
        _penalize_nothing(options)  # On the wire, 0 is also what stands for "not said".
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        options.Tokens = request.max_completion_tokens
    if request.stop:
        options.StopPrompts.extend((request.stop,) if isinstance(request.stop, str) else request.stop)
    if request.logit_bias:
        options.LogitBias = _encode(request.logit_bias).decode()
    if metadata := _metadata(preset.config, request):
        options.Metadata.update(metadata)
    return options


def _preset_options(config: ModelConfig) -> pb.PredictOptions:
    parameters = config.parameters
    options = pb.PredictOptions(
        TopK=TOP_K_OF_LLAMA if config.on_llama else 0,
        TopP=TOP_P_USUAL,
        Temperature=TEMPERATURE_USUAL,
        TypicalP=1.0,
        TailFreeSamplingZ=1.0,
        MirostatETA=MIROSTAT_ETA_USUAL,
        MirostatTAU=MIROSTAT_TAU_USUAL,
        StopPrompts=config.stopwords,
        ModelIdentity=parameters.model,
    )
    for field, value in _configured(config):
        if value is not None:
            setattr(options, field, value)
    return options


def _penalize_nothing(options: pb.PredictOptions) -> None:
    """As of a repetition within the last 0 tokens."""
    options.Penalty, options.FrequencyPenalty, options.PresencePenalty = 1.0, 0.0, 0.0


def _configured(config: ModelConfig) -> Iterator[tuple[str, object]]:
    parameters = config.parameters
    yield "Tokens", parameters.max_tokens
    yield "Temperature", parameters.temperature
    yield "TopP", parameters.top_p
    yield "TopK", parameters.top_k
    yield "MinP", parameters.min_p
    yield "Penalty", parameters.repeat_penalty
    yield "FrequencyPenalty", parameters.frequency_penalty
    yield "PresencePenalty", parameters.presence_penalty
    yield "TailFreeSamplingZ", parameters.tfz
    yield "TypicalP", parameters.typical_p
    yield "Repeat", parameters.repeat_last_n
    yield "Batch", parameters.batch
    yield "NKeep", parameters.n_keep
    yield "IgnoreEOS", parameters.ignore_eos
    yield "RopeFreqBase", parameters.rope_freq_base
    yield "RopeFreqScale", parameters.rope_freq_scale
    yield "NegativePrompt", parameters.negative_prompt
    yield "NegativePromptScale", parameters.negative_prompt_scale
    yield "Threads", config.threads
    yield "F16KV", config.f16
    yield "Mirostat", config.mirostat
    yield "MirostatETA", config.mirostat_eta
    yield "MirostatTAU", config.mirostat_tau
    yield "MainGPU", config.main_gpu
    yield "TensorSplit", config.tensor_split
    yield "PromptCachePath", config.prompt_cache_path
    yield "PromptCacheAll", config.prompt_cache_all
    yield "PromptCacheRO", config.prompt_cache_ro
    yield "NDraft", config.n_draft
    yield "MLock", config.mmlock
    yield "MMap", config.mmap


def _metadata(config: ModelConfig, request: Texts) -> Mapping[str, str]:
    """How the model is to think, beside what the client sent, which has the last word."""
    metadata: dict[str, str] = {}
    if config.reasoning.disable is not None:
        metadata["enable_thinking"] = "false" if config.reasoning.disable else "true"
    if effort := (isinstance(request, ChatRequest) and request.reasoning_effort) or config.reasoning_effort:
        metadata["reasoning_effort"] = effort
    if request.metadata:
        metadata |= request.metadata
    arguments = dict(config.chat_template_kwargs)
    if "reasoning_effort" in metadata:
        arguments["reasoning_effort"] = metadata["reasoning_effort"]
    if "enable_thinking" in metadata:
        arguments["enable_thinking"] = metadata["enable_thinking"].lower() == "true"
    if arguments:
        metadata.setdefault("chat_template_kwargs", _encode(arguments).decode())
    return metadata

"""From a request and its model's configuration to what a backend is asked for text. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from remuda.core.errors import Invalid
from remuda.inference.model import Call
from remuda.inference.requests import ChatRequest, CompletionRequest, Message, Tool, mixed
from remuda.models.config import ModelConfig
from remuda.models.templates import ChatMessage, render_chat, render_completion
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits
from remuda.upstreams.grpc.dialects import is_llama
from remuda.upstreams.grpc.media import marked_text, media_in, text_of
from remuda.upstreams.grpc.tools import Reading, offered_tools, rules_for

SEEDS: Final = 1 << 31  # A seed is one of so many.
TEMPERATURE_USUAL: Final = 0.9
TOP_P_USUAL: Final = 0.95
TOP_K_OF_LLAMA: Final = 40
MIROSTAT_ETA_USUAL: Final = 0.1
MIROSTAT_TAU_USUAL: Final = 5.0
_ROLES: Final = {"developer": "system", "function": "tool"}  # Those that chat templates know by another name.
_encode: Final = msgspec.json.Encoder().encode

Draw = Callable[[], int]
Texts = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to be made."""

    options: pb.PredictOptions
    prompt: int = 0  # Which of the request's prompts it answers.
    echoed: str = ""  # What the client wants told before it.
    reading: Reading | None = None
    logprobs: bool = False


class _AsSent(msgspec.Struct):
    """Parts of a request that are passed on letter by letter."""

    tools: msgspec.Raw
    tool_choice: msgspec.Raw = msgspec.Raw(b"")


def chat_generations(call: Call, request: ChatRequest, draw: Draw) -> Sequence[Generation]:
    """As many as are asked for. `draw` gives seeds. Invalid for what no backend could be asked."""
    config = call.model
    own_template = config.template.use_tokenizer_template or not config.template.written
    options = _sampling(call, request)
    if own_template:
        options.UseTokenizerTemplate = True
        options.Messages.extend(_messages(config, request.messages))
    else:
        options.Prompt = _rendered(config, request)
    if request.tools:
        sent = msgspec.json.decode(call.body, type=_AsSent)
        options.Tools = bytes(sent.tools).decode()
        options.ToolChoice = bytes(sent.tool_choice).decode() if request.tool_choice is not None else ""
    if media := media_in(request.messages):
        options.Images.extend(media.images)
        options.Videos.extend(media.videos)
        options.Audios.extend(media.audios)
    if request.logprobs:
        options.Logprobs = options.TopLogprobs = request.top_logprobs or 1
    rules = rules_for(config, request, own_template=own_template)
    options.Grammar = rules.grammar
    return [
        Generation(seeded, reading=rules.reading, logprobs=bool(request.logprobs))
        for seeded in _seeded(options, request, config, draw)
    ]


def completion_generations(call: Call, request: CompletionRequest, draw: Draw) -> Sequence[Generation]:
    """For each prompt as many as are asked for. Invalid for what no backend could be asked."""
    if request.suffix:
        raise Invalid(
            "suffix is not supported", hint="leave it out, and write the prompt as the model wants it"
        )
    if (request.best_of or 1) > (request.n or 1):
        raise Invalid("best_of is not supported", hint="ask for n answers, and choose one")
    prompts = _prompts(request)
    if len(prompts) * (request.n or 1) > limits.GENERATIONS_MAX:
        raise Invalid(f"more than {limits.GENERATIONS_MAX} answers are asked for at once")
    options = _sampling(call, request)
    options.Grammar = request.grammar or call.model.grammar
    if request.logprobs is not None:
        options.Logprobs = options.TopLogprobs = request.logprobs or 1
    return [
        Generation(seeded, number, prompt if request.echo else "", logprobs=request.logprobs is not None)
        for number, prompt in enumerate(prompts)
        for seeded in _seeded(_prompted(options, call.model, prompt), request, call.model, draw)
    ]


def _prompts(request: CompletionRequest) -> Sequence[str]:
    given = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    if mixed(request.prompt) or len(texts) < len(given):
        raise Invalid("prompt has tokens in it, which backends do not take", hint="send it as text")
    if not texts:
        raise Invalid("prompt is empty")
    return texts


def _prompted(options: pb.PredictOptions, config: ModelConfig, prompt: str) -> pb.PredictOptions:
    copied = _copy(options)
    copied.Prompt = render_completion(config, prompt)
    return copied


def _seeded(
    options: pb.PredictOptions, request: Texts, config: ModelConfig, draw: Draw
) -> Sequence[pb.PredictOptions]:
    """The same request with a seed for each answer: with the same one they would all be the same."""
    fixed = request.seed if request.seed is not None else config.parameters.seed
    several = [options, *(_copy(options) for _ in range(1, request.n or 1))]
    for number, each in enumerate(several):
        each.Seed = draw() if fixed is None or fixed == -1 else (fixed + number) % SEEDS
    return several


def _copy(options: pb.PredictOptions) -> pb.PredictOptions:
    copied = pb.PredictOptions()
    copied.CopyFrom(options)
    return copied


def _messages(config: ModelConfig, messages: Sequence[Message]) -> list[pb.Message]:
    told = [_message(message) for message in messages]
    if config.system_prompt and not any(message.role == "system" for message in told):
        told.insert(0, pb.Message(role="system", content=config.system_prompt))
    return told


def _message(message: Message) -> pb.Message:
    told = pb.Message(role=_role(message), content=text_of(message))
    if message.name:
        told.name = message.name
    if message.tool_call_id:
        told.tool_call_id = message.tool_call_id
    if message.reasoning_content:
        told.reasoning_content = message.reasoning_content
    if message.tool_calls:
        told.tool_calls = _encode(message.tool_calls).decode()
    return told


def _role(message: Message) -> str:
    return _ROLES.get(message.role, message.role)


def _rendered(config: ModelConfig, request: ChatRequest) -> str:
    """The whole prompt, by the templates that the configuration has."""
    messages = [
        ChatMessage(
            role=_role(message),
            content=marked_text(message),
            name=message.name or "",
            tool_calls_json=_encode(message.tool_calls).decode() if message.tool_calls else "",
            tool_call_id=message.tool_call_id or "",
        )
        for message in request.messages
    ]
    functions = [_function(tool) for tool in offered_tools(request)]
    told = any(message.role == "system" for message in messages)
    system_prompt = "" if told else config.system_prompt
    return render_chat(config, messages, _encode(functions).decode() if functions else "", system_prompt)


def _function(tool: Tool) -> dict[str, object]:
    function = tool.function
    described = {"description": function.description} if function.description else {}
    return {"name": function.name, **described, "parameters": function.parameters}


def _sampling(call: Call, request: Texts) -> pb.PredictOptions:
    """All that chat and text completions have in common: the request's word, else the configuration's."""
    config, parameters = call.model, call.model.parameters
    options = pb.PredictOptions(
        Tokens=_tokens_max(request) or parameters.max_tokens or 0,
        TopK=int(_first(request.top_k, parameters.top_k, TOP_K_OF_LLAMA if is_llama(config) else 0)),
        TopP=_first(request.top_p, parameters.top_p, TOP_P_USUAL),
        MinP=_first(request.min_p, parameters.min_p, 0.0),
        Temperature=_first(request.temperature, parameters.temperature, TEMPERATURE_USUAL),
        Penalty=_first(request.repeat_penalty, parameters.repeat_penalty, 0.0),
        FrequencyPenalty=_first(request.frequency_penalty, parameters.frequency_penalty, 0.0),
        PresencePenalty=_first(request.presence_penalty, parameters.presence_penalty, 0.0),
        TypicalP=_first(parameters.typical_p, 1.0),
        TailFreeSamplingZ=_first(parameters.tfz, 1.0),
        MirostatETA=_first(config.mirostat_eta, MIROSTAT_ETA_USUAL),
        MirostatTAU=_first(config.mirostat_tau, MIROSTAT_TAU_USUAL),
        StopPrompts=[*config.stopwords, *_stops(request.stop)],
        ModelIdentity=parameters.model,
        CorrelationId=call.request_id,
        Metadata=_metadata(config, request),
    )
    for field, value in _of_configuration(config):
        if value:
            setattr(options, field, value)
    if request.logit_bias:
        options.LogitBias = _encode(request.logit_bias).decode()
    return options


def _of_configuration(config: ModelConfig) -> Sequence[tuple[str, object]]:
    """What no request can change, and is seldom given."""
    parameters = config.parameters
    return (
        ("Threads", config.threads),
        ("Repeat", parameters.repeat_last_n),
        ("Batch", parameters.batch),
        ("NKeep", parameters.n_keep),
        ("IgnoreEOS", parameters.ignore_eos),
        ("F16KV", config.f16),
        ("Mirostat", config.mirostat),
        ("MainGPU", config.main_gpu),
        ("TensorSplit", config.tensor_split),
        ("PromptCachePath", config.prompt_cache_path),
        ("PromptCacheAll", config.prompt_cache_all),
        ("PromptCacheRO", config.prompt_cache_ro),
        ("RopeFreqBase", parameters.rope_freq_base),
        ("RopeFreqScale", parameters.rope_freq_scale),
        ("NegativePrompt", parameters.negative_prompt),
        ("NegativePromptScale", parameters.negative_prompt_scale),
        ("NDraft", config.n_draft),
        ("MLock", config.mmlock),
        ("MMap", config.mmap),
    )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _tokens_max(request: Texts) -> int | None:
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens
    return request.max_tokens


def _stops(stop: str | list[str] | None) -> Sequence[str]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else stop


def _metadata(config: ModelConfig, request: Texts) -> Mapping[str, str]:
    """How the model is to think, beside what the client sent, which has the last word."""
    told: dict[str, str] = {}
    if config.reasoning.disable is not None:
        told["enable_thinking"] = "false" if config.reasoning.disable else "true"
    if effort := (isinstance(request, ChatRequest) and request.reasoning_effort) or config.reasoning_effort:
        told["reasoning_effort"] = effort
    if request.metadata:
        told |= request.metadata
    arguments = dict(config.chat_template_kwargs)
    if "reasoning_effort" in told:
        arguments["reasoning_effort"] = told["reasoning_effort"]
    if "enable_thinking" in told:
        arguments["enable_thinking"] = told["enable_thinking"].lower() == "true"
    if arguments:
        told.setdefault("chat_template_kwargs", _encode(arguments).decode())
    return told

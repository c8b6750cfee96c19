"""From a request and its model's configuration to what a backend is asked for text. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from remuda.inference.model import Call
from remuda.inference.requests import ChatRequest, CompletionRequest, Message
from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb

SEEDS: Final = 1 << 31  # A seed is one of so many.
TEMPERATURE_USUAL: Final = 0.9
TOP_P_USUAL: Final = 0.95
TOP_K_OF_LLAMA: Final = 40
MIROSTAT_ETA_USUAL: Final = 0.1
MIROSTAT_TAU_USUAL: Final = 5.0
_ROLES: Final = {"developer": "system", "function": "tool"}  # Those that chat templates know by another name.
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to be made."""

    options: pb.PredictOptions
    echoed: str = ""  # What the client wants told before it.


def chat_generations(call: Call, request: ChatRequest, draw: Callable[[], int]) -> Sequence[Generation]:
    """As many as are asked for. `draw` gives seeds."""
    options = _sampling(call, request)
    options.UseTokenizerTemplate = True
    options.Messages.extend(_messages(call.model, request.messages))
    return [Generation(seeded) for seeded in _seeded(options, request, call.model, draw)]


def is_llama(config: ModelConfig) -> bool:
    """Served by llama.cpp or one of its kin."""
    return not config.backend or "llama" in config.backend


def _seeded(
    options: pb.PredictOptions,
    request: ChatRequest | CompletionRequest,
    config: ModelConfig,
    draw: Callable[[], int],
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
    told = pb.Message(role=_ROLES.get(message.role, message.role), content=text_of(message))
    if message.name:
        told.name = message.name
    if message.tool_call_id:
        told.tool_call_id = message.tool_call_id
    if message.reasoning_content:
        told.reasoning_content = message.reasoning_content
    if message.tool_calls:
        told.tool_calls = _encode(message.tool_calls).decode()
    return told


def text_of(message: Message) -> str:
    """Its text; of several parts those that are text, one after the other."""
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or () if part.type == "text")


def _sampling(call: Call, request: ChatRequest | CompletionRequest) -> pb.PredictOptions:
    """All that chat and text completions have in common: the request's word, else the configuration's."""
    config, parameters = call.model, call.model.parameters
    options = pb.PredictOptions(
        Threads=config.threads or 0,
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
        Repeat=parameters.repeat_last_n or 0,
        Batch=parameters.batch or 0,
        NKeep=parameters.n_keep or 0,
        IgnoreEOS=parameters.ignore_eos,
        Mirostat=config.mirostat or 0,
        MirostatETA=_first(config.mirostat_eta, MIROSTAT_ETA_USUAL),
        MirostatTAU=_first(config.mirostat_tau, MIROSTAT_TAU_USUAL),
        StopPrompts=[*config.stopwords, *_stops(request.stop)],
        ModelIdentity=parameters.model,
        CorrelationId=call.request_id,
        Metadata=_metadata(config, request),
    )
    if request.logit_bias:
        options.LogitBias = _encode(request.logit_bias).decode()
    return options


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _tokens_max(request: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens
    return request.max_tokens


def _stops(stop: str | list[str] | None) -> Sequence[str]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else stop


def _metadata(config: ModelConfig, request: ChatRequest | CompletionRequest) -> Mapping[str, str]:
    return request.metadata or {}

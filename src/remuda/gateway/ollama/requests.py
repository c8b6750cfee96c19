"""The bodies of Ollama's requests that a model is to answer, and what they ask in OpenAI's terms. Pure.

Of fields that are not known here nothing is read, as Ollama does it.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct, field

from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import Choices, InvalidField
from remuda.gateway.inference.text_sinks import ResponseSink
from remuda.gateway.ollama.answer_sink import OllamaSink
from remuda.gateway.ollama.messages import (
    OllamaMessage,
    OllamaTool,
    Pictures,
    offered,
    translated,
    with_links,
    with_pictures,
)
from remuda.gateway.ollama.options import (
    Figure,
    Options,
    keep_alive,
    response_format,
    sampling,
    thinking,
)
from remuda.gateway.ollama.rendering import Shape
from remuda.inference.answers import AnswerSink
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall, Request
from remuda.inference.requests import (
    MESSAGES_MAX,
    NULL,
    TOOLS_MAX,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ModelName,
    Positive,
    RequestMessage,
    Text,
    openai_json,
)

_absent: Final = NULL.copy
_LOGPROBS_OF_TEXTS_MAX: Final = 5


class _Asked(Struct, kw_only=True):
    model: ModelName
    options: Options | None = None
    keep_alive: Figure | str | None = None


class _AskedText(_Asked, kw_only=True):
    stream: bool | None = None
    format: Raw = field(default_factory=_absent)  # `json`, or a schema.
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class OllamaChat(_AskedText, kw_only=True):
    """POST /api/chat. Without messages the model is only loaded, or with a keep_alive of 0 unloaded."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=MESSAGES_MAX)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=TOOLS_MAX)] | None = None


class OllamaGenerate(_AskedText, kw_only=True):
    """POST /api/generate. Without a prompt the model is only loaded, or with a keep_alive of 0 unloaded."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: Pictures | None = None


class OllamaEmbed(_Asked, kw_only=True):
    """POST /api/embed. Texts that are too long are refused, whatever `truncate` says."""

    input: str | list[str]
    truncate: bool | None = None
    dimensions: Positive | None = None


class OllamaEmbeddings(_Asked, kw_only=True):
    """POST /api/embeddings, the older form."""

    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class OllamaRequest:
    """Implements gateway.inference.endpoint.ParsedRequest. `empty`: it asks for nothing but the model."""

    request: Request
    shape: Shape
    empty: bool = False
    keep_alive: timedelta | None = None
    stream: bool = False

    def openai_body(self, body: bytes) -> bytes:
        request, more = self.request, b""
        if isinstance(request, ChatRequest):
            if request.metadata:  # Backends of ours take the one, servers the other.
                thinks = request.metadata["enable_thinking"].encode()
                more = b',"chat_template_kwargs":{"enable_thinking":%b}}' % thinks
            messages = with_links(request.messages)
            request = msgspec.structs.replace(request, metadata=None, messages=messages)
        written = openai_json(request)
        return written[:-1] + more if more else written

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> AnswerSink:
        return OllamaSink(call, response, slicer, self.shape)


_CHOICES: Final[Choices] = {"messages.role": ("system", "user", "assistant", "tool")}
_CHAT: Final = msgspec.json.Decoder(OllamaChat)
_GENERATE: Final = msgspec.json.Decoder(OllamaGenerate)
_EMBED: Final = msgspec.json.Decoder(OllamaEmbed)
_EMBEDDINGS: Final = msgspec.json.Decoder(OllamaEmbeddings)


def chat(body: bytes) -> OllamaRequest:
    asked = decoded(_CHAT, body, _CHOICES)
    request = _chat_request(asked, translated(asked.messages or ()))
    request.tools = offered(asked.tools)
    return _parsed(asked, request, Shape.CHAT, empty=not asked.messages)


def generate(body: bytes) -> OllamaRequest:
    asked = decoded(_GENERATE, body, _CHOICES)
    _refuse_unsupported(asked)
    request: ChatRequest | CompletionRequest
    if asked.raw or asked.suffix:
        request = _completion_request(asked)
    else:
        request = _chat_request(asked, _messages(asked))
    return _parsed(asked, request, Shape.GENERATE, empty=not asked.prompt and not asked.images)


def _parsed(asked: _AskedText, request: Request, shape: Shape, *, empty: bool) -> OllamaRequest:
    stream = asked.stream is not False
    return OllamaRequest(request, shape, empty, keep_alive(asked.keep_alive), stream)


def _messages(asked: OllamaGenerate) -> list[RequestMessage]:
    prompt = asked.prompt or ""
    content = with_pictures(prompt, asked.images, "") if asked.images else prompt
    system = [RequestMessage("system", asked.system)] if asked.system else []
    return [*system, RequestMessage("user", content)]


def _chat_request(asked: OllamaChat | OllamaGenerate, messages: list[RequestMessage]) -> ChatRequest:
    if asked.top_logprobs and not asked.logprobs:
        raise InvalidField("top_logprobs needs logprobs to be true", "top_logprobs")
    return ChatRequest(
        model=asked.model,
        messages=messages,
        stream=asked.stream is not False,
        response_format=response_format(asked.format),
        logprobs=asked.logprobs or None,
        top_logprobs=asked.top_logprobs if asked.logprobs else None,
        **sampling(asked.options),
        **thinking(asked.think),
    )


def _completion_request(asked: OllamaGenerate) -> CompletionRequest:
    """The prompt as it is, or what belongs between it and the suffix."""
    mode = "raw" if asked.raw else "suffix"
    if asked.images:
        raise InvalidField(f"images cannot be shown with {mode}", "images", hint=f"leave {mode} out")
    if asked.system:
        raise InvalidField(f"system has no effect with {mode}", "system", hint="write it into the prompt")
    if response_format(asked.format) is not None:
        raise InvalidField(f"format cannot be kept to with {mode}", "format", hint=f"leave {mode} out")
    likely = min(asked.top_logprobs or 1, _LOGPROBS_OF_TEXTS_MAX) if asked.logprobs else None
    return CompletionRequest(
        model=asked.model,
        prompt=asked.prompt or "",
        suffix=asked.suffix or None,
        stream=asked.stream is not False,
        logprobs=likely,
        **sampling(asked.options),
    )


def _refuse_unsupported(asked: OllamaGenerate) -> None:
    if asked.template:
        raise InvalidField(
            "template is not supported: the model's own is used",
            "template",
            hint="send the finished prompt with raw, or use /api/chat",
        )
    if asked.context:
        raise InvalidField(
            "context is not supported, and no answer from here has one",
            "context",
            hint="send what was said before as messages to /api/chat",
        )


def embed(body: bytes) -> OllamaRequest:
    asked = decoded(_EMBED, body, _CHOICES)
    texts: Text = asked.input if isinstance(asked.input, str) else [*asked.input]
    request = EmbeddingRequest(model=asked.model, input=texts, dimensions=asked.dimensions)
    return OllamaRequest(request, Shape.EMBED, not asked.input, keep_alive(asked.keep_alive))


def embeddings(body: bytes) -> OllamaRequest:
    asked = decoded(_EMBEDDINGS, body, _CHOICES)
    prompt = asked.prompt or ""
    request = EmbeddingRequest(model=asked.model, input=prompt)
    return OllamaRequest(request, Shape.EMBEDDINGS, not prompt, keep_alive(asked.keep_alive))

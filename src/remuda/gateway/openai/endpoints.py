"""What OpenAI's API offers where a model answers: each path with its request, and what a type cannot say of
one. Pure.
"""

from collections.abc import Callable, Mapping
from typing import Final, get_args

import msgspec

from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import Choices, InvalidField, check_effort
from remuda.gateway.inference.endpoint import ApiEndpoint
from remuda.gateway.inference.text_sinks import ResponseSink
from remuda.gateway.openai import media_endpoints, reranking
from remuda.gateway.openai.answer_sink import OpenAiSink
from remuda.gateway.openai.rendering import OPENAI
from remuda.gateway.openai.tokens import TokenizeBody, tokenize_request
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall, Request, RequestKind
from remuda.inference.requests import (
    NULL,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    NamedTool,
    Role,
    mixed,
)

PREFIX: Final = "/v1"
_TOKENS_MAX: Final = 1 << 31
_DIGITS_MAX: Final = 20
_ONE_KIND: Final = "{} must be a text, texts, tokens or lists of tokens: not empty, and of one kind"
_CHOICES: Final[Choices] = {
    "messages.role": get_args(Role),
    "tools.type": ("function",),
    "tool_choice": ("none", "auto", "required"),
    "tool_choice.type": ("function",),
    "response_format.type": ("text", "json_object", "json_schema"),
    "encoding_format": ("float", "base64"),
}
_CHAT: Final = msgspec.json.Decoder(ChatRequest)
_COMPLETION: Final = msgspec.json.Decoder(CompletionRequest)
_EMBEDDING: Final = msgspec.json.Decoder(EmbeddingRequest)


class OpenAiRequest(msgspec.Struct, frozen=True):
    """Implements gateway.inference.endpoint.ParsedRequest: nothing needs to be translated."""

    request: Request

    def openai_body(self, body: bytes) -> bytes:
        return body

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> OpenAiSink:
        return OpenAiSink(call, response, slicer)


def _chat(body: bytes) -> ChatRequest:
    request = decoded(_CHAT, body, _CHOICES)
    _check_sampling(request)
    if request.top_logprobs and not request.logprobs:
        raise InvalidField("top_logprobs needs logprobs to be true", "top_logprobs")
    if request.reasoning_effort:
        check_effort(request.reasoning_effort, "reasoning_effort")
    _check_tools(request)
    return request


def _check_tools(request: ChatRequest) -> None:
    for index, tool in enumerate(request.tools or ()):
        parameters = tool.function.parameters
        if parameters is not NULL and bytes(memoryview(parameters)[:1]) not in (b"{", b"n"):
            place = f"tools[{index}].function.parameters"
            raise InvalidField(f"{place} must be an object, a JSON schema", place)
    must_call = request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)
    if must_call and not request.tools:
        raise InvalidField("tool_choice needs tools to choose from", "tool_choice", hint="send tools, too")


def _completion(body: bytes) -> CompletionRequest:
    request = decoded(_COMPLETION, body, _CHOICES)
    _check_sampling(request)
    if request.prompt == [] or mixed(request.prompt):
        raise InvalidField(_ONE_KIND.format("prompt"), "prompt")
    return request


def _check_sampling(request: ChatRequest | CompletionRequest) -> None:
    """What a type cannot say. A single empty text for `stop` means that there is none, as some clients put
    it; in a list it would end every answer before its first word."""
    if isinstance(request.stop, list) and "" in request.stop:
        place = f"stop[{request.stop.index('')}]"
        raise InvalidField(f"{place} must not be empty", place)
    for token in request.logit_bias or ():
        digits = token.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit()  # Some engines take words, too.
        if is_number and (digits != token or len(digits) > _DIGITS_MAX or int(digits) >= _TOKENS_MAX):
            words = (
                f"logit_bias has the token {token[:_DIGITS_MAX]}; a token's id is from 0 to {_TOKENS_MAX - 1}"
            )
            raise InvalidField(words, "logit_bias")


def _embedding(body: bytes) -> EmbeddingRequest:
    request = decoded(_EMBEDDING, body, _CHOICES)
    if request.input == [] or mixed(request.input):
        raise InvalidField(_ONE_KIND.format("input"), "input")
    return request


def _tokenize(body: bytes) -> OpenAiRequest:
    request = tokenize_request(body, _CHOICES)
    if isinstance(request.prompt, ChatRequest):
        _check_tools(request.prompt)
    return OpenAiRequest(request)


def _endpoint(kind: RequestKind, body: type[Request], parse: Callable[[bytes], Request]) -> ApiEndpoint:
    return ApiEndpoint(kind, OPENAI, body, lambda body: OpenAiRequest(parse(body)))


ENDPOINTS: Final[Mapping[str, ApiEndpoint]] = {
    "/v1/chat/completions": _endpoint(RequestKind.CHAT, ChatRequest, _chat),
    "/v1/completions": _endpoint(RequestKind.COMPLETION, CompletionRequest, _completion),
    "/v1/embeddings": _endpoint(RequestKind.EMBEDDING, EmbeddingRequest, _embedding),
    "/v1/rerank": reranking.JINA,
    "/v2/rerank": reranking.COHERE,
    "/v1/tokenize": ApiEndpoint(RequestKind.TOKENIZE, OPENAI, TokenizeBody, _tokenize),
    **media_endpoints.ENDPOINTS,
}

"""From a request's bytes to a checked request, or to words that name the field; with bounds on what it asks
an engine to make a grammar of, whichever engine that will be. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from remuda.core.errors import Invalid, in_field
from remuda.core.gbnf import check_grammar
from remuda.core.schema_shape import SchemaShape
from remuda.core.slices import Sliced
from remuda.gateway.openai.errors import InvalidField, wrong_field
from remuda.inference.model import Request, RequestKind
from remuda.inference.requests import (
    NULL,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    NamedTool,
    RerankRequest,
    mixed,
)

_SIMPLE_BYTES_MAX: Final = 4 << 10  # No schema as short as this is too complex.


def check_complexity(request: Request) -> Sliced[None]:
    """Invalid says what is too large, or nested too deeply."""
    if not isinstance(request, ChatRequest | CompletionRequest):
        return
    if request.grammar:
        with in_field("grammar"):
            yield from check_grammar(request.grammar)
    if isinstance(request, ChatRequest):
        shape = SchemaShape()
        for place, raw in _schemas(request):
            if len(raw) > _SIMPLE_BYTES_MAX:
                with in_field(place):
                    yield from shape.check(_decoded_schema(raw))


def _schemas(request: ChatRequest) -> Iterator[tuple[str, bytes]]:
    """Each with its place in the request."""
    for index, tool in enumerate(request.tools or ()):
        yield f"tools[{index}].function.parameters", bytes(tool.function.parameters)
    if request.response_format is not None and request.response_format.json_schema is not None:
        yield "response_format.json_schema.schema", bytes(request.response_format.json_schema.schema)


def _decoded_schema(raw: bytes) -> object:
    try:
        value: object = msgspec.json.decode(raw)
    except RecursionError:
        raise Invalid("a JSON schema is nested too deeply") from None
    return value


R = TypeVar("R", bound=Request)
_WORDS_MAX: Final = 300
_TOKENS_MAX: Final = 1 << 31
_DIGITS_MAX: Final = 20
_TRUNCATED: Final = "it ends too early"


@dataclass(frozen=True, slots=True)
class Ask:
    """What can be asked for at one path."""

    kind: RequestKind
    wanted: type[Request]
    parse: Callable[[bytes], Request]  # Makes one that is `wanted` of a body.


def _chat(body: bytes) -> ChatRequest:
    request = _decoded(_CHAT, body)
    _check_sampling(request)
    if request.top_logprobs and not request.logprobs:
        raise InvalidField("top_logprobs needs logprobs to be true", "top_logprobs")
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
    request = _decoded(_COMPLETION, body)
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
    request = _decoded(_EMBEDDING, body)
    if request.input == [] or mixed(request.input):
        raise InvalidField(_ONE_KIND.format("input"), "input")
    return request


def _rerank(body: bytes) -> RerankRequest:
    return _decoded(_RERANK, body)


_CHAT: Final = msgspec.json.Decoder(ChatRequest)
_COMPLETION: Final = msgspec.json.Decoder(CompletionRequest)
_EMBEDDING: Final = msgspec.json.Decoder(EmbeddingRequest)
_RERANK: Final = msgspec.json.Decoder(RerankRequest)
_ONE_KIND: Final = "{} must be a text, texts, tokens or lists of tokens: not empty, and of one kind"

PREFIX: Final = "/v1"
ASKS: Final = {
    "/v1/chat/completions": Ask(RequestKind.CHAT, ChatRequest, _chat),
    "/v1/completions": Ask(RequestKind.COMPLETION, CompletionRequest, _completion),
    "/v1/embeddings": Ask(RequestKind.EMBEDDING, EmbeddingRequest, _embedding),
    "/v1/rerank": Ask(RequestKind.RERANK, RerankRequest, _rerank),
}


def _decoded(decoder: msgspec.json.Decoder[R], body: bytes) -> R:
    try:
        if not body.isascii():
            str(body, "utf-8")  # The decoder looks only at the fields that it knows.
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error)) from None
    except UnicodeDecodeError as error:
        raise InvalidField(f"the body is not UTF-8: byte {error.start} cannot be read") from None
    except msgspec.DecodeError as error:
        words = _TRUNCATED if "truncated" in str(error) else str(error)[:_WORDS_MAX]
        raise InvalidField(f"the body is not valid JSON: {words}") from None
    except RecursionError:
        raise InvalidField("the body is nested too deeply") from None

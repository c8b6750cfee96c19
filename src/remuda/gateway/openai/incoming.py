"""An inference request as it comes in: how its body is read, a large one without blocking others
on the event loop, and from its bytes to a checked request, or to words that name the field; with bounds on
what it asks an engine to make a grammar of, whichever engine that will be.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Final, TypeVar

import anyio
import msgspec
from starlette.types import Receive

from remuda.core import limits
from remuda.core.errors import Invalid, RequestIncomplete, TooLarge, in_field
from remuda.core.gbnf import check_grammar
from remuda.core.schema_shape import SchemaShape
from remuda.core.slices import Sliced
from remuda.gateway.client_response import ClientResponse
from remuda.gateway.openai.errors import InvalidField, wrong_field
from remuda.gateway.server import ClientConnection
from remuda.inference.large_bodies import Outline, Slicer, check_json_cost, outlined
from remuda.inference.model import Request, RequestKind
from remuda.inference.requests import (
    NULL,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    NamedTool,
    Part,
    RerankRequest,
    mixed,
)
from remuda.router.loading import Overloaded

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


async def parsed(ask: Ask, body: bytes, slicer: Slicer) -> Request:
    """The same request as `ask.parse` makes of the body. TooLarge if it is long without its media, Invalid if
    parsing it would take too long."""
    outline = await outlined(body)
    await slicer.run(check_json_cost(_bounded(outline.text)))
    request = ask.parse(outline.text)
    shown = outline.stand_ins(msgspec.json.encode(request)) if outline.aside else 0
    if shown and shown != _put_back(request, outline):  # Some stand where only text is expected.
        await slicer.run(check_json_cost(_bounded(body)))
        return ask.parse(body)
    return request


def _bounded(text: bytes) -> bytes:
    if len(text) > limits.INFERENCE_JSON_BYTES_MAX:
        raise TooLarge(
            f"the request is larger than {limits.INFERENCE_JSON_BYTES_MAX} bytes without its media",
            hint="only pictures, sounds and films in base64 may be larger: send less text at once",
        )
    return text


def _put_back(request: Request, outline: Outline) -> int:
    """How many of the media that were set aside the request has again."""
    if not isinstance(request, ChatRequest):
        return 0
    contents = (message.content for message in request.messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return sum(_put_back_into(part, outline) for part in parts)


def _put_back_into(part: Part, outline: Outline) -> int:
    count = 0
    for name in ("image_url", "input_audio", "video_url"):
        outlined_media = bytes(getattr(part, name))
        if here := outline.stand_ins(outlined_media):
            setattr(part, name, msgspec.Raw(outline.original(outlined_media)))
            count += here
    return count


class IncomingRequest(msgspec.Struct, frozen=True):
    """Made for every request: a dataclass would take a microsecond more."""

    ask: Ask
    headers: Mapping[bytes, bytes]
    receive: Receive
    line: ClientConnection | None
    response: ClientResponse


class Bodies:
    """Reads bodies, and knows how much of them there is: of one request, and of all under way together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._together_bytes_max = max(limits.INFERENCE_BODIES_BYTES_MAX, bytes_max)
        self._together_bytes = 0

    async def read(self, request: IncomingRequest) -> bytes:
        """TooLarge, Overloaded, InvalidField for one that ends early, RequestIncomplete for a slow one."""
        # The server has seen to it that this is a number.
        if int(request.headers.get(b"content-length", 0)) > self._bytes_max:
            raise self._too_large()
        if request.line is not None and (body := request.line.body()) is not None:
            self._count(body, request.response)
            return body
        with anyio.move_on_after(limits.INFERENCE_BODY_READ_S):
            return await self._received(request)
        raise RequestIncomplete(f"the body did not arrive within {limits.INFERENCE_BODY_READ_S:g} s")

    def forget(self, response: ClientResponse) -> None:
        """The request is over."""
        self._together_bytes -= response.body_bytes

    async def _received(self, request: IncomingRequest) -> bytes:
        whole, more = (
            BytesIO(),
            True,
        )  # Part by part: to join a large body at its end takes long.
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise InvalidField("the request ended before its body did")
            part = message.get("body", b"")
            more = message.get("more_body", False)
            self._count(part, request.response)
            whole.write(part)
        return whole.getvalue()  # Not a copy.

    def _count(self, part: bytes, response: ClientResponse) -> None:
        """A part of the body has come: refuse what is too much."""
        self._together_bytes += len(part)
        response.body_bytes += len(part)
        if response.body_bytes > self._bytes_max:
            raise self._too_large()
        if self._together_bytes > self._together_bytes_max:
            raise Overloaded("the requests under way are too large together", hint="try again in a while")

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is larger than {self._bytes_max} bytes")

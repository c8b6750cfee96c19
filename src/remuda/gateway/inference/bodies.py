"""The bodies of inference requests: how they are read, and decoded without blocking others on the event
loop; with bounds on what they ask an engine to make a grammar of, whichever engine that will be.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Final, TypeVar

import anyio
import msgspec

from remuda.core import limits
from remuda.core.errors import Invalid, RequestIncomplete, TooLarge, in_field
from remuda.core.gbnf import check_grammar
from remuda.core.schema_shape import SchemaShape, check_references
from remuda.core.slices import Sliced
from remuda.gateway.client_response import ClientResponse
from remuda.gateway.inference.body_errors import Choices, InvalidField, wrong_field
from remuda.gateway.inference.endpoint import ApiEndpoint, IncomingRequest, ParsedRequest
from remuda.inference.large_bodies import Outline, Slicer, check_json_cost, outlined
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import Request
from remuda.inference.requests import ChatRequest, CompletionRequest, NamedTool, Part, TokenizeRequest
from remuda.router.loading import Overloaded

_WITH_GRAMMARS: Final = (ChatRequest, CompletionRequest)  # A union would be made anew for each request.
_PARAMETERS: Final = "tools[{}].function.parameters"
_SIMPLE_BYTES_MAX: Final = 4 << 10  # No schema as short as this is too complex.


def check_complexity(request: Request | MediaRequest) -> Sliced[None]:
    """Invalid says what is too large, or nested too deeply."""
    if isinstance(request, TokenizeRequest) and isinstance(request.prompt, ChatRequest):
        request = request.prompt  # Engines make grammars of its tools here, too.
    if not isinstance(request, _WITH_GRAMMARS):
        return
    if request.grammar:
        with in_field("grammar"):
            yield from check_grammar(request.grammar)
    if isinstance(request, ChatRequest) and (request.tools or request.response_format):
        shape = SchemaShape()
        for place, raw in _schemas(request):
            if len(raw) > _SIMPLE_BYTES_MAX:
                with in_field(place):
                    yield from shape.check(_decoded_schema(raw))
        for place, raw in _demanded(request):
            if b"$ref" in raw:
                with in_field(place):
                    yield from check_references(_decoded_schema(raw))


def _schemas(request: ChatRequest) -> Iterator[tuple[str, bytes]]:
    """Each with its place in the request."""
    for index, tool in enumerate(request.tools or ()):
        yield _PARAMETERS.format(index), bytes(tool.function.parameters)
    if request.response_format is not None and request.response_format.json_schema is not None:
        yield "response_format.json_schema.schema", bytes(request.response_format.json_schema.schema)


def _demanded(request: ChatRequest) -> Iterator[tuple[str, bytes]]:
    """The parameters of tools one of which has to be called: engines are bound to them."""
    choice = request.tool_choice
    name = choice.function.name if isinstance(choice, NamedTool) else None
    for index, tool in enumerate(request.tools or ()):
        if name == tool.function.name or choice == "required":
            yield _PARAMETERS.format(index), bytes(tool.function.parameters)


def _decoded_schema(raw: bytes) -> object:
    try:
        value: object = msgspec.json.decode(raw)
    except RecursionError:
        raise Invalid("a JSON schema is nested too deeply") from None
    return value


B = TypeVar("B")
_WORDS_MAX: Final = 300
_TRUNCATED: Final = "it ends too early"


def decoded(decoder: msgspec.json.Decoder[B], body: bytes, choices: Choices) -> B:
    """InvalidField says which field is wrong and why, with the `choices` that it has."""
    try:
        if not body.isascii():
            str(body, "utf-8")  # The decoder looks only at the fields that it knows.
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error), choices) from None
    except UnicodeDecodeError as error:
        raise InvalidField(f"the body is not UTF-8: byte {error.start} cannot be read") from None
    except msgspec.DecodeError as error:
        words = _TRUNCATED if "truncated" in str(error) else str(error)[:_WORDS_MAX]
        raise InvalidField(f"the body is not valid JSON: {words}") from None
    except RecursionError:
        raise InvalidField("the body is nested too deeply") from None


async def parsed(endpoint: ApiEndpoint, body: bytes, slicer: Slicer) -> ParsedRequest:
    """The same as `endpoint.parse` makes of a body that may take long, without holding up others for long.
    TooLarge and Invalid say what would take too long."""
    if len(body) > limits.PARSED_AT_ONCE_BYTES_MAX:
        return await parsed_in_outline(endpoint, body, slicer)
    await slicer.run(check_json_cost(body))
    return endpoint.parse(body)


async def parsed_in_outline(endpoint: ApiEndpoint, body: bytes, slicer: Slicer) -> ParsedRequest:
    """The same of a body with large media, which the parser does not see. TooLarge if it is long without,
    Invalid if parsing it would take too long."""
    outline = await outlined(body)
    await slicer.run(check_json_cost(_bounded(outline.text)))
    known = endpoint.parse(outline.text)
    shown = outline.stand_ins(msgspec.json.encode(known.request)) if outline.aside else 0
    if shown and shown != _put_back(known.request, outline):  # Some stand where only text is expected.
        await slicer.run(check_json_cost(_bounded(body)))
        return endpoint.parse(body)
    return known


def _bounded(text: bytes) -> bytes:
    if len(text) > limits.INFERENCE_JSON_BYTES_MAX:
        raise TooLarge(
            f"the request is larger than {limits.INFERENCE_JSON_BYTES_MAX} bytes without its media",
            hint="only pictures, sounds and films in base64 may be larger: send less text at once",
        )
    return text


def _put_back(request: Request | MediaRequest, outline: Outline) -> int:
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

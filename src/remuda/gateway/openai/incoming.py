"""An inference request as it comes in, and how its body is read: a large one is parsed without holding up
everybody else on the event loop."""

from collections.abc import Mapping
from io import BytesIO

import anyio
import msgspec
from starlette.types import Receive

from remuda.core import limits
from remuda.core.errors import RequestIncomplete, TooLarge
from remuda.gateway.openai.client_response import ClientResponse
from remuda.gateway.openai.errors import InvalidField
from remuda.gateway.openai.parsing import Ask
from remuda.gateway.server import ClientConnection
from remuda.inference.large_bodies import Outline, Slicer, check_json_cost, outlined
from remuda.inference.model import Request
from remuda.inference.requests import ChatRequest, Part
from remuda.router.loading import Overloaded


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

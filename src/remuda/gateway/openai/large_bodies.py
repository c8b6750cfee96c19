"""Large bodies, parsed without holding up everybody else on the event loop."""

import msgspec

from remuda.core import limits
from remuda.core.errors import TooLarge
from remuda.gateway.openai.parsing import Ask
from remuda.inference.json_cost import check_json_cost
from remuda.inference.model import Request
from remuda.inference.outline import Outline, outlined
from remuda.inference.requests import ChatRequest, Part
from remuda.inference.slicing import Slicer


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

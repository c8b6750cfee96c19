"""Wire messages as HTTP bodies: read by our codec, so that every refusal names the field in the contract's
envelope, written byte for byte as the codec writes them, and described in the OpenAPI document."""

from collections.abc import Mapping
from typing import Any, TypeVar

import anyio
from fastapi import Request, Response
from pydantic import BaseModel

from remuda.core import limits
from remuda.core.errors import Invalid
from remuda.wire.codec import decode, encode
from remuda.wire.nodes import NodeError

JSON = "application/json"
B = TypeVar("B", bound=BaseModel)


async def read(request: Request, model: type[B]) -> B:
    """The request's body as a message. Raises Invalid or TooLarge in words that name the field."""
    return decode(model, await body(request), bytes_max=limits.BODY_BYTES_MAX)


async def body(request: Request) -> bytes:
    with anyio.move_on_after(limits.BODY_READ_S):
        return await request.body()
    raise Invalid(f"the request body did not arrive within {limits.BODY_READ_S:.0f} s")


def answer(message: BaseModel, status: int = 200) -> Response:
    return Response(encode(message), status, media_type=JSON)


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The node API's error envelope."""
    return Response(
        encode(NodeError.of(status, message)), status, media_type=JSON, headers=dict(headers or {})
    )


def takes(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What OpenAPI says of a route that reads `model` itself. (The document is JSON: hence Any.)"""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {JSON: {"schema": reference}}}}


def gives(model: type[BaseModel], *errors: int, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of a route's answers; 503 (store or bus) and 413 may come from any."""
    documented: dict[int | str, dict[str, Any]] = {status: {"model": model}}
    return documented | {code: {"model": NodeError} for code in sorted({*errors, 413, 503})}

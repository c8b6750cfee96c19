"""Wire messages as HTTP bodies: read by our codec, so that every refusal names the field in the contract's
envelope, written byte for byte as the codec writes them, and described in the OpenAPI document."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import anyio
from fastapi import Depends, Request, Response
from pydantic import BaseModel

from remuda.core import limits
from remuda.core.errors import RemudaError, RequestIncomplete, Unavailable
from remuda.wire.codec import decode, encode, refuse_unknown_fields
from remuda.wire.nodes import NodeError

JSON = "application/json"
SCHEMAS = "#/components/schemas/{model}"
_NODE_PATHS = ("/api/node/", "/api/nodes", "/ws/nodes")  # The contract has a type of its own for them.
B = TypeVar("B", bound=BaseModel)
Described = dict[str, Any]  # A piece of the OpenAPI document, which is JSON: hence Any.
Responses = dict[int | str, Described]  # By status.


async def read(request: Request, model: type[B]) -> B:
    """The request's body as a message. Raises Invalid or TooLarge in words that name the field."""
    sent = await body(request)
    return decode(model, sent, bytes_max=limits.BODY_BYTES_MAX, containers_max=limits.BODY_CONTAINERS_MAX)


async def read_known(request: Request, model: type[B]) -> B:
    """As `read`, for routes of our own: a field that is not known is refused, because what was meant by it
    would not be done. The contract's routes skip such fields."""
    message = await read(request, model)
    refuse_unknown_fields(model, await request.body())
    return message


class _NoFields(BaseModel):
    pass


async def refuse_body_fields(request: Request) -> None:
    """For routes of our own that take no body, or an empty one."""
    if await body(request):
        await read_known(request, _NoFields)


NO_BODY_FIELDS: Final = Depends(refuse_body_fields)


async def body(request: Request) -> bytes:
    with anyio.move_on_after(limits.BODY_READ_S):
        return await request.body()
    raise RequestIncomplete(f"the request body did not arrive within {limits.BODY_READ_S:.0f} s")


def answer(message: BaseModel, status: int = 200) -> Response:
    return Response(encode(message), status, media_type=JSON)


def refusal(error: RemudaError, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as it is answered everywhere outside OpenAI's API. `path` is what was asked for."""
    extra = {**(headers or {})}
    if error.http_status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Unavailable):
        extra["Retry-After"] = "5"
    return Response(error_body(error, path), error.http_status, media_type=JSON, headers=extra)


def error_body(error: RemudaError, path: str) -> bytes:
    told = error.problem()
    type_ = "node_error" if path.startswith(_NODE_PATHS) else _error_type(error.http_status)
    status, words = error.http_status, error.public_text
    return encode(NodeError.of(status, words, told.code, told.hint, type_, error.details))


def _error_type(status: int) -> str:
    """OpenAI's words, which other routes of the contract use too."""
    if status == 404:
        return "not_found_error"
    return "invalid_request_error" if status < 500 else "server_error"


ANSWERS: Final[dict[type[BaseModel], None]] = {}
"""Every message that some route is said to answer with, in the order of their declaration."""


def takes(model: type[BaseModel], *, required: bool = True) -> Described:
    """What OpenAPI says of a route that reads `model` itself."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": _reference(model)}}}}


def gives(model: type[BaseModel], *errors: int, status: int = 200) -> Responses:
    """What OpenAPI says of the answers of a route that works with the store."""
    return {status: one_of(model)} | refuses(*errors, 503)


def gives_raw(media_type: str, *errors: int) -> Responses:
    """The same for a route whose answer is no message of ours."""
    kind = "object" if media_type == JSON else "string"
    return {200: {"content": {media_type: {"schema": {"type": kind}}}}} | refuses(*errors)


def refuses(*errors: int) -> Responses:
    """These errors, and those before every route: a foreign host, a body or head that is too large."""
    return {code: one_of(NodeError) for code in sorted({*errors, 403, 413, 431})}


def one_of(*models: type[BaseModel]) -> Described:
    """An answer that is one of these messages. FastAPI is told no types: for each status of each route it
    would build a validator that is not used, which took a quarter of a frontend's start."""
    ANSWERS.update(dict.fromkeys(models))
    references = [_reference(model) for model in models]
    return {"content": {JSON: {"schema": references[0] if len(models) == 1 else {"anyOf": references}}}}


def _reference(model: type[BaseModel]) -> Described:
    return {"$ref": SCHEMAS.format(model=model.__name__)}

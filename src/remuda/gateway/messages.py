"""What routes read and write: wire messages as HTTP bodies, read by our codec, so that every refusal names
the field in the contract's envelope, written byte for byte as the codec writes them, and described in the
OpenAPI document; and parameters in paths and queries.

Text in a path that cannot name anything is rejected here: some databases cannot even look it up. Unknown
filters of a list are rejected too: a misspelled one would be ignored and show everything.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

import anyio
from fastapi import Depends, Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel

from remuda.core import limits
from remuda.core.errors import Invalid, NotFound, RemudaError, RequestIncomplete, Unavailable
from remuda.core.hints import did_you_mean
from remuda.core.ids import NodeId
from remuda.gateway.ollama.errors import error_body as ollama_error
from remuda.gateway.ollama.errors import is_ollamas
from remuda.ops.model import OpId
from remuda.wire.codec import decode, encode, refuse_unknown_fields
from remuda.wire.nodes import NodeError, label_problem

JSON = "application/json"
SCHEMAS = "#/components/schemas/{model}"
_NODE_PATHS = ("/api/node/", "/api/nodes", "/ws/nodes")  # The contract has a type of its own for them.
B = TypeVar("B", bound=BaseModel)
OpenApiPart = dict[str, Any]  # A piece of the OpenAPI document, which is JSON: hence Any.
Responses = dict[int | str, OpenApiPart]  # By status.


async def read(request: Request, model: type[B]) -> B:
    """The request's body as a message. Raises Invalid or TooLarge in words that name the field."""
    sent = await body(request)
    return decode(model, sent, bytes_max=limits.BODY_BYTES_MAX, containers_max=limits.BODY_CONTAINERS_MAX)


async def read_known(request: Request, model: type[B]) -> B:
    """As `read`, for routes of our own: a field that is not known is refused, because what was meant by it
    would not be done. The contract's routes skip such fields; see `unknown_field`."""
    try:
        message = await read(request, model)
    except Invalid:  # A field that is missing may be there under a misspelt name.
        with suppress(ValueError):
            refuse_unknown_fields(model, await request.body())
        raise
    refuse_unknown_fields(model, await request.body())
    return message


async def unknown_field(request: Request, model: type[BaseModel]) -> str:
    """A warning, for a route of the contract that people use, too: peers may send fields that only they know,
    and a person who misspelt one should hear of it. Empty: all are known. The message was read before."""
    try:
        refuse_unknown_fields(model, await request.body())
    except Invalid as error:
        return f"{error.message}, and it is left out"
    return ""


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
    if is_ollamas(path):
        return ollama_error(error)
    problem = error.problem()
    type_ = "node_error" if path.startswith(_NODE_PATHS) else _error_type(error.http_status)
    status, words = error.http_status, error.public_text
    return encode(NodeError.of(status, words, problem.code, problem.hint, type_, error.details))


def _error_type(status: int) -> str:
    """OpenAI's words, which other routes of the contract use too."""
    if status == 404:
        return "not_found_error"
    return "invalid_request_error" if status < 500 else "server_error"


ANSWERS: Final[dict[type[BaseModel], None]] = {}
"""Every message that some route is said to answer with, in the order of their declaration."""


def takes(model: type[BaseModel], *, required: bool = True) -> OpenApiPart:
    """What OpenAPI says of a route that reads `model` itself."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": _reference(model)}}}}


def takes_raw(media_type: str) -> OpenApiPart:
    """The same for a route whose body is no message, but bytes."""
    schema = {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


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


def one_of(*models: type[BaseModel]) -> OpenApiPart:
    """An answer that is one of these messages. FastAPI gets no types: for each status of each route it
    would build a validator that is not used, which took a quarter of a frontend's start."""
    ANSWERS.update(dict.fromkeys(models))
    references = [_reference(model) for model in models]
    return {"content": {JSON: {"schema": references[0] if len(models) == 1 else {"anyOf": references}}}}


def _reference(model: type[BaseModel]) -> OpenApiPart:
    return {"$ref": SCHEMAS.format(model=model.__name__)}


def node_id_text(text: str) -> NodeId:
    if not text.isprintable():
        raise NotFound("node not found")
    return NodeId(text)


def _api_key(text: str) -> str:
    if not text.isprintable():
        raise NotFound("there is no key with this id")
    return text


def _label_key(text: str) -> str:
    if problem := label_problem(text, ""):
        raise Invalid(problem)
    return text


def _op(text: str) -> str:
    """Whatever is not the id of an operation is none's; ids are looked up, and never put into subjects."""
    if not text.isprintable() or len(text) > _ID_CHARS_MAX:
        raise NotFound("there is no operation with this id")
    return text


def _backend(text: str) -> str:
    """Peers encode it once more than URLs need it."""
    name = unquote(text).strip()
    if not name or not name.isprintable() or len(name) > _NAME_CHARS_MAX:
        raise NotFound("there is no backend of this name")
    return name


def model_name(text: str) -> str:
    if not text.isprintable() or len(text) > _NAME_CHARS_MAX:
        raise NotFound("there is no model of this name")
    return text


_ID_CHARS_MAX = 100
_NAME_CHARS_MAX = 1024

NodePath = Annotated[
    NodeId,
    AfterValidator(node_id_text),
    Path(alias="node_id", description="The id that registration answered."),
]
KeyPath = Annotated[str, AfterValidator(_api_key), Path(alias="key_id", description="The key's id.")]
LabelPath = Annotated[str, AfterValidator(_label_key), Path(alias="key", description="The label's key.")]
OpPath = Annotated[OpId, AfterValidator(_op), Path(alias="op_id", description="The operation's id.")]
ModelPath = Annotated[
    str, AfterValidator(model_name), Path(alias="model", description="The model's name, slashes included.")
]
BackendPath = Annotated[
    str,
    AfterValidator(_backend),
    Path(alias="backend", description="Its name, or gallery@name; may be URL-encoded twice."),
]


async def _known_filters(request: Request) -> None:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = sorted(field.alias for field in route.dependant.query_params)
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, known, f"there are {', '.join(known) or 'none'}")
        raise Invalid(f"unknown filter {unknown[:100]!r}", hint=hint)


KNOWN_FILTERS = Depends(_known_filters)

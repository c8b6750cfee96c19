"""What is under /v1 besides inference: the list of models, and errors in OpenAI's shape."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from starlette.types import Send

from remuda.core.errors import NoSuchEndpoint, RemudaError, WrongMethod
from remuda.gateway.home import no_such_endpoint
from remuda.gateway.openai.admission import Admission
from remuda.gateway.openai.errors import ErrorResponse, refusal
from remuda.gateway.openai.incoming import ASKS
from remuda.router.cold_path import ModelRefresh
from remuda.router.loading import ModelUnknown
from remuda.router.table import RoutedModel

MODELS: Final = "/v1/models"


class ListedModel(msgspec.Struct):
    """A model, in OpenAI's words."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "remuda"


class ModelList(msgspec.Struct):
    data: list[ListedModel]
    object: str = "list"


async def respond(
    admission: Admission,
    refresh_models: ModelRefresh,
    method: str,
    path: str,
    headers: Iterable[tuple[bytes, bytes]],
    send: Send,
    request_id: str,
) -> None:
    """Answer a request under /v1 that asks for no inference."""
    try:
        body = await _page_or_newer(admission, refresh_models, method, path, dict(headers))
        answer = ErrorResponse(200, "", body)
    except RemudaError as error:
        answer = refusal(error)
        if isinstance(error, WrongMethod):
            allowed = (b"allow", ", ".join(_methods(path)).encode())
            answer = ErrorResponse(answer.status, answer.code, answer.body, (*answer.headers, allowed))
    length = (b"content-length", str(len(answer.body)).encode())
    answered = [*answer.headers, length, (b"x-request-id", request_id.encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": answered})
    await send({"type": "http.response.body", "body": answer.body})


async def _page_or_newer(
    admission: Admission,
    refresh_models: ModelRefresh,
    method: str,
    path: str,
    headers: Mapping[bytes, bytes],
) -> bytes:
    """A model that was added on another frontend a moment ago is not unknown."""
    try:
        return _page(admission, method, path, headers)
    except ModelUnknown:
        await refresh_models()
        return _page(admission, method, path, headers)


def _page(admission: Admission, method: str, path: str, headers: Mapping[bytes, bytes]) -> bytes:
    allowed = _methods(path)
    if not allowed:
        raise NoSuchEndpoint(no_such_endpoint(path))
    if method not in allowed:
        raise WrongMethod(f"{method} does not work on this path; use {' or '.join(allowed)}")
    key = admission.caller(headers)
    listed = admission.listed(key)
    if path == MODELS:
        return msgspec.json.encode(ModelList([_listed(name, listed[name]) for name in sorted(listed)]))
    name = path.removeprefix(f"{MODELS}/")
    if name not in listed:
        raise admission.unknown(name, key)
    return msgspec.json.encode(_listed(name, listed[name]))


def _methods(path: str) -> tuple[str, ...]:
    if path in ASKS:
        return ("POST",)
    return ("GET", "HEAD") if path == MODELS or path.startswith(f"{MODELS}/") else ()


def _listed(name: str, entry: RoutedModel) -> ListedModel:
    return ListedModel(name, entry.created)

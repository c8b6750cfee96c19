"""OpenAI's API: its inference endpoints, the list of models, and errors for all else below /v1."""

from dataclasses import replace
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from remuda.core.errors import NoSuchEndpoint, RemudaError, WrongMethod
from remuda.gateway.home import no_such_endpoint
from remuda.gateway.inference.admission import Admission
from remuda.gateway.inference.endpoint import HeaderMap, send_answer
from remuda.gateway.openai.endpoints import ENDPOINTS, PREFIX
from remuda.gateway.openai.errors import ErrorResponse, refusal
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


class OpenAiApi:
    """Implements gateway.inference.endpoint.ClientApi: whatever is below /v1, and what is posted to inference
    endpoints by clients that leave /v1 out."""

    def __init__(self, admission: Admission, refresh_models: ModelRefresh) -> None:
        self._admission = admission
        self._refresh_models = refresh_models
        short = {path.removeprefix(PREFIX): endpoint for path, endpoint in ENDPOINTS.items()}
        self.endpoints: Final = {**ENDPOINTS, **short}

    def covers(self, scope: Scope) -> bool:
        return _full_path(scope["path"]) is not None

    async def respond(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        path = _full_path(scope["path"]) or ""
        try:
            body = await self._page_or_newer(scope["method"], path, dict(scope["headers"]))
            answer = ErrorResponse(200, "", body)
        except RemudaError as error:
            answer = refusal(error)
            if isinstance(error, WrongMethod):
                allowed = (b"allow", ", ".join(_methods(path)).encode())
                answer = replace(answer, headers=(*answer.headers, allowed))
        await send_answer(send, answer, request_id)

    async def _page_or_newer(self, method: str, path: str, headers: HeaderMap) -> bytes:
        """A model that was added on another frontend a moment ago is not unknown."""
        try:
            return self._page(method, path, headers)
        except ModelUnknown:
            await self._refresh_models()
            return self._page(method, path, headers)

    def _page(self, method: str, path: str, headers: HeaderMap) -> bytes:
        allowed = _methods(path)
        if not allowed:
            raise NoSuchEndpoint(no_such_endpoint(path))
        if method not in allowed:
            raise WrongMethod(f"{method} does not work on this path; use {' or '.join(allowed)}")
        key = self._admission.caller(headers)
        listed = self._admission.listed(key, headers)
        if path == MODELS:
            return msgspec.json.encode(ModelList([_listed(name, listed[name]) for name in sorted(listed)]))
        name = self._admission.meant(path.removeprefix(f"{MODELS}/"))
        if name not in listed:
            raise self._admission.unknown(name, key)
        return msgspec.json.encode(_listed(name, listed[name]))


def _methods(path: str) -> tuple[str, ...]:
    if path in ENDPOINTS:
        return ("POST",)
    return ("GET", "HEAD") if path == MODELS or path.startswith(f"{MODELS}/") else ()


def _listed(name: str, entry: RoutedModel) -> ListedModel:
    return ListedModel(name, entry.created)


_WITHOUT_PREFIX: Final = frozenset({MODELS, *ENDPOINTS})


def _full_path(path: str) -> str | None:
    """The path below /v1 that is meant, also by clients that leave /v1 out; None: one of another API."""
    if path == PREFIX or path.startswith(f"{PREFIX}/") or path in ENDPOINTS:
        return path
    full = f"{PREFIX}{path}"
    return full if full in _WITHOUT_PREFIX or full.startswith(f"{MODELS}/") else None

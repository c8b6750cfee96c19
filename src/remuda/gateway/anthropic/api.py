"""Anthropic's API: its inference endpoints, the list of models in its shape, and errors for all else below
/v1 that its clients ask for, who are known by the header that says which version of it they speak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from remuda.core.errors import NoSuchEndpoint, RemudaError, WrongMethod
from remuda.gateway.anthropic.endpoints import ENDPOINTS
from remuda.gateway.anthropic.errors import AnthropicRefusal, refusal
from remuda.gateway.home import no_such_endpoint
from remuda.gateway.inference.admission import Admission
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.inference.endpoint import HeaderMap, send_answer
from remuda.router.cold_path import ModelRefresh
from remuda.router.loading import ModelUnknown
from remuda.router.table import RoutedModel

VERSION: Final = b"anthropic-version"
MODELS: Final = "/v1/models"
_PAGE_USUAL: Final = 20
_PAGE_MAX: Final = 1000
_DIGITS_MAX: Final = 6
_PREFIX: Final = "/v1/"
QueryFields = Mapping[str, Sequence[str]]


class ModelInfo(msgspec.Struct):
    """A model, in Anthropic's words. What is not known of it is null."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    capabilities: None = None
    lifecycle: str = "active"
    type: str = "model"


class ModelInfoPage(msgspec.Struct):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class AnthropicApi:
    """Implements gateway.inference.endpoint.ClientApi."""

    endpoints: Final = ENDPOINTS

    def __init__(self, admission: Admission, refresh_models: ModelRefresh) -> None:
        self._admission = admission
        self._refresh_models = refresh_models

    def covers(self, scope: Scope) -> bool:
        path = scope["path"]
        if path in ENDPOINTS:
            return True
        return path.startswith(_PREFIX) and any(name == VERSION for name, _ in scope["headers"])

    async def respond(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        path = scope["path"]
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            body = await self._page_or_newer(scope["method"], path, query, dict(scope["headers"]))
            answer = AnthropicRefusal(200, "", body)
        except RemudaError as error:
            answer = refusal(error)
            if isinstance(error, WrongMethod):
                allowed = (b"allow", ", ".join(_methods(path)).encode())
                answer = replace(answer, headers=(*answer.headers, allowed))
        named = replace(answer, headers=(*answer.headers, (b"request-id", request_id.encode())))
        await send_answer(send, named, request_id)

    async def _page_or_newer(self, method: str, path: str, query: QueryFields, headers: HeaderMap) -> bytes:
        """A model that was added on another frontend a moment ago is not unknown."""
        try:
            return self._page(method, path, query, headers)
        except ModelUnknown:
            await self._refresh_models()
            return self._page(method, path, query, headers)

    def _page(self, method: str, path: str, query: QueryFields, headers: HeaderMap) -> bytes:
        allowed = _methods(path)
        if not allowed:
            raise NoSuchEndpoint(no_such_endpoint(path, anthropics=True))
        if method not in allowed:
            raise WrongMethod(f"{method} does not work on this path; use {' or '.join(allowed)}")
        key = self._admission.caller(headers)
        listed = self._admission.listed(key, headers)
        if path == MODELS:
            return msgspec.json.encode(_model_page(listed, query))
        name = path.removeprefix(f"{MODELS}/")
        if name not in listed:
            raise self._admission.unknown(name, key)
        return msgspec.json.encode(_info(name, listed[name]))


def _methods(path: str) -> tuple[str, ...]:
    if path in ENDPOINTS:
        return ("POST",)
    return ("GET", "HEAD") if path == MODELS or path.startswith(f"{MODELS}/") else ()


def _model_page(listed: Mapping[str, RoutedModel], query: QueryFields) -> ModelInfoPage:
    """By name. Names that were removed since still say where to go on."""
    limit, after, before = _limit(query), _one(query, "after_id"), _one(query, "before_id")
    names = [name for name in sorted(listed) if name > after and (not before or name < before)]
    page = names[-limit:] if before else names[:limit]
    return ModelInfoPage(
        [_info(name, listed[name]) for name in page],
        len(page) < len(names),
        page[0] if page else None,
        page[-1] if page else None,
    )


def _one(query: QueryFields, name: str) -> str:
    return query.get(name, ("",))[0]


def _limit(query: QueryFields) -> int:
    text = _one(query, "limit") or str(_PAGE_USUAL)
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not is_number or not 1 <= int(text) <= _PAGE_MAX:
        raise InvalidField(f"limit must be a whole number from 1 to {_PAGE_MAX}", "limit")
    return int(text)


def _info(name: str, entry: RoutedModel) -> ModelInfo:
    created = datetime.fromtimestamp(entry.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelInfo(name, name, created, entry.context or None)

"""Ollama's API where a model answers: chats, completions and embeddings; and the model alone, loaded or
unloaded, where a request asks for nothing else. Its other paths are routes like our own.
"""

from dataclasses import replace
from typing import Final

from starlette.types import Receive, Scope, Send

from remuda.accounts.keys import ApiKey
from remuda.core.clock import Clock
from remuda.core.errors import Forbidden, WrongMethod
from remuda.gateway.guards import LOCAL
from remuda.gateway.inference.admission import Admission
from remuda.gateway.inference.endpoint import (
    ApiEndpoint,
    IncomingRequest,
    ParsedRequest,
    ReadyAnswer,
    send_answer,
)
from remuda.gateway.ollama import requests
from remuda.gateway.ollama.errors import OLLAMA, refusal
from remuda.gateway.ollama.names import other_names
from remuda.gateway.ollama.rendering import model_only
from remuda.gateway.ollama.requests import (
    OllamaChat,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaGenerate,
    OllamaRequest,
)
from remuda.inference.model import RequestKind
from remuda.router.dispatch import RequestDispatcher
from remuda.scheduler.service import Models

ENDPOINTS: Final = {
    "/api/chat": ApiEndpoint(RequestKind.CHAT, OLLAMA, OllamaChat, requests.chat),
    "/api/generate": ApiEndpoint(
        RequestKind.CHAT, OLLAMA, OllamaGenerate, requests.generate, summary="Answer a prompt"
    ),
    "/api/embed": ApiEndpoint(RequestKind.EMBEDDING, OLLAMA, OllamaEmbed, requests.embed),
    "/api/embeddings": ApiEndpoint(
        RequestKind.EMBEDDING,
        OLLAMA,
        OllamaEmbeddings,
        requests.embeddings,
        summary="Embed a text, in the older form",
    ),
}


class OllamaApi:
    """Implements gateway.inference.endpoint.ClientApi."""

    def __init__(
        self, admission: Admission, dispatcher: RequestDispatcher, models: Models, clock: Clock
    ) -> None:
        self._admission = admission
        self._dispatcher = dispatcher
        self._models = models
        self._clock = clock
        self.endpoints: Final = {
            path: replace(endpoint, prepare=self._prepared, other_names=other_names)
            for path, endpoint in ENDPOINTS.items()
        }

    def covers(self, scope: Scope) -> bool:
        return scope["path"] in ENDPOINTS

    async def respond(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        answer = refusal(WrongMethod(f"{scope['method']} does not work on this path; use POST"))
        allowed = (b"allow", b"POST")
        await send_answer(send, replace(answer, headers=(*answer.headers, allowed)), request_id)

    async def _prepared(
        self, known: ParsedRequest, request: IncomingRequest, body: bytes, key: ApiKey | None
    ) -> ParsedRequest | ReadyAnswer:
        assert isinstance(known, OllamaRequest)
        if not known.empty:
            return known
        unloads = known.keep_alive is not None and not known.keep_alive
        if unloads:
            await self._unload(request.response.model, key)
        else:
            await self._load(request)
        reason = "unload" if unloads else "load"
        return ReadyAnswer(model_only(known.shape, known.request.model, self._clock.now(), reason))

    async def _load(self, request: IncomingRequest) -> None:
        """Takes no more than the right to ask: any request loads its model."""
        response = request.response
        await self._dispatcher.ready(response.model, response.routing, response.meanwhile)

    async def _unload(self, model: str, key: ApiKey | None) -> None:
        """Others may be using it."""
        if not self._admission.is_admin(key):
            raise Forbidden(
                "unloading a model takes a key of the scope admin: others may be using it",
                hint="leave keep_alive out: what is not used is unloaded in time",
            )
        await self._models.unload(model, LOCAL if key is None else key.name)

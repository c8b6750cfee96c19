"""The OpenAPI description of OpenAI's API. Its routes are not FastAPI's; their schemas are made of the very
types that requests are read into and answers are written from."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from remuda.gateway.guards import require_key
from remuda.gateway.messages import JSON, SCHEMAS, Described
from remuda.gateway.openai.errors import ErrorAnswer
from remuda.gateway.openai.incoming import ASKS, Ask
from remuda.gateway.openai.model_list import MODELS, ListedModel, ModelList
from remuda.inference.model import RequestKind

_SUMMARIES: Final = {
    RequestKind.CHAT: "Chat",
    RequestKind.COMPLETION: "Complete a text",
    RequestKind.EMBEDDING: "Embed texts",
    RequestKind.RERANK: "Rerank documents",
}
_ABOUT: Final = {
    RequestKind.CHAT: "Answer a conversation: a `chat.completion`, or with `stream` its chunks as they come.",
    RequestKind.COMPLETION: "Continue a text: a `text_completion`, or with `stream` its pieces as they come.",
    RequestKind.EMBEDDING: "Vectors of texts or tokens, as a list of `embedding`.",
    RequestKind.RERANK: "How well documents answer a query, best first.",
}
_STREAMS: Final = (RequestKind.CHAT, RequestKind.COMPLETION)
_REFUSALS: Final[Mapping[int, str]] = {
    400: "`param` names what is wrong in the request.",
    401: "Missing or invalid API key.",
    403: "The key is not for this model, or a web page asks on loopback.",
    404: "There is no such model; similar names are told.",
    413: "Too large.",
    431: "The head of the request is too large.",
    429: "As many wait as may wait.",
    500: "A defect; the frontend's log has the details.",
    502: "The backend failed.",
    503: "The model is being loaded (`loading` says how far it is), or no node can take it.",
    504: "The backend said nothing for too long.",
}
_OF_PAGES: Final = (401, 403, 404, 431)
_REQUEST_ID: Final[Described] = {
    "x-request-id": {"description": "The client's own, or a new one.", "schema": {"type": "string"}}
}
_RETRY_AFTER: Final[Described] = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
}


def schemas() -> Described:
    """Those that `paths` refers to, by name."""
    types = [*(ask.wanted for ask in ASKS.values()), ModelList, ListedModel, ErrorAnswer]
    _, components = msgspec.json.schema_components(types, ref_template=SCHEMAS.format(model="{name}"))
    return components


def paths() -> Described:
    """Every route that the door answers."""
    one_model = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    listed = _page("list_models", "Models", "Models that can be asked for.", ModelList)
    shown = _page("show_model", "One model", "One of them; its name may hold slashes.", ListedModel)
    return {
        **{path: {"post": _operation(ask)} for path, ask in ASKS.items()},
        MODELS: {"get": listed},
        f"{MODELS}/{{id}}": {"get": {**shown, "parameters": [one_model]}},
    }


def _operation(ask: Ask) -> Described:
    answers: Described = {JSON: {"schema": {"type": "object"}}}
    if ask.kind in _STREAMS:
        answers["text/event-stream"] = {"schema": {"type": "string"}}
    answered = {"description": "In OpenAI's words.", "content": answers, "headers": _REQUEST_ID}
    return {
        **_about(f"ask_{ask.kind}", _SUMMARIES[ask.kind], _ABOUT[ask.kind]),
        "requestBody": {"required": True, "content": {JSON: {"schema": _reference(ask.wanted)}}},
        "responses": {"200": answered, **_refusals(_REFUSALS)},
    }


def _page(name: str, summary: str, about: str, shown: type[msgspec.Struct]) -> Described:
    content = {JSON: {"schema": _reference(shown)}}
    answered = {"description": about, "content": content, "headers": _REQUEST_ID}
    return {
        **_about(name, summary, about),
        "responses": {"200": answered, **_refusals(_OF_PAGES)},
    }


def _about(name: str, summary: str, about: str) -> Described:
    return {
        "tags": ["inference"],
        "operationId": name,
        "summary": summary,
        "description": about,
        "security": [{require_key.scheme_name: []}],
    }


def _refusals(statuses: Iterable[int]) -> Described:
    content = {JSON: {"schema": _reference(ErrorAnswer)}}
    return {
        str(status): {
            "description": _REFUSALS[status],
            "content": content,
            "headers": _REQUEST_ID | (_RETRY_AFTER if status in (429, 503) else {}),
        }
        for status in statuses
    }


def _reference(named: type) -> Described:
    return {"$ref": SCHEMAS.format(model=named.__name__)}

"""The OpenAPI document: what FastAPI knows of the routes, the bodies that our own codec reads, and the
routes for inference, of which FastAPI knows nothing; and the same as a page for people, without scripts.

The schemas of OpenAI's API are made of the very types that requests are read into and answers are written
from.
"""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

import anyio.to_thread
import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from remuda.gateway.anthropic import endpoints as anthropic
from remuda.gateway.anthropic.errors import AnthropicError
from remuda.gateway.guards import node_caller, require_admin, require_key
from remuda.gateway.inference.endpoint import ApiEndpoint
from remuda.gateway.messages import ANSWERS, JSON, SCHEMAS, OpenApiPart, gives_raw
from remuda.gateway.ollama import routes as ollama
from remuda.gateway.ollama.api import ENDPOINTS as OLLAMA_ENDPOINTS
from remuda.gateway.ollama.errors import OllamaError
from remuda.gateway.openai.api import MODELS, ListedModel, ModelList
from remuda.gateway.openai.endpoints import ENDPOINTS
from remuda.gateway.openai.errors import ErrorAnswer
from remuda.gateway.openai.reranking import CohereError
from remuda.gateway.responses import endpoints as responses
from remuda.gateway.services import Access
from remuda.inference.model import RequestKind
from remuda.wire import disk, operations, serving
from remuda.wire import nodes as wire
from remuda.wire.admin import KeyPatch, KeyRequest
from remuda.wire.benchmarks import BenchmarkReport
from remuda.wire.console import SignIn
from remuda.wire.models import ModelUnload
from remuda.wire.scheduling import SchedulingBody
from remuda.wire.servers import ScanRequest, ServerPatch, ServerRequest

_HEAD: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
summary {{ cursor: pointer }}
pre {{ overflow-x: auto }}
code b {{ display: inline-block; min-width: 4em }}
details {{ margin: .3em 0 }}
details > :not(summary) {{ margin-left: 1.5em }}
</style>
<h1>{title}</h1>
"""


def page(document: OpenApiPart) -> str:
    """Every route under its tag, and every schema."""
    return "\n".join(_lines(document))


def _lines(document: OpenApiPart) -> Iterator[str]:
    info = document["info"]
    yield _HEAD.format(title=escape(f"{info['title']} {info['version']}"))
    yield f"<p>{escape(info['description'])}</p>"
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = "\n".join(_operation(method, path, operation))
            by_tag.setdefault(" ".join(operation.get("tags", ())), []).append(shown)
    for tag, shown_of_tag in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>"
        yield from shown_of_tag
    yield "<h2>schemas</h2>"
    for name, schema in sorted(document["components"]["schemas"].items()):
        words = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        yield f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{words}</pre></details>'


def _operation(method: str, path: str, operation: OpenApiPart) -> Iterator[str]:
    name = f"<code><b>{method.upper()}</b> {escape(path)}</code>"
    yield f"<details><summary>{name} {escape(operation['summary'])}</summary>"
    yield f"<p>{escape(operation['description'])}</p>"
    for one in operation.get("parameters", ()):
        about = escape(one.get("description", ""))
        yield f"<p><code>{escape(one['name'])}</code> in the {one['in']}. {about}</p>"
    if "requestBody" in operation:
        yield f"<p>Takes {_content(operation['requestBody'])}</p>"
    for status, response in operation["responses"].items():
        yield f"<p>{status}: {escape(response['description'])} {_content(response)}</p>"
    yield "</details>"


def _content(described: OpenApiPart) -> str:
    return ", ".join(
        f"{escape(media_type)} {_link(content.get('schema', {}))}"
        for media_type, content in described.get("content", {}).items()
    )


def _link(schema: OpenApiPart) -> str:
    name = escape(str(schema.get("$ref", "")).rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>' if name else ""


_BODIES: tuple[type[BaseModel], ...] = (
    wire.RegisterRequest,
    wire.Heartbeat,
    wire.BusTrouble,
    wire.Departure,
    wire.Labels,
    wire.InviteBody,
    wire.VramBudgetBody,
    wire.MaxReplicasBody,
    SchedulingBody,
    disk.FilesBudgetBody,
    disk.FreeDiskBody,
    KeyRequest,
    KeyPatch,
    SignIn,
    operations.NodeInstallBody,
    operations.NodeBackendBody,
    operations.ExternalInstallBody,
    operations.ApplyBody,
    operations.OpRequest,
    operations.OpRetryBody,
    operations.RollOutBody,
    serving.ModelAdd,
    serving.ModelInstallBody,
    serving.ModelNamed,
    serving.ModelPatch,
    serving.ModelRename,
    serving.ModelReplace,
    serving.ModelUnloadBody,
    ModelUnload,
    BenchmarkReport,
    ScanRequest,
    ServerPatch,
    ServerRequest,
)
_ABOUT = """The API of the fleet: inference as in OpenAI's API, registration and reports of workers, and
administration.

Invalid requests are answered with 4xx and a message that names the field; after 503 the same call may work
later."""

_HTML = "text/html"
_HARMLESS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}

routes = APIRouter(tags=["about"])


@routes.get("/openapi.json", response_class=Response, responses=gives_raw(JSON))
async def openapi(request: Request) -> Response:
    """This API, for programs."""
    document = await anyio.to_thread.run_sync(_document, request.app)
    return Response(json.dumps(document), media_type=JSON)


@routes.get("/docs", response_class=Response, responses=gives_raw(_HTML))
async def docs(request: Request) -> Response:
    """This API, for people."""
    document = await anyio.to_thread.run_sync(_document, request.app)
    return Response(page(document), media_type=_HTML, headers=_HARMLESS)


def _document(app: FastAPI) -> OpenApiPart:
    if app.openapi_schema is None:
        app.openapi_schema = _assembled(app)
    return app.openapi_schema


def _assembled(app: FastAPI) -> OpenApiPart:
    document = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas = document["components"].setdefault("schemas", {})
    schemas |= messages()
    inference = _inference_schemas()
    assert schemas.keys().isdisjoint(inference), "two schemas have one name"
    schemas |= inference
    document["paths"] = _inference_paths() | document["paths"]
    # FastAPI promises its own answer to bad parameters; ours is the common envelope.
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    optional = _not_asked_for(app.state.services.access)
    for operation in (one for path in document["paths"].values() for one in path.values()):
        operation["responses"].pop("422", None)
        if any(scheme in optional for alternative in operation.get("security", ()) for scheme in alternative):
            operation["security"].append({})  # OpenAPI's way to say: or nothing.
    return document


def messages() -> OpenApiPart:
    """The schemas of what our own codec reads and writes, by name."""
    _, answers = models_json_schema([(model, "serialization") for model in ANSWERS], ref_template=SCHEMAS)
    _, bodies = models_json_schema([(body, "validation") for body in _BODIES], ref_template=SCHEMAS)
    return {**answers["$defs"], **bodies["$defs"]}


def _not_asked_for(access: Access) -> set[str]:
    admin = set() if access.keys_required else {require_admin.scheme_name, require_key.scheme_name}
    token = {node_caller.scheme_name} if access.registration_token is None else set()
    return admin | token


_ALL: Final = {**ENDPOINTS, responses.PATH: responses.ENDPOINT, **OLLAMA_ENDPOINTS}
_OWNERS: Final[Mapping[str, tuple[str, type[msgspec.Struct]]]] = {
    "/v2/rerank": ("Cohere", CohereError),
    **dict.fromkeys(OLLAMA_ENDPOINTS, ("Ollama", OllamaError)),
}
_SUMMARIES: Final = {
    RequestKind.CHAT: "Chat",
    RequestKind.COMPLETION: "Complete a text",
    RequestKind.EMBEDDING: "Embed texts",
    RequestKind.RERANK: "Rerank documents",
    RequestKind.TOKENIZE: "Count tokens",
    RequestKind.IMAGE: "Make images",
    RequestKind.SPEECH: "Say a text",
}
_DESCRIPTIONS: Final = {
    RequestKind.CHAT: "Answer a conversation: a `chat.completion`, or with `stream` its chunks as they come.",
    RequestKind.COMPLETION: "Continue a text: a `text_completion`, or with `stream` its pieces as they come.",
    RequestKind.EMBEDDING: "Vectors of texts or tokens, as a list of `embedding`.",
    RequestKind.RERANK: "How well documents answer a query, best first.",
    RequestKind.TOKENIZE: "The tokens of a text or a chat, by its model's own tokenizer: `tokens`, their "
    "`count`, and `max_model_len`, the context that the model is loaded with. What is not known is null.",
    RequestKind.IMAGE: "Images of a prompt, in the answer itself, as `b64_json`.",
    RequestKind.SPEECH: "A recording, in a format that the model's backend gives; with `stream_format` `sse` "
    "as events.",
    RequestKind.TRANSCRIPTION: "What is said in a recording: as JSON, text or subtitles, or with `stream` as "
    "it is heard.",
}
_SOUNDS: Final = (RequestKind.SPEECH,)
_TRANSCRIPTS: Final = (RequestKind.TRANSCRIPTION,)
_STREAM: Final = frozenset({"stream", "stream_format"})  # Fields by which events are asked for.
_FORM: Final = "multipart/form-data"
_REFUSALS: Final[Mapping[int, str]] = {
    400: "`param` names what is wrong in the request.",
    401: "Missing or invalid API key.",
    403: "The key is not for this model, or a web page asks on loopback.",
    404: "There is no such model; the message suggests similar names.",
    405: "The path takes other methods; `Allow` names them.",
    413: "Too large.",
    431: "The head of the request is too large.",
    429: "As many wait as may wait.",
    500: "A defect; the frontend's log has the details.",
    502: "The backend failed.",
    503: "The model is being loaded (`loading` says how far it is), or no node can take it.",
    504: "The backend said nothing for too long.",
}
_ANTHROPICS_REFUSALS: Final[Mapping[int, str]] = {
    **{status: about for status, about in _REFUSALS.items() if status != 503},
    400: "The message names what is wrong in the request.",
    529: "The model is being loaded, or no node can take it.",
}
_OF_ANTHROPIC: Final = {
    anthropic.MESSAGES: (
        "Answer a message",
        "Answer a conversation: a `message`, or with `stream` its events as they come.",
    ),
    anthropic.COUNT_TOKENS: (
        "Count the tokens of a message",
        "How many tokens the model would read, by its backend's own tokenizer, as `input_tokens`.",
    ),
}
_OF_PAGES: Final = {status: _REFUSALS[status] for status in (401, 403, 404, 431)}
_OF_RESPONSES: Final = {status: _REFUSALS[status] for status in (400, 401, 403, 404, 405, 431, 503)}
_BY_VERSION: Final = "With the header `anthropic-version` in Anthropic's shape."
_REQUEST_ID: Final[OpenApiPart] = {
    "x-request-id": {"description": "The client's own, or a new one.", "schema": {"type": "string"}}
}
_RETRY_AFTER: Final[OpenApiPart] = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
}


def _inference_schemas() -> OpenApiPart:
    """Those that `_inference_paths` refers to, by name."""
    endpoints = (*_ALL.values(), *anthropic.ENDPOINTS.values())
    types = [*(endpoint.body for endpoint in endpoints), ModelList, ListedModel, ErrorAnswer, AnthropicError]
    types.append(CohereError)
    types += ollama.SCHEMA_TYPES
    _, components = msgspec.json.schema_components(types, ref_template=SCHEMAS.format(model="{name}"))
    for endpoint in ENDPOINTS.values():
        if endpoint.form is not None:
            _with_files(components[endpoint.body.__name__])
    return components


def _with_files(schema: OpenApiPart) -> None:
    """In a form bytes are bytes, and not base64."""
    for member in schema["properties"].values():
        one = member.get("items", member)
        if one.pop("contentEncoding", ""):
            one["format"] = "binary"


def _inference_paths() -> OpenApiPart:
    """Every route that the door answers."""
    one_model = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    listed = _page("list_models", "Models", f"Models that can be asked for. {_BY_VERSION}", ModelList)
    about_one = f"One of them; its name may hold slashes. {_BY_VERSION}"
    shown = _page("show_model", "One model", about_one, ListedModel)
    return {
        **{path: {"post": _inference_operation(path, endpoint)} for path, endpoint in _ALL.items()},
        **{path: {"post": _anthropics(path, endpoint)} for path, endpoint in anthropic.ENDPOINTS.items()},
        MODELS: {"get": listed},
        f"{MODELS}/{{id}}": {"get": {**shown, "parameters": [one_model]}},
        **_response_paths(),
    }


def _response_paths() -> OpenApiPart:
    """What may be done with responses that are kept."""
    one = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    asked = (
        ("", "get", "show_response", "One response", "A `response` that the same key asked for."),
        ("", "delete", "delete_response", "Delete a response", "One that is worked on is ended."),
        ("/cancel", "post", "cancel_response", "Cancel a response", "One that is made in the background."),
        (
            "/input_items",
            "get",
            "list_input_items",
            "What was asked",
            "Page by page: `limit`, `order`, `after`.",
        ),
    )
    paths: OpenApiPart = {}
    for below, method, name, summary, about in asked:
        answered = {"description": about, "content": {JSON: {"schema": {"type": "object"}}}}
        paths.setdefault(f"{responses.PATH}/{{id}}{below}", {})[method] = {
            **_about(name, summary, about),
            "parameters": [one],
            "responses": {"200": {**answered, "headers": _REQUEST_ID}, **_refusals(_OF_RESPONSES)},
        }
    return paths


def _inference_operation(path: str, endpoint: ApiEndpoint) -> OpenApiPart:
    whose, refused = _OWNERS.get(path, ("OpenAI", ErrorAnswer))
    described = f"In {whose}'s words."
    about = (endpoint.body.__doc__ or "") if whose == "Ollama" else _DESCRIPTIONS[endpoint.kind]
    if path == responses.PATH:
        about = "Answer a conversation of items: a `response`, or with `stream` its events as they come."
    answered = {"description": described, "content": _answers(endpoint), "headers": _REQUEST_ID}
    name = f"ask_{path.removeprefix('/v1').replace('/', '_').strip('_')}"
    media_type = JSON if endpoint.form is None else _FORM
    return {
        **_about(name, endpoint.summary or _SUMMARIES[endpoint.kind], about),
        "requestBody": {"required": True, "content": {media_type: {"schema": _reference(endpoint.body)}}},
        "responses": {"200": answered, **_refusals(_REFUSALS, refused)},
    }


def _anthropics(path: str, endpoint: ApiEndpoint) -> OpenApiPart:
    summary, about = _OF_ANTHROPIC[path]
    answered = {"description": "In Anthropic's words.", "content": _answers(endpoint), "headers": _REQUEST_ID}
    name = f"ask_{path.removeprefix('/v1/').replace('/', '_')}"
    return {
        **_about(name, summary, about),
        "requestBody": {"required": True, "content": {JSON: {"schema": _reference(endpoint.body)}}},
        "responses": {"200": answered, **_refusals(_ANTHROPICS_REFUSALS, AnthropicError)},
    }


def _answers(endpoint: ApiEndpoint) -> OpenApiPart:
    answers: OpenApiPart = {}
    if endpoint.kind in _SOUNDS:
        answers["audio/*"] = {"schema": {"type": "string", "format": "binary"}}
    else:
        answers[JSON] = {"schema": {"type": "object"}}
    if endpoint.kind in _TRANSCRIPTS:
        answers |= {"text/plain": {"schema": {"type": "string"}}, "text/vtt": {"schema": {"type": "string"}}}
    if endpoint.kind is not RequestKind.IMAGE and not _STREAM.isdisjoint(endpoint.body.__struct_fields__):
        answers[endpoint.format.stream_headers[0][1].decode()] = {"schema": {"type": "string"}}
    return answers


def _page(name: str, summary: str, about: str, shown: type[msgspec.Struct]) -> OpenApiPart:
    content = {JSON: {"schema": _reference(shown)}}
    answered = {"description": about, "content": content, "headers": _REQUEST_ID}
    return {
        **_about(name, summary, about),
        "responses": {"200": answered, **_refusals(_OF_PAGES)},
    }


def _about(name: str, summary: str, about: str) -> OpenApiPart:
    return {
        "tags": ["inference"],
        "operationId": name,
        "summary": summary,
        "description": about,
        "security": [{require_key.scheme_name: []}],
    }


def _refusals(statuses: Mapping[int, str], shape: type[msgspec.Struct] = ErrorAnswer) -> OpenApiPart:
    content = {JSON: {"schema": _reference(shape)}}
    return {
        str(status): {
            "description": about,
            "content": content,
            "headers": _REQUEST_ID | (_RETRY_AFTER if status in (429, 503, 529) else {}),
        }
        for status, about in statuses.items()
    }


def _reference(named: type) -> OpenApiPart:
    return {"$ref": SCHEMAS.format(model=named.__name__)}

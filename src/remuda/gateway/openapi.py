"""The OpenAPI document: what FastAPI knows of the routes, the bodies that our own codec reads, and the routes
for inference, of which FastAPI knows nothing."""

import json

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from remuda.gateway.api_page import page
from remuda.gateway.guards import node_caller, require_admin, require_key
from remuda.gateway.messages import ANSWERS, JSON, SCHEMAS, Described, gives_raw
from remuda.gateway.openai import described
from remuda.gateway.services import Access
from remuda.wire import nodes as wire
from remuda.wire import operations, serving
from remuda.wire.admin import KeyRequest
from remuda.wire.models import ModelUnload

_BODIES: tuple[type[BaseModel], ...] = (
    wire.RegisterRequest,
    wire.Heartbeat,
    wire.BusTrouble,
    wire.Farewell,
    wire.Labels,
    wire.InviteBody,
    wire.VramBudgetBody,
    wire.MaxReplicasBody,
    KeyRequest,
    operations.NodeInstallBody,
    operations.NodeBackendBody,
    operations.ExternalInstallBody,
    operations.ApplyBody,
    operations.OpRequest,
    operations.OpRetryBody,
    operations.RollOutBody,
    serving.ModelAdd,
    serving.ModelNamed,
    serving.ModelUnloadBody,
    ModelUnload,
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


def _document(app: FastAPI) -> Described:
    if app.openapi_schema is None:
        app.openapi_schema = _assembled(app)
    return app.openapi_schema


def _assembled(app: FastAPI) -> Described:
    document = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas = document["components"].setdefault("schemas", {})
    _, answers = models_json_schema([(model, "serialization") for model in ANSWERS], ref_template=SCHEMAS)
    _, bodies = models_json_schema([(body, "validation") for body in _BODIES], ref_template=SCHEMAS)
    schemas |= answers["$defs"] | bodies["$defs"]
    inference = described.schemas()
    assert schemas.keys().isdisjoint(inference), "two schemas have one name"
    schemas |= inference
    document["paths"] = described.paths() | document["paths"]
    # FastAPI promises its own answer to bad parameters; ours is the common envelope.
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    optional = _not_asked_for(app.state.services.access)
    for operation in (one for path in document["paths"].values() for one in path.values()):
        operation["responses"].pop("422", None)
        if any(scheme in optional for alternative in operation.get("security", ()) for scheme in alternative):
            operation["security"].append({})  # OpenAPI's way to say: or nothing.
    return document


def _not_asked_for(access: Access) -> set[str]:
    admin = set() if access.keys_required else {require_admin.scheme_name, require_key.scheme_name}
    token = {node_caller.scheme_name} if access.registration_token is None else set()
    return admin | token

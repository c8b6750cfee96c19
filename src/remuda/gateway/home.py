"""The page at /, for browsers, with hints for paths of other APIs, which shows no secrets and needs no key;
and what a machine with nothing but Python needs to join: a script, and this very program as a wheel.
"""

import hashlib
from html import escape
from typing import Annotated, Final

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core.errors import Conflict, NotFound
from remuda.gateway.guards import require_whole_admin
from remuda.gateway.messages import answer, gives, gives_raw
from remuda.gateway.services import Svc
from remuda.gateway.static_files import shows_page
from remuda.wire.admin import JoinLines

_HTML: Final = "text/html"
_SAFE: Final = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_APIS: Final = (
    "OpenAI's API is under /v1 (chat/completions, completions, responses, embeddings, audio, images, rerank, "
    "tokenize, models), "
    "Anthropic's at /v1/messages, Ollama's under /api (chat, generate, embed, tags)"
)
_OTHERS: Final = (
    ("/v1/messages/batches", "Anthropic's batch API"),
    ("/v1/complete", "Anthropic's older API"),
    ("/v1/responses/input_tokens", "counting the tokens of a response (POST /v1/tokenize counts a chat's)"),
    ("/v1/responses/compact", "compacting conversations of OpenAI's Responses API"),
    ("/v1/conversations", "OpenAI's Conversations API"),
    ("/v1/assistants", "OpenAI's Assistants API"),
    ("/v1/threads", "OpenAI's Assistants API"),
    ("/v1/images/variations", "making variations of images"),
    ("/v1/audio/voices", "OpenAI's API for voices"),
    ("/v1/files", "OpenAI's files API"),
    ("/v1/batches", "OpenAI's batch API"),
    ("/v1/fine_tuning", "OpenAI's fine-tuning API"),
    ("/v1/fine-tunes", "OpenAI's fine-tuning API"),
    ("/v1/uploads", "OpenAI's files API"),
    ("/v1/vector_stores", "OpenAI's vector stores API"),
    ("/v1/evals", "OpenAI's evaluations API"),
    ("/v1/containers", "OpenAI's containers API"),
    ("/v1/videos", "OpenAI's videos API"),
    ("/v1/chatkit", "OpenAI's ChatKit API"),
    ("/v1/moderations", "OpenAI's moderation API"),
    ("/v1/realtime", "OpenAI's realtime API"),
    ("/v1beta/", "Gemini's API"),
    ("/completion", "llama.cpp's own API"),
    ("/generate", "TGI's API"),
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Remuda</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 42em; margin: 3em auto; padding: 0 1em }}
pre {{ overflow-x: auto; padding: .8em; background: color-mix(in srgb, currentColor 8%, transparent) }}
</style>
<h1>Remuda {version}</h1>
<p>This is a frontend of Remuda, which makes one OpenAI-compatible endpoint of several machines.
Its web console is here, for browsers.</p>
<h2>Programs</h2>
<p>Use <code>{base}/v1</code> as the base URL of any OpenAI client, and <code>{base}</code> as the host of any
Ollama client{key}. To programs that look for one here: Ollama is running, or all of its API that matters.</p>
<pre>curl {base}/v1/models{header}</pre>
<h2>People</h2>
<ul>
<li><code>remuda models</code>, <code>remuda nodes</code> and <code>remuda --help</code> on the machine of
this frontend, or anywhere with <code>REMUDA_URL</code> set</li>
<li><a href="/docs">All routes</a>, and the same for programs: <a href="/openapi.json">/openapi.json</a></li>
<li><a href="/healthz">/healthz</a> and <a href="/readyz">/readyz</a> for monitors; /metrics for
Prometheus</li>
</ul>
"""

routes = APIRouter(tags=["about"])


@routes.get("/", response_class=Response, responses=gives_raw(_HTML))
async def home(request: Request, svc: Svc) -> Response:
    """The web console, for browsers; for others what this is, and where to go from here."""
    if shows_page(request.headers):
        return svc.console.files.page(request.headers)
    keys = svc.access.keys_required
    page = _PAGE.format(
        version=escape(svc.version),
        base=escape(f"{request.url.scheme}://{request.url.netloc}"),
        key=", with a key that <code>remuda keys create</code> makes" if keys else "; no key is needed",
        header=' -H "Authorization: Bearer KEY"' if keys else "",
    )
    return Response(page, media_type=_HTML, headers=_SAFE)


_OLLAMAS: Final = {
    "/api/create": "making models is not offered here: install one with /api/pull, or add its configuration "
    "with remuda models add",
    "/api/copy": "copying models is not offered here: give one another name with `alias` in a configuration",
    "/api/push": "pushing models to a registry is not offered here",
    "/api/blobs": "single blobs are not taken here: install a model with /api/pull, or upload its file with "
    "remuda models add FILE",
    "/api/me": "there are no accounts of ollama.com here",
    "/api/signout": "there are no accounts of ollama.com here",
    "/api/web_search": "searching the web is not offered here",
    "/api/web_fetch": "fetching web pages is not offered here",
}


_ANTHROPICS: Final = (
    ("/v1/files", "Anthropic's Files API"),
    ("/v1/skills", "Anthropic's Skills API"),
    ("/v1/organizations", "Anthropic's Admin API"),
)


def no_such_endpoint(path: str, *, anthropics: bool = False) -> str:
    """Why nothing is at this path, and which APIs there are. `anthropics`: a client of Anthropic's asks."""
    if words := next((why for at, why in _OLLAMAS.items() if path == at or path.startswith(f"{at}/")), ""):
        return words
    known = (*_ANTHROPICS, *_OTHERS) if anthropics else _OTHERS
    other = next((api for prefix, api in known if path == prefix or path.startswith(_below(prefix))), "")
    begins = f"{other} is not offered here" if other else "no such endpoint"
    return f"{begins}: {_APIS}, and GET /openapi.json lists all routes"


def _below(prefix: str) -> str:
    return prefix if prefix.endswith("/") else f"{prefix}/"


join_routes = APIRouter(tags=["join"])


@join_routes.get(
    "/api/join-line", responses=gives(JoinLines, 401, 409), dependencies=[Depends(require_whole_admin)]
)
async def join_line(
    svc: Svc,
    this_machine: Annotated[bool, Query(description="Also a line that works on this machine only.")] = False,
) -> Response:
    """What to run on another machine so that it joins this frontend. 409: no other machine can reach it."""
    lines = svc.join_lines()
    if lines.this_machine_only and not this_machine:
        raise Conflict(
            "only this machine can reach this frontend", hint="start it with --lan to let other machines in"
        )
    return answer(lines)


@join_routes.get("/join.py", response_class=Response, responses=gives_raw("text/x-python"))
async def join_script(request: Request, svc: Svc) -> Response:
    """A script for any Python 3 that installs this frontend's Remuda and runs it. It holds no secret."""
    name, content = await anyio.to_thread.run_sync(svc.wheel)
    address = f"{request.url.scheme}://{request.url.netloc}/join/{name}"
    script = svc.join_script(address, hashlib.sha256(content).hexdigest())
    return Response(script, media_type="text/x-python")


@routes.get("/assets/{path:path}", response_class=Response, responses=gives_raw("text/javascript", 404))
async def asset(path: str, request: Request, svc: Svc) -> Response:
    """What the console's page loads. Its name has a hash of its content: it may be kept for ever."""
    found = svc.console.files.answer(f"assets/{path}", request.headers)
    if found is None:
        raise NotFound(f"there is no {path!r} among the console's files", hint="reload the page")
    return found


@join_routes.get("/join/{wheel_name}", response_class=Response, responses=gives_raw("application/zip", 404))
async def wheel(wheel_name: str, svc: Svc) -> Response:
    """The wheel that the script installs."""
    name, content = await anyio.to_thread.run_sync(svc.wheel)
    if wheel_name != name:
        raise NotFound(f"there is no {wheel_name!r} here; the wheel is {name}")
    return Response(content, media_type="application/zip")

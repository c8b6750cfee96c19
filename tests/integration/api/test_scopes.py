"""Who may call what: every route of the application with a key of each scope, and with none."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pytest

from remuda.gateway.app import api_routes
from remuda.gateway.openai.endpoints import ENDPOINTS
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.plain_http import PLAIN

pytestmark = pytest.mark.anyio

Keyed = tuple[LiveFrontend, dict[str, str]]
"""A frontend, and a key of each scope."""
NO_ONE, INFERENCE, READ, ADMIN = "", "inference", "read", "admin"
OPEN = {
    "/",
    "/api/session",
    "/assets/{path}",
    "/docs",
    "/healthz",
    "/join.py",
    "/join/{wheel_name}",
    "/openapi.json",
    "/readyz",
}
SECRET = {"/api/join-line"}  # What is shown is more than may be read.
ANY_KEY = {
    "/api/models/{model}/load-status",
    "/v1/models",
    "/v1/models/{id}",
    # What Ollama's clients look at before they ask.
    "/api/ps",
    "/api/show",
    "/api/tags",
    "/api/version",
}
BY_OTHERS = ("/api/node/", "/api/model-files/")  # The registration token, or a signed address.
ROUTES = sorted(
    {(route.path_format, method) for route in api_routes() for method in route.methods or ()}
    | {(path, "POST") for path in ENDPOINTS}
    | {("/v1/models", "GET"), ("/v1/models/{id}", "GET")}
)
GUARDED = [one for one in ROUTES if not one[0].startswith(BY_OTHERS)]


def expected(path: str, method: str) -> set[str]:
    """Of whom it is taken."""
    if path in OPEN:
        return {NO_ONE, INFERENCE, READ, ADMIN}
    if path in ANY_KEY:
        return {INFERENCE, READ, ADMIN}
    if path in ENDPOINTS:
        return {INFERENCE, ADMIN}
    return {READ, ADMIN} if method == "GET" and path not in SECRET else {ADMIN}


@pytest.fixture(scope="module")
async def keyed(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Keyed]:
    folder: Path = tmp_path_factory.mktemp("scopes")
    shipped = [{"name": "remuda", "url": "builtin:gallery"}]
    async with live_frontend(folder, host="0.0.0.0", backend_galleries=shipped) as frontend:
        keys = {NO_ONE: "", ADMIN: frontend.running.first_admin_key}
        for scope in (INFERENCE, READ):
            made = await frontend.admin.post("/api/keys", json={"name": f"for-{scope}", "scope": scope})
            keys[scope] = made.json()["key"]
        yield frontend, keys


async def call(frontend: LiveFrontend, path: str, method: str, headers: Mapping[str, str]) -> httpx.Response:
    named = path.replace("{path}", "x").replace("{model}", "x").replace("{name}", "x")
    while "{" in named:
        before, _, rest = named.partition("{")
        named = f"{before}x{rest.partition('}')[2]}"
    query = {"wait_s": "0"} if path.endswith("/events") else {}
    body: dict[str, str] | None = {} if method in ("POST", "PUT", "PATCH") else None
    return await frontend.anyone.request(method, named, params=query, headers=headers, json=body)


@pytest.mark.parametrize("scope", [NO_ONE, INFERENCE, READ])
async def test_every_route_takes_those_that_may_call_it_and_no_others(keyed: Keyed, scope: str) -> None:
    frontend, keys = keyed
    headers = {"Authorization": f"Bearer {keys[scope]}"} if keys[scope] else {}
    wrong = {}
    for path, method in GUARDED:
        reply = await call(frontend, path, method, headers)
        open_to_console = path == "/api/session" and reply.status_code in (401, 403)  # POST: not from there.
        taken = reply.status_code not in (401, 403) or open_to_console
        if taken != (scope in expected(path, method)):
            wrong[path, method] = reply.status_code
    assert wrong == {}


async def test_an_admin_may_read_everything(keyed: Keyed) -> None:
    frontend, keys = keyed
    headers = {"Authorization": f"Bearer {keys[ADMIN]}"}
    statuses = {
        path: (await call(frontend, path, method, headers)).status_code
        for path, method in GUARDED
        if method == "GET"
    }
    assert {path for path, status in statuses.items() if status in (401, 403)} == set()


async def test_a_session_of_a_key_that_may_read_changes_nothing(
    keyed: Keyed,
) -> None:
    frontend, keys = keyed
    console = {"X-Remuda-Console": "1"}
    async with httpx.AsyncClient(base_url=frontend.url, trust_env=False, verify=PLAIN) as client:
        await client.post("/api/session", json={"key": keys[READ]}, headers=console)
        shown = (await client.get("/api/session")).json()
        read = await client.get("/api/nodes")
        changed = await client.post("/api/keys", json={"name": "more"}, headers=console)
        chatted = await client.post("/v1/chat/completions", json={"model": "x"}, headers=console)
    assert shown["scope"] == "read"
    assert (read.status_code, changed.status_code, chatted.status_code) == (200, 403, 403)


async def test_a_key_that_may_read_follows_everything(keyed: Keyed) -> None:
    frontend, keys = keyed
    headers = {"Authorization": f"Bearer {keys[READ]}"}
    reply = await frontend.anyone.get("/api/events", params={"wait_s": "0"}, headers=headers)
    assert reply.status_code == 200
    assert "event: snapshot" in reply.text

"""Who gets in where: the registration token, API keys, and on loopback the Host and the Origin."""

from collections.abc import AsyncIterator

import httpx
import pytest

from remuda.accounts.keys import KeyRing
from tests.support.frontends import Json, LiveFrontend, live_frontend

pytestmark = pytest.mark.anyio

MISSING = {"error": "missing or invalid Authorization header", "reason": "unauthorized"}
WRONG = {"error": "invalid registration token", "reason": "unauthorized"}
NODE_ROUTES = [
    ("POST", "/api/node/register"),
    ("POST", "/api/node/x/heartbeat"),
    ("POST", "/api/node/x/drain"),
    ("POST", "/api/node/x/resume"),
    ("POST", "/api/node/x/deregister"),
    ("DELETE", "/api/node/x"),
    ("GET", "/api/node/x/models"),
    ("GET", "/api/node/token"),
]
ADMIN_ROUTES = [
    ("GET", "/api/nodes"),
    ("GET", "/api/nodes/models"),
    ("GET", "/api/nodes/x"),
    ("DELETE", "/api/nodes/x"),
    ("POST", "/api/nodes/x/approve"),
    ("PUT", "/api/nodes/x/labels"),
    ("GET", "/api/history"),
    ("GET", "/api/keys"),
    ("POST", "/api/keys"),
    ("DELETE", "/api/keys/x"),
    ("GET", "/metrics"),
]
PUBLIC_PATHS = ["/healthz", "/readyz", "/join.py", "/openapi.json", "/docs"]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def node_error(reply: httpx.Response) -> tuple[int, int, str]:
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["message"]


# The registration token


def latin1(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"Authorization", b"Bearer " + token.encode("latin-1"))]


async def test_a_machine_can_ask_whether_its_token_is_the_right_one(frontend: LiveFrontend) -> None:
    assert (await frontend.worker.get("/api/node/token")).status_code == 204
    for other in ("rmn_somebody", "rmi_invited.x"):
        assert (await frontend.anyone.get("/api/node/token", headers=bearer(other))).status_code == 401


@pytest.mark.parametrize(("method", "path"), NODE_ROUTES)
async def test_a_worker_needs_the_token_on_every_route(
    frontend: LiveFrontend, method: str, path: str
) -> None:
    assert (await frontend.anyone.request(method, path)).json() == MISSING
    for header in (frontend.token, f"bearer {frontend.token}", f"Basic {frontend.token}", "Bearer"):
        reply = await frontend.anyone.request(method, path, headers={"Authorization": header})
        assert (reply.status_code, reply.json()) == (401, MISSING)
    for token in ("wrong", f"{frontend.token}x", frontend.token[:-1], f" {frontend.token}", "ö"):
        reply = await frontend.anyone.request(method, path, headers=latin1(token))
        assert (reply.status_code, reply.json()) == (401, WRONG)


async def test_a_registration_carries_the_token_in_its_body_too(frontend: LiveFrontend) -> None:
    body = frontend.registration()
    for token, words in (("", "registration token required"), ("wrong", "invalid registration token")):
        reply = await frontend.worker.post("/api/node/register", json={**body, "token": token})
        assert node_error(reply) == (401, 401, words)
    del body["token"]
    reply = await frontend.worker.post("/api/node/register", json=body)
    assert node_error(reply) == (401, 401, "registration token required")


async def test_a_token_outside_ascii_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    token = "schlüssel"
    async with live_frontend(tmp_path_factory.mktemp("umlaut"), registration_token=token) as frontend:
        assert await frontend.register()


async def test_an_admin_key_is_no_registration_token(open_frontend: LiveFrontend) -> None:
    reply = await open_frontend.admin.post("/api/node/register", json=open_frontend.registration())
    assert (reply.status_code, reply.json()) == (401, WRONG)


@pytest.fixture(scope="module")
async def tokenless_frontend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    folder = tmp_path_factory.mktemp("tokenless")
    async with live_frontend(folder, host="0.0.0.0", insecure_no_token=True) as live:
        yield live


async def test_without_a_token_workers_register_freely(tokenless_frontend: LiveFrontend) -> None:
    body = {"name": "free", "address": "a:1"}
    reply = await tokenless_frontend.anyone.post("/api/node/register", json=body)
    assert reply.status_code == 201
    beat = await tokenless_frontend.anyone.post(f"/api/node/{reply.json()['id']}/heartbeat")
    assert beat.status_code == 200


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_being_without_a_token_opens_nothing_else(
    tokenless_frontend: LiveFrontend, method: str, path: str
) -> None:
    assert (await tokenless_frontend.anyone.request(method, path)).status_code == 401


# Keys, off loopback


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_open_to_the_network_admin_routes_need_an_admin_key(
    open_frontend: LiveFrontend, method: str, path: str
) -> None:
    reply = await open_frontend.anyone.request(method, path)
    assert node_error(reply)[:2] == (401, 401)
    assert (reply.headers["www-authenticate"], "admin key" in reply.text) == ("Bearer", True)
    for secret in ("wrong", "rmd_" + "x" * 40, open_frontend.token):
        reply = await open_frontend.anyone.request(method, path, headers=bearer(secret))
        assert node_error(reply)[:2] == (401, 401)


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_a_key_for_inference_is_not_enough(open_frontend: LiveFrontend, method: str, path: str) -> None:
    key = await new_key(open_frontend, f"app of {method} {path}", "inference")
    reply = await open_frontend.anyone.request(method, path, headers=bearer(key["key"]))
    assert node_error(reply)[:2] == (403, 403)
    assert "scope inference" in reply.json()["error"]["message"]


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
async def test_an_admin_key_opens_in_either_header(open_frontend: LiveFrontend, header: str) -> None:
    key = open_frontend.running.first_admin_key
    value = f"Bearer {key}" if header == "Authorization" else key
    reply = await open_frontend.anyone.get("/api/nodes", headers={header: value})
    assert reply.status_code == 200


@pytest.mark.parametrize("path", PUBLIC_PATHS)
async def test_what_holds_no_secret_needs_no_key(open_frontend: LiveFrontend, path: str) -> None:
    assert (await open_frontend.anyone.get(path)).status_code == 200


async def test_open_to_the_network_any_host_name_will_do(open_frontend: LiveFrontend) -> None:
    headers = {"Host": "fleet.example", "Origin": "http://elsewhere.example"}
    assert (await open_frontend.admin.get("/api/nodes", headers=headers)).status_code == 200


async def test_the_first_admin_key_is_made_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("keys")
    async with live_frontend(folder, host="0.0.0.0") as first:
        key = first.running.first_admin_key
    async with live_frontend(folder, host="0.0.0.0") as second:
        assert (bool(key), second.running.first_admin_key) == (True, "")
        assert (await second.anyone.get("/api/nodes", headers=bearer(key))).status_code == 200


async def test_of_frontends_that_start_together_one_makes_the_first_admin_key(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    async with live_frontend(folder, host="0.0.0.0") as first:
        key = first.running.first_admin_key
    monkeypatch.setattr(KeyRing, "listed", lambda ring: ())  # As it was when this one looked.
    async with live_frontend(folder, host="0.0.0.0") as second:
        assert second.running.first_admin_key == ""
        assert (await second.anyone.get("/api/nodes", headers=bearer(key))).status_code == 200


async def new_key(frontend: LiveFrontend, name: str, scope: str = "admin") -> Json:
    reply = await frontend.admin.post("/api/keys", json={"name": name, "scope": scope})
    assert reply.status_code == 201, reply.text
    made: Json = reply.json()
    return made


# Host and Origin, on loopback


@pytest.mark.parametrize("path", ["/api/nodes", "/api/keys", "/metrics", "/healthz", "/join.py", "/nowhere"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "[", "0"]
)
async def test_a_foreign_host_is_refused(frontend: LiveFrontend, path: str, host: str) -> None:
    reply = await frontend.anyone.get(path, headers={"Host": host.format(port=frontend.port)})
    assert node_error(reply)[:2] == (403, 403)
    assert reply.json()["error"]["reason"] == "forbidden"


@pytest.mark.parametrize(
    "host", ["localhost:{port}", "127.0.0.1:{port}", "127.0.0.1", "LOCALHOST", "[::1]:{port}"]
)
async def test_our_own_host_is_accepted(frontend: LiveFrontend, host: str) -> None:
    reply = await frontend.anyone.get("/api/nodes", headers={"Host": host.format(port=frontend.port)})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://[",
        "http://localhost:1",
        "http://127.0.0.1",
        "file://",
        "http://127.0.0.1:{port}.evil.example",
    ],
)
async def test_a_foreign_origin_is_refused(frontend: LiveFrontend, origin: str) -> None:
    headers = {"Origin": origin.format(port=frontend.port)}
    for method, path in (("GET", "/api/nodes"), ("POST", "/api/keys"), ("OPTIONS", "/api/keys")):
        reply = await frontend.anyone.request(method, path, headers=headers)
        assert node_error(reply) == (403, 403, "requests from other web origins are refused")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_our_own_origin_is_accepted(frontend: LiveFrontend, host: str) -> None:
    own = f"{host}:{frontend.port}"
    reply = await frontend.anyone.get("/api/nodes", headers={"Host": own, "Origin": f"http://{own}"})
    assert reply.status_code == 200


async def test_a_host_that_was_allowed_is_accepted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("allowed")
    async with live_frontend(folder, allowed_hosts=["Fleet.example"]) as frontend:
        for host, status in (("fleet.example", 200), ("fleet.example:8080", 200), ("other.example", 403)):
            reply = await frontend.anyone.get("/api/nodes", headers={"Host": host})
            assert reply.status_code == status

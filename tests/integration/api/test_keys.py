"""API keys: shown once, kept as digests, gone at once when revoked. And no secret is ever written down."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from remuda.core import log
from remuda.host.folder import DataFolder
from tests.support.frontends import Json, LiveFrontend, live_frontend

pytestmark = pytest.mark.anyio

SHOWN = {"id", "name", "scope", "hint", "created_at", "state", "weight"}


async def make(frontend: LiveFrontend, name: str, scope: str = "admin") -> Json:
    reply = await frontend.admin.post("/api/keys", json={"name": name, "scope": scope})
    assert reply.status_code == 201
    made: Json = reply.json()
    return made


async def status_with(frontend: LiveFrontend, secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return (await frontend.anyone.get("/api/nodes", headers=headers)).status_code


async def test_a_keys_secret_is_in_the_answer_that_makes_it_and_in_no_other(
    open_frontend: LiveFrontend,
) -> None:
    made = await make(open_frontend, "once")
    assert made.keys() == SHOWN | {"key"}
    assert (made["name"], made["scope"]) == ("once", "admin")
    assert made["key"].startswith(made["hint"])
    assert len(made["hint"]) < len(made["key"]) / 2
    reply = await open_frontend.admin.get("/api/keys")
    assert reply.status_code == 200
    assert {frozenset(key) - {"last_used_at"} for key in reply.json()} == {frozenset(SHOWN)}
    assert made["id"] in [key["id"] for key in reply.json()]
    assert made["key"] not in reply.text


async def test_a_key_is_for_inference_unless_more_is_asked_for(open_frontend: LiveFrontend) -> None:
    made = (await open_frontend.admin.post("/api/keys", json={"name": "plain"})).json()
    assert made["scope"] == "inference"
    assert await status_with(open_frontend, made["key"]) == 403


async def test_a_model_that_is_not_there_is_told_with_near_names(open_frontend: LiveFrontend) -> None:
    config = "name: smollm2-135m\nbackend: echo\n"
    assert (await open_frontend.admin.post("/api/models", json={"config": config})).status_code == 201
    body = {"name": "nearly", "models": ["smollm2", "smollm2-135m"]}
    made = (await open_frontend.admin.post("/api/keys", json=body)).json()
    assert made["warnings"] == ["there is no model 'smollm2' now; did you mean smollm2-135m?"]


async def test_a_revoked_key_stops_at_once(open_frontend: LiveFrontend) -> None:
    made = await make(open_frontend, "short-lived")
    assert await status_with(open_frontend, made["key"]) == 200
    reply = await open_frontend.admin.delete(f"/api/keys/{made['id']}")
    assert (reply.status_code, reply.json()) == (200, {"message": "key short-lived revoked"})
    assert await status_with(open_frontend, made["key"]) == 401
    assert made["id"] not in [key["id"] for key in (await open_frontend.admin.get("/api/keys")).json()]


async def test_a_key_is_revoked_once(open_frontend: LiveFrontend) -> None:
    made = await make(open_frontend, "revoked")
    await open_frontend.admin.delete(f"/api/keys/{made['id']}")
    for unknown in (made["id"], "nothing", "%00"):
        reply = await open_frontend.admin.delete(f"/api/keys/{unknown}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, 404)


async def test_a_name_is_taken_until_its_key_is_revoked(open_frontend: LiveFrontend) -> None:
    made = await make(open_frontend, "ann")
    reply = await open_frontend.admin.post("/api/keys", json={"name": "ann", "scope": "admin"})
    assert (reply.status_code, "'ann'" in reply.json()["error"]["message"]) == (409, True)
    await open_frontend.admin.delete(f"/api/keys/{made['id']}")
    assert (await make(open_frontend, "ann"))["id"] != made["id"]


async def patch(frontend: LiveFrontend, made: Json, **changes: object) -> Json:
    reply = await frontend.admin.patch(f"/api/keys/{made['id']}", json=changes)
    assert reply.status_code == 200, reply.text
    changed: Json = reply.json()
    return changed


TERMS = {
    "requests_per_minute": 60,
    "tokens_per_minute": 20_000,
    "concurrent_requests": 4,
    "tokens_per_day": 2_000_000,
    "tokens_per_month": 10**9,
    "expires_at": "2099-01-01T00:00:00Z",
    "weight": 3,
    "batch": True,
    "may_route": True,
}


async def test_what_a_key_may_take_is_kept_and_changed(open_frontend: LiveFrontend) -> None:
    made = (await open_frontend.admin.post("/api/keys", json={"name": "termed", **TERMS})).json()
    assert TERMS.items() <= made.items()
    changed = await patch(
        open_frontend, made, tokens_per_day=0, weight=1, never_expires=True, models=["qwen"]
    )
    assert (changed["models"], changed["weight"]) == (["qwen"], 1)
    assert changed.keys().isdisjoint({"tokens_per_day", "expires_at", "key"})
    listed = (await open_frontend.admin.get("/api/keys")).json()
    [kept] = [key for key in listed if key["id"] == made["id"]]
    assert kept.items() <= changed.items()
    assert kept["requests_per_minute"] == 60


async def test_a_paused_key_opens_nothing_until_it_is_resumed(open_frontend: LiveFrontend) -> None:
    made = await make(open_frontend, "resting")
    assert (await patch(open_frontend, made, paused=True))["state"] == "paused"
    headers = {"Authorization": f"Bearer {made['key']}"}
    for path in ("/api/nodes", "/v1/models"):
        reply = await open_frontend.anyone.get(path, headers=headers)
        assert (reply.status_code, "the key 'resting' is paused" in reply.text) == (401, True)
        assert "remuda keys resume resting" in reply.text
    assert (await patch(open_frontend, made, paused=False))["state"] == "active"
    assert await status_with(open_frontend, made["key"]) == 200


async def test_when_a_key_was_used_is_told(open_frontend: LiveFrontend) -> None:
    made = await make(open_frontend, "used")
    assert "last_used_at" not in made
    await status_with(open_frontend, made["key"])
    listed = (await open_frontend.admin.get("/api/keys")).json()
    assert "last_used_at" in next(key for key in listed if key["id"] == made["id"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests_per_minute": -1},
        {"tokens_per_day": "many"},
        {"tokens_per_month": 10**16},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"expires_at": "tomorrow"},
        {"expires_at": "2099-01-01T00:00:00Z", "never_expires": True},
        {"weight": 0},
        {"weight": 1001},
        {"paused": "yes"},
        {"models": ["qwen"]},
        {"name": "other"},
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    open_frontend: LiveFrontend, wrong: dict[str, object]
) -> None:
    made = await make(open_frontend, "strict")
    try:
        reply = await open_frontend.admin.patch(f"/api/keys/{made['id']}", json=wrong)
        assert reply.status_code == 400
        listed = (await open_frontend.admin.get("/api/keys")).json()
        assert next(key for key in listed if key["id"] == made["id"]).items() <= made.items()
    finally:
        await open_frontend.admin.delete(f"/api/keys/{made['id']}")


async def test_a_key_that_is_not_there_is_not_changed(open_frontend: LiveFrontend) -> None:
    assert (await open_frontend.admin.patch("/api/keys/nothing", json={"weight": 2})).status_code == 404


def everything_in(database: Path) -> bytes:
    """The file's bytes, and those of what SQLite keeps beside it."""
    return b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))


async def test_the_database_holds_no_key(tmp_path: Path) -> None:
    async with live_frontend(tmp_path, host="0.0.0.0") as frontend:
        secrets = [frontend.running.first_admin_key, (await make(frontend, "k"))["key"]]
        written = everything_in(DataFolder(tmp_path).database)
        assert [secret for secret in secrets if secret.encode() in written] == []
        assert secrets[0][:8].encode() in written


# Nothing secret is logged, or said in an error


@pytest.fixture
def log_output() -> Iterator[io.StringIO]:
    handlers, level = logging.root.handlers[:], logging.root.level
    stream = io.StringIO()
    log.configure("debug", "json", stream)
    yield stream
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()


async def test_secrets_get_neither_into_the_log_nor_into_errors(
    log_output: io.StringIO, tmp_path: Path
) -> None:
    async with live_frontend(tmp_path, host="0.0.0.0") as frontend:
        node = await frontend.register()
        made = await make(frontend, "k")
        wrong = "sesame-open-which-is-wrong"
        secrets = [frontend.token, frontend.running.first_admin_key, made["key"], wrong]
        secrets += [node["nats_jwt"], node["nats_user_seed"]]
        said = []
        for secret in secrets:
            headers = {"Authorization": f"Bearer {secret}", "x-api-key": secret}
            for method, path in (
                ("POST", "/api/node/register"),
                ("GET", "/api/nodes"),
                ("GET", f"/api/nodes/{secret}"),
                ("POST", "/nowhere"),
                ("GET", f"/api/history?limit=x&token={secret}"),
            ):
                body = {"name": 7, "address": "a:1", "token": secret, "labels": {"a": 1}}
                reply = await frontend.anyone.request(method, path, headers=headers, json=body)
                said.append(reply.text if secret not in path else "")
        await frontend.admin.delete(f"/api/nodes/{node['id']}")
        await frontend.admin.delete(f"/api/keys/{made['id']}")
    written = log_output.getvalue()
    assert "request_answered" in written
    assert [secret for secret in secrets if secret in written] == []
    assert [secret for secret in secrets if any(secret in text for text in said)] == []

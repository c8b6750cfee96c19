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

SHOWN = {"id", "name", "scope", "hint", "created_at"}


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
    assert {frozenset(key) for key in reply.json()} == {frozenset(SHOWN)}
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

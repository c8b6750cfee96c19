"""Signing in to the console: a cookie that stands for a key, and what it opens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from remuda.gateway.sessions import COOKIE, FAILURES_MAX
from tests.support.frontends import Json, LiveFrontend, live_frontend
from tests.support.plain_http import PLAIN

pytestmark = pytest.mark.anyio
CONSOLE = {"X-Remuda-Console": "1"}


@asynccontextmanager
async def browser(frontend: LiveFrontend) -> AsyncIterator[httpx.AsyncClient]:
    """Keeps cookies, and sends no key."""
    async with httpx.AsyncClient(base_url=frontend.url, trust_env=False, verify=PLAIN) as client:
        yield client


async def new_key(frontend: LiveFrontend, name: str, scope: str = "admin") -> Json:
    reply = await frontend.admin.post("/api/keys", json={"name": name, "scope": scope})
    assert reply.status_code == 201, reply.text
    made: Json = reply.json()
    return made


async def signed_in(client: httpx.AsyncClient, key: str) -> httpx.Response:
    reply = await client.post("/api/session", json={"key": key}, headers=CONSOLE)
    assert reply.status_code == 200, reply.text
    return reply


async def test_a_key_opens_a_session_and_signing_out_ends_it(open_frontend: LiveFrontend) -> None:
    made = await new_key(open_frontend, "in-and-out")
    async with browser(open_frontend) as client:
        before = (await client.get("/api/session")).json()
        assert (before["authenticated"], before["loopback"]) == (False, False)
        reply = await signed_in(client, made["key"])
        assert (reply.json()["scope"], reply.json()["name"]) == ("admin", "in-and-out")
        assert (await client.get("/api/nodes")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/api/session")).json()["authenticated"] is True
        kept = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
        await client.delete("/api/session", headers=CONSOLE)
        assert (await client.get("/api/nodes")).status_code == 401
    assert (await open_frontend.anyone.get("/api/nodes", headers=kept)).status_code == 401
    wanted = {"name": "by-an-old-cookie", "scope": "admin"}
    refused = await open_frontend.anyone.post("/api/keys", json=wanted, headers={**kept, **CONSOLE})
    assert refused.status_code == 401


async def test_the_cookie_is_closed_to_scripts_and_other_sites_and_holds_no_secret(
    open_frontend: LiveFrontend,
) -> None:
    made = await new_key(open_frontend, "closed")
    async with browser(open_frontend) as client:
        cookie = (await signed_in(client, made["key"])).headers["set-cookie"]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert "secure" not in attributes  # This connection is not encrypted: the browser would not send it.
    assert made["key"] not in cookie
    assert cookie.startswith(f"{COOKIE}={made['id']}.")


async def test_behind_a_trusted_proxy_with_tls_the_cookie_is_secure(tmp_path: Path) -> None:
    async with live_frontend(
        tmp_path / "proxied", host="0.0.0.0", trusted_proxies=("127.0.0.1",)
    ) as frontend:
        made = await new_key(frontend, "proxied")
        async with browser(frontend) as client:
            headers = {**CONSOLE, "X-Forwarded-Proto": "https", "X-Forwarded-For": "10.1.2.3"}
            reply = await client.post("/api/session", json={"key": made["key"]}, headers=headers)
    assert "secure" in reply.headers["set-cookie"].lower()


async def test_a_session_changes_nothing_unless_the_console_asks(open_frontend: LiveFrontend) -> None:
    made = await new_key(open_frontend, "guarded")
    wanted = {"name": "made-by-session", "scope": "inference"}
    async with browser(open_frontend) as client:
        await signed_in(client, made["key"])
        refused = await client.post("/api/keys", json=wanted)
        foreign = await client.post("/api/keys", json=wanted, headers={"Origin": "http://evil.example"})
        own = {"Origin": open_frontend.url}
        accepted = await client.post("/api/keys", json=wanted, headers=own)
        removed = await client.delete(f"/api/keys/{accepted.json()['id']}", headers=CONSOLE)
    assert (refused.status_code, foreign.status_code) == (403, 403)
    assert "X-Remuda-Console" in refused.json()["error"]["hint"]
    assert (accepted.status_code, removed.status_code) == (201, 200)


async def test_a_revoked_key_ends_its_sessions(open_frontend: LiveFrontend) -> None:
    made = await new_key(open_frontend, "short-lived")
    async with browser(open_frontend) as client:
        await signed_in(client, made["key"])
        await open_frontend.admin.delete(f"/api/keys/{made['id']}")
        assert (await client.get("/api/nodes")).status_code == 401
        assert (await client.get("/api/session")).json()["authenticated"] is False


@pytest.mark.parametrize("change", ["", "x", "0.0.0", ".", "a.b.c.d", "é.1.2.3"])
async def test_a_forged_cookie_opens_nothing(open_frontend: LiveFrontend, change: str) -> None:
    headers = [(b"Cookie", f"{COOKIE}={change}".encode())]
    reply = await open_frontend.anyone.get("/api/nodes", headers=headers)
    assert reply.status_code == 401


async def test_a_session_opens_inference_for_the_console_alone(open_frontend: LiveFrontend) -> None:
    made = await new_key(open_frontend, "playground")
    async with browser(open_frontend) as client:
        await signed_in(client, made["key"])
        asked = await client.get("/v1/models", headers=CONSOLE)
        elsewhere = await client.get("/v1/models")
    assert (asked.status_code, elsewhere.status_code) == (200, 403)


async def test_failed_sign_ins_are_limited(tmp_path: Path) -> None:
    wrong = {"key": "rmd_wrong"}
    async with live_frontend(tmp_path / "limited", host="0.0.0.0") as frontend, browser(frontend) as client:
        replies = [
            await client.post("/api/session", json=wrong, headers=CONSOLE) for _ in range(FAILURES_MAX + 1)
        ]
    statuses = [reply.status_code for reply in replies]
    assert statuses == [401] * FAILURES_MAX + [429]


async def test_on_loopback_no_one_need_sign_in(frontend: LiveFrontend) -> None:
    shown = (await frontend.anyone.get("/api/session")).json()
    assert shown["authenticated"] is True
    assert shown["loopback"] is True
    assert shown["scope"] == "admin"
    assert shown["version"]
    assert shown["frontend"]


async def opened(frontend: LiveFrontend, cookie: str, origin: str) -> int:
    """The status with which a WebSocket to a node that does not exist is refused."""
    host = httpx.URL(frontend.url).netloc.decode()
    url = f"ws://{host}/ws/nodes/none/backend-logs/m"
    headers = {"Cookie": f"{COOKIE}={cookie}"} if cookie else {}
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, proxy=None, origin=Origin(origin), additional_headers=headers):
            pass
    return refused.value.response.status_code


async def test_a_session_opens_a_websocket_for_the_console_alone(open_frontend: LiveFrontend) -> None:
    made = await new_key(open_frontend, "follows")
    async with browser(open_frontend) as client:
        await signed_in(client, made["key"])
        cookie = client.cookies[COOKIE]
    own = open_frontend.url.rstrip("/")
    assert await opened(open_frontend, cookie, own) == 404, "it was let in, and there is no such node"
    assert await opened(open_frontend, "", own) == 401
    assert await opened(open_frontend, cookie, "http://elsewhere.example") == 403


async def test_a_key_for_programs_opens_no_session_and_is_told_why(open_frontend: LiveFrontend) -> None:
    made = await new_key(open_frontend, "program", "inference")
    async with browser(open_frontend) as client:
        reply = await client.post("/api/session", json={"key": made["key"]}, headers=CONSOLE)
        assert (reply.status_code, reply.headers.get("set-cookie")) == (403, None)
        assert "'program' is for programs that use models" in reply.json()["error"]["message"]
        assert "admin or read" in reply.json()["error"]["message"]

"""Web pages of other origins: those that were chosen may call with a key, all others learn nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remuda.core.errors import Misconfigured
from tests.support.frontends import LiveFrontend, live_frontend

pytestmark = pytest.mark.anyio
APP, OTHER = "https://app.example.org", "https://evil.example.org"
PATHS = ["/v1/chat/completions", "/v1/messages", "/api/chat", "/api/keys", "/v1/models", "/api/tags"]
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
async def chosen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    """Open to the network, and to pages of APP."""
    async with live_frontend(tmp_path_factory.mktemp("cors"), host="0.0.0.0", cors_origins=[APP]) as live:
        yield live


@pytest.mark.parametrize("path", PATHS)
async def test_a_chosen_page_may_ask_every_api(chosen: LiveFrontend, path: str) -> None:
    asked = await chosen.anyone.request("OPTIONS", path, headers={"Origin": APP, **PREFLIGHT})
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == APP
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-credentials" not in asked.headers


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_chosen_page_reads_answers_also_refusals(
    chosen: LiveFrontend, path: str, method: str
) -> None:
    reply = await chosen.anyone.request(method, path, headers={"Origin": APP}, json={})
    assert reply.headers.get_list("access-control-allow-origin") == [APP]
    assert "retry-after" in reply.headers["access-control-expose-headers"]
    assert "Origin" in reply.headers["vary"]


async def test_a_chosen_page_lists_models_with_a_key(chosen: LiveFrontend) -> None:
    reply = await chosen.admin.get("/v1/models", headers={"Origin": APP})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, APP)


@pytest.mark.parametrize("path", PATHS)
async def test_other_pages_are_told_nothing(chosen: LiveFrontend, path: str) -> None:
    for method, headers in (("OPTIONS", PREFLIGHT), ("POST", {}), ("GET", {})):
        reply = await chosen.anyone.request(method, path, headers={"Origin": OTHER, **headers})
        assert "access-control-allow-origin" not in reply.headers


async def test_without_the_setting_no_page_is(open_frontend: LiveFrontend) -> None:
    reply = await open_frontend.anyone.get("/v1/models", headers={"Origin": APP})
    assert "access-control-allow-origin" not in reply.headers


async def test_the_consoles_cookie_opens_nothing_for_a_chosen_page(chosen: LiveFrontend) -> None:
    key = {"key": chosen.running.first_admin_key}
    signed_in = await chosen.anyone.post("/api/session", json=key, headers={"X-Remuda-Console": "1"})
    assert signed_in.status_code == 200
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    chosen.anyone.cookies.clear()
    assert (await chosen.anyone.get("/api/nodes", headers={"Cookie": cookie})).status_code == 200
    for headers in ({}, {"X-Remuda-Console": "1"}):
        asked = {"Cookie": cookie, "Origin": APP, **headers}
        assert (await chosen.anyone.get("/api/nodes", headers=asked)).status_code == 401
        asking = await chosen.anyone.post("/v1/chat/completions", json={}, headers=asked)
        assert asking.status_code == 401


async def test_on_loopback_chosen_pages_need_no_key_and_others_are_refused(tmp_path: Path) -> None:
    async with live_frontend(tmp_path, cors_origins=[APP]) as frontend:
        assert (await frontend.anyone.get("/v1/models", headers={"Origin": APP})).status_code == 200
        assert (await frontend.anyone.get("/v1/models", headers={"Origin": OTHER})).status_code == 403


async def test_every_page_is_not_let_in_where_no_keys_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="every web page"):
        async with live_frontend(tmp_path, cors_origins=["*"]):
            pass

"""Why a request went where it did, asked of a whole frontend."""

import pytest

from tests.support.frontends import LiveFrontend

pytestmark = pytest.mark.anyio


async def test_a_request_that_was_refused_is_explained_with_the_reason(frontend: LiveFrontend) -> None:
    body = {"model": "nowhere", "messages": [{"role": "user", "content": "hello"}]}
    reply = await frontend.admin.post("/v1/chat/completions", json=body)
    assert reply.status_code == 404
    request_id = reply.headers["x-request-id"]
    told = (await frontend.admin.get(f"/api/requests/{request_id}/explanation")).json()
    assert (told["model"], told["status"]) == ("", 404)
    assert told["error_message"] in reply.json()["error"]["message"]
    assert told["frontend"]


async def test_a_request_that_nobody_knows_is_not_found(frontend: LiveFrontend) -> None:
    reply = await frontend.admin.get("/api/requests/nosuch/explanation")
    assert reply.status_code == 404
    assert "X-Request-Id" in reply.json()["error"]["hint"]

"""Whatever is sent to any path below /v1 is answered, and never with a server's error."""

import json
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scripted_upstreams import gateway
from tests.unit.gateway.openai.test_endpoints import BODIES, JSON

pytestmark = pytest.mark.anyio

PATHS = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/models"]
) | st.text(max_size=20).map(lambda text: f"/v1/{text}")
METHODS = st.sampled_from(["POST"] * 5 + ["GET", "HEAD", "PUT", "OPTIONS", "PATCH"])
NAMED = BODIES.map(json.loads).map(lambda body: json.dumps(body | {"model": "m"}).encode())
HEADERS = st.dictionaries(
    st.sampled_from([b"authorization", b"x-api-key", b"x-request-id", b"accept"]), st.binary(max_size=40)
)


class Wire:
    """One request, and what is answered."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._asked = False
        self.status = 0
        self.sent = b""
        self.over = False

    async def receive(self) -> Any:
        if self._asked:
            await anyio.sleep_forever()
        self._asked = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.sent += message.get("body", b"")
        self.over = message["type"] == "http.response.body" and not message.get("more_body", False)


@settings(deadline=None)
@given(
    path=PATHS,
    method=METHODS,
    body=NAMED | BODIES | JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=100),
    headers=HEADERS,
)
async def test_no_request_is_answered_with_a_servers_error_or_never(
    path: str, method: str, body: bytes, headers: dict[bytes, bytes]
) -> None:
    wire, given_headers = Wire(body), [(b"host", b"127.0.0.1"), *headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": given_headers}
    with anyio.fail_after(10):
        await gateway().door(scope, wire.receive, wire.send)
    assert wire.over
    assert 200 <= wire.status < 500
    assert wire.status < 400 or json.loads(wire.sent)["error"]["message"]

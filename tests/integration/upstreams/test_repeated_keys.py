"""A server that repeats its key in what it says of a failure shows it to nobody."""

import json
from collections.abc import Callable

import pytest

from remuda.core.clock import SystemClock
from remuda.inference.failures import UpstreamFailed
from remuda.inference.model import ReplicaEndpoint, Upstream
from remuda.upstreams.anthropic.upstream import AnthropicUpstream
from remuda.upstreams.http.client import Pool
from remuda.upstreams.http.upstream import HttpUpstream
from tests.integration.upstreams.scripted_http import (
    LAST_CHUNK,
    SSE,
    TOKEN,
    Notebook,
    Script,
    chat,
    chunk,
    opened_pool,
    says,
    scripted,
    whole,
)
from tests.support.json_lines_api import JsonLinesClient

pytestmark = pytest.mark.anyio

KEY = "sk-live-1234567890"
ERROR = json.dumps(
    {"type": "error", "error": {"message": f"boom: Bearer {KEY} is over", "type": "api_error"}}
).encode()
EVENT = chunk(b"data: %b\n\n" % ERROR)
REFUSALS = ("400 Bad Request", "401 Unauthorized", "404 Not Found", "429 Too Many", "500 Oh", "503 Full")


def openai(address: str, pool: Pool) -> Upstream:
    return HttpUpstream(ReplicaEndpoint(address, "http", token=KEY, server="oa"), pool, SystemClock())


def anthropic(address: str, pool: Pool) -> Upstream:
    return AnthropicUpstream(ReplicaEndpoint(address, "http", token=KEY, server="an"), pool, SystemClock())


SCRIPTS = [
    *(says(whole(ERROR, status)) for status in REFUSALS),
    says(whole(ERROR, "302 Found", more=f"Location: http://elsewhere/?key={KEY}\r\n")),
    says(SSE, chunk(TOKEN), EVENT, LAST_CHUNK),
    says(SSE, EVENT, LAST_CHUNK),
]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("made", [openai, anthropic])
@pytest.mark.parametrize("relayed", [True, False])
async def test_a_key_that_a_server_repeats_reaches_no_client(
    script: Script, made: Callable[[str, Pool], Upstream], relayed: bool
) -> None:
    client = Notebook() if relayed and made is openai else JsonLinesClient()
    words = ""
    async with opened_pool() as pool, scripted(script) as server:
        try:
            await made(server.address, pool).serve(chat(stream=True), client)
        except UpstreamFailed as failed:
            words = f"{failed} {failed.message} {failed.public_text} {failed.args}"
        request = server.requests[0].head
    assert KEY in request, "it was sent"
    shown = words + (client.body.decode() if isinstance(client, Notebook) else json.dumps(client.lines))
    assert KEY not in shown
    assert "***" in shown


async def test_a_key_in_name_only_leaves_words_as_they_are() -> None:
    error = b'{"error": {"message": "none of these exist"}}'
    async with opened_pool() as pool, scripted(says(whole(error, "500 Oh"))) as server:
        endpoint = ReplicaEndpoint(server.address, "http", token="none", server="oa")
        with pytest.raises(UpstreamFailed, match="none of these exist"):
            await HttpUpstream(endpoint, pool, SystemClock()).serve(chat(), Notebook())

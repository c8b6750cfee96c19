"""The gRPC upstream and a real backend process."""

from collections.abc import Iterator

import pytest

from tests.integration.backends.programs import BackendProcess, loaded
from tests.integration.upstreams.grpc_rig import Client, chat, upstream_at

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendProcess]:
    with loaded(tmp_path_factory.mktemp("echo")) as (process, _):
        yield process


async def test_chat_streams_what_the_backend_says(echo: BackendProcess) -> None:
    client, call = Client(), chat("one two three", stream_options={"include_usage": True})

    async with upstream_at(echo.address) as upstream:
        await upstream.serve(call, client)

    assert (client.status, client.content_type) == (200, b"text/event-stream")
    assert client.text == "one two three"
    *said, closing, usage = client.events
    assert said[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert closing["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert {event["id"] for event in client.events} == {"chatcmpl-r1"}
    assert {event["model"] for event in client.events} == {"polly"}
    assert (call.tally.prompt_tokens, call.tally.completion_tokens) == (3, 3)

"""What is sent must make sense: sizes, methods, paths, and HTTP itself. The line survives every refusal."""

import anyio
import httpx
import pytest

from remuda.core import limits
from remuda.inference.answers import ByteSink
from remuda.inference.model import InferenceCall
from remuda.router.dispatch import WaitLimits
from tests.integration.api.openai.asking import ASK, ASK_CHAT, ASK_STREAM, CHAT
from tests.support.raw_http import RawClient, post, raw_client
from tests.support.scripted_upstreams import Endless, Gateway, gateway, hello, model, route_to, serving, table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HUGE = 200 << 20


async def test_a_body_announced_as_too_large_is_refused_before_it_is_sent(
    served: Gateway, raw: RawClient
) -> None:
    reply = await raw.ask(post(CHAT, b"", length=HUGE))
    assert (reply.status, reply.json["error"]["code"]) == (413, "too_large")


async def test_a_body_that_becomes_too_large_is_refused_before_it_ends(
    served: Gateway, raw: RawClient
) -> None:
    await raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"

    async def pour() -> None:
        for _ in range(70):
            await raw.send(piece)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pour)
        reply = await raw.reply()
    assert (reply.status, reply.json["error"]["code"]) == (413, "too_large")


async def test_requests_that_are_too_large_together_are_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "INFERENCE_BODIES_BYTES_MAX", 1000)
    async with serving(gateway(body_bytes_max=1000)) as served:
        served.upstreams.script = endless = Endless()
        large = post(CHAT, ASK | {"user": "x" * 600})
        async with raw_client(served.port) as first, raw_client(served.port) as second:
            await first.send(large)
            await wait_until(lambda: endless.began)
            assert (await second.ask(large)).status == 429
        served.upstreams.script = hello
        async with raw_client(served.port) as third:
            await wait_until(lambda: len(served.running) == 0)
            assert (await third.ask(large)).status == 200


async def test_who_waits_for_a_go_ahead_does_not_send_what_is_refused(
    served: Gateway, raw: RawClient
) -> None:
    reply = await raw.ask(post(CHAT, b"", "Expect: 100-continue", length=HUGE))
    assert reply.status == 413


async def test_a_body_below_the_bound_is_read_however_it_is_cut(served: Gateway, raw: RawClient) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (8 << 20)}}
    reply = await raw.ask(post(CHAT, ASK | {"messages": [{"role": "user", "content": [image]}]}))
    assert reply.status == 200


async def test_a_body_that_is_large_without_media_is_refused(served: Gateway, raw: RawClient) -> None:
    prose = "a word " * (limits.INFERENCE_JSON_BYTES_MAX // 7)
    reply = await raw.ask(post(CHAT, ASK | {"messages": [{"role": "user", "content": prose}]}))
    assert (reply.status, reply.json["error"]["code"]) == (413, "too_large")
    assert (await raw.ask(ASK_CHAT)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", CHAT, 405, "POST"),
        ("OPTIONS", CHAT, 405, "POST"),
        ("DELETE", CHAT, 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("DELETE", "/v1/models/m", 405, "GET, HEAD"),
        ("POST", "/v1/nonsense", 404, None),
        ("POST", "/v1/", 404, None),
        ("GET", f"{CHAT}/", 404, None),
    ],
)
async def test_other_methods_and_paths_are_refused_in_the_same_shape(
    client: httpx.AsyncClient, method: str, path: str, status: int, allow: str | None
) -> None:
    reply = await client.request(method, path)
    assert (reply.status_code, reply.headers.get("allow")) == (status, allow)
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_head_is_refused_without_a_body(client: httpx.AsyncClient) -> None:
    reply = await client.head(CHAT)
    assert (reply.status_code, reply.headers["allow"], reply.content) == (405, "POST", b"")


async def test_head_of_the_models_is_answered_like_get_without_the_body(client: httpx.AsyncClient) -> None:
    for path in ("/v1/models", "/v1/models/m"):
        got, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]


async def test_a_line_is_used_again_after_every_refusal(served: Gateway, raw: RawClient) -> None:
    refused = [
        (post(CHAT, b"{"), 400),
        (post(CHAT, ASK | {"model": "none"}), 404),
        (post(CHAT, ASK, "Origin: http://evil.example"), 403),
        (post("/v1/nonsense", ASK), 404),
    ]
    for request, status in refused:
        assert (await raw.ask(request)).status == status
        assert (await raw.ask(ASK_CHAT)).status == 200


async def test_requests_sent_together_are_answered_in_their_order(served: Gateway, raw: RawClient) -> None:
    await raw.send(ASK_CHAT + ASK_STREAM + post(CHAT, b"{") + ASK_CHAT)
    replies = [await raw.reply() for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 400, 200]
    assert replies[0].body == replies[3].body


@pytest.mark.parametrize(
    "request_bytes", [post(CHAT, ASK, "Connection: close"), post(CHAT, b"{", "Connection: close")]
)
async def test_a_line_that_is_wanted_once_is_closed_after_the_answer(
    served: Gateway, raw: RawClient, request_bytes: bytes
) -> None:
    reply = await raw.ask(request_bytes)
    assert (reply.headers["connection"], "date" in reply.headers) == ("close", True)
    assert await raw.closed()


async def test_a_replica_that_wants_to_be_asked_later_is_passed_on_with_a_time(
    served: Gateway, raw: RawClient
) -> None:
    async def busy(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(429, b"application/json")
        await sink.write(b'{"error":{"message":"slow down"}}')

    served.upstreams.script = busy
    reply = await raw.ask(ASK_CHAT)
    assert (reply.status, reply.headers["retry-after"]) == (429, "5")


async def test_a_full_queue_is_told_at_once_and_says_when_to_come_back() -> None:
    async with serving(gateway(waits=WaitLimits(waiting_max=0))) as served:
        served.tables.replace(table(model("m", route_to("m", parallel=1))))
        served.upstreams.script = endless = Endless()
        async with raw_client(served.port) as busy, raw_client(served.port) as raw:
            await busy.send(ASK_CHAT)
            await wait_until(lambda: endless.began)
            reply = await raw.ask(ASK_CHAT)
    assert (reply.status, reply.headers["retry-after"]) == (429, "5")
    assert reply.json["error"]["code"] == "overloaded"

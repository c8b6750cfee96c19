"""A client that goes away stops what is done for it, at once."""

from collections.abc import Callable

import anyio
import httpx
import pytest

from remuda.inference.answers import ByteSink
from remuda.inference.model import InferenceCall
from remuda.router.dispatch import WaitLimits
from remuda.router.loading import Meanwhile
from tests.integration.api.openai.asking import ASK, ASK_CHAT, ASK_STREAM, CHAT, STREAM
from tests.support.raw_http import RawClient, post, raw_client
from tests.support.scripted_upstreams import SSE, Endless, Gateway, gateway, model, route_to, serving, table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

WITHIN_S = 1.0


@pytest.fixture
def endless(served: Gateway) -> Endless:
    served.upstreams.script = replica = Endless()
    return replica


LONG = {"messages": [{"role": "user", "content": "x" * 70_000}]}  # More than is read without being asked.


@pytest.mark.parametrize("request_bytes", [ASK_CHAT, ASK_STREAM, post(CHAT, ASK | LONG)])
@pytest.mark.parametrize("leave", [RawClient.reset, lambda raw: None], ids=["killed", "closed"])
async def test_a_client_that_leaves_stops_the_replica(
    served: Gateway, endless: Endless, request_bytes: bytes, leave: Callable[[RawClient], None]
) -> None:
    async with raw_client(served.port) as raw:
        await raw.send(request_bytes)
        await wait_until(lambda: endless.began)
        leave(raw)
    await wait_until(lambda: endless.stopped, within=WITHIN_S)
    assert (dict(served.ledger.own()), len(served.running)) == ({}, 0)


async def test_a_client_that_leaves_after_a_body_that_came_in_large_parts_stops_the_replica(
    served: Gateway, endless: Endless
) -> None:
    longer = {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
    head, _, body = post(CHAT, ASK | longer, "Expect: 100-continue").partition(b"\r\n\r\n")
    async with raw_client(served.port) as raw:
        await raw.send(head + b"\r\n\r\n")
        assert (await raw.head())[0] == 100
        await raw.send(body)
        await wait_until(lambda: endless.began)
    await wait_until(lambda: endless.stopped, within=WITHIN_S)
    assert (dict(served.ledger.own()), len(served.running)) == ({}, 0)


async def test_a_client_that_leaves_while_it_reads_slowly_stops_the_replica(served: Gateway) -> None:
    stopped = False

    async def flood(call: InferenceCall, sink: ByteSink) -> None:
        nonlocal stopped
        await sink.begin(200, SSE)
        try:
            while True:
                await sink.write(b"data: " + b"x" * 64_000 + b"\n\n")
        finally:
            stopped = True

    served.upstreams.script = flood
    async with raw_client(served.port) as raw:
        await raw.send(ASK_STREAM)
        await raw.head()
        raw.reset()
    await wait_until(lambda: stopped, within=WITHIN_S)


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(served: Gateway) -> None:
    async with raw_client(served.port) as raw:
        await raw.send(post(CHAT, b'{"model"', length=5000))
        await wait_until(lambda: len(served.running) == 1)
    await wait_until(lambda: len(served.running) == 0, within=WITHIN_S)


async def test_a_client_that_leaves_while_it_waits_for_a_seat_frees_its_place() -> None:
    async with serving(gateway(waits=WaitLimits(waiting_max=1))) as served:
        served.tables.replace(table(model("m", route_to("m", parallel=1))))
        served.upstreams.script = endless = Endless()
        async with raw_client(served.port) as first:
            await first.send(ASK_CHAT)
            await wait_until(lambda: endless.began)
            async with raw_client(served.port) as second:
                await second.send(ASK_CHAT)
                await wait_until(lambda: len(served.running) == 2)
            await wait_until(lambda: len(served.running) == 1, within=WITHIN_S)
            async with raw_client(served.port) as third:
                await third.send(ASK_CHAT)
                await wait_until(lambda: b'waiting{model="m"} 1.0' in served.metrics.rendered())


async def test_a_client_that_leaves_while_a_model_loads_stops_waiting(served: Gateway) -> None:
    waiting = stopped = False

    async def bring(model: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        nonlocal waiting, stopped
        waiting = True
        try:
            await anyio.sleep_forever()
        finally:
            stopped = True

    served.tables.replace(table(model("m")))
    served.loading.bringing = bring
    async with raw_client(served.port) as raw:
        await raw.send(ASK_STREAM)
        await wait_until(lambda: waiting)
    await wait_until(lambda: stopped, within=WITHIN_S)


async def test_under_another_server_a_client_that_leaves_is_noticed_too() -> None:
    served = gateway()
    served.upstreams.script = endless = Endless()
    left = anyio.Event()
    body = [{"type": "http.request", "body": ASK_CHAT.partition(b"\r\n\r\n")[2], "more_body": False}]

    async def receive() -> dict[str, object]:
        if body:
            return body.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise AssertionError("nobody is there")

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [(b"host", b"127.0.0.1")]}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.door, scope, receive, send)
        await wait_until(lambda: endless.began)
        left.set()
    assert (endless.stopped, len(served.running)) == (1, 0)


@pytest.mark.parametrize("ask", [ASK, STREAM])
async def test_under_another_server_requests_are_answered_too(ask: dict[str, object]) -> None:
    transport = httpx.ASGITransport(gateway().door)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.post(CHAT, json=ask)).status_code == 200
        assert (await client.post(CHAT, json=ask | {"model": "none"})).status_code == 404

"""Streams: what goes wrong in the middle is told in the stream, which ends properly; readers set the pace."""

import json

import anyio
import httpx
import pytest

from remuda.inference.answers import ByteSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall
from tests.integration.api.openai.asking import ASK_CHAT, ASK_STREAM, CHAT, STREAM
from tests.support.raw_http import RawClient
from tests.support.scripted_upstreams import JSON, SSE, Gateway, chunk, model, route_to, table, whole
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def breaks_before(call: InferenceCall, sink: ByteSink) -> None:
    raise UpstreamFailed(Fault.BROKE, "the backend crashed")


async def breaks_after_one(call: InferenceCall, sink: ByteSink) -> None:
    await sink.begin(200, SSE)
    await sink.write(chunk("one"))
    raise UpstreamFailed(Fault.BROKE, "the backend crashed")


async def test_a_failure_before_the_first_byte_keeps_its_status(served: Gateway, raw: RawClient) -> None:
    served.upstreams.script = breaks_before
    reply = await raw.ask(ASK_STREAM)
    assert (reply.status, reply.json["error"]["code"]) == (502, "backend_failed")


async def test_a_failure_after_the_first_byte_is_an_event_and_the_line_can_be_used_again(
    served: Gateway, raw: RawClient
) -> None:
    served.upstreams.script = breaks_after_one
    reply = await raw.ask(ASK_STREAM)
    first, error, done, rest = reply.body.split(b"\n\n")
    assert (reply.status, first + b"\n\n", done, rest) == (200, chunk("one"), b"data: [DONE]", b"")
    assert json.loads(error.removeprefix(b"data: "))["error"]["message"] == "the backend crashed"
    assert (await raw.ask(ASK_STREAM)).status == 200


async def test_an_event_that_was_cut_off_does_not_swallow_the_error(served: Gateway, raw: RawClient) -> None:
    async def cut_off(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, SSE)
        await sink.write(b'data: {"half')
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.upstreams.script = cut_off
    _, error, *_ = (await raw.ask(ASK_STREAM)).body.split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "backend_failed"


async def test_a_replica_that_fails_at_once_is_replaced_by_another(served: Gateway, raw: RawClient) -> None:
    served.tables.replace(table(model("m", route_to("m"), route_to("m", 1, "gpu-2"))))
    served.upstreams.scripts["gpu-1:0"] = breaks_before
    assert (await raw.ask(ASK_STREAM)).body.startswith(chunk("Hello"))


async def test_what_a_failed_replica_had_said_of_a_whole_answer_is_not_sent(
    served: Gateway, raw: RawClient
) -> None:
    async def half(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, JSON)
        await sink.write(b'{"half":')
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.tables.replace(table(model("m", route_to("m"), route_to("m", 1, "gpu-2"))))
    served.upstreams.scripts["gpu-1:0"] = half
    assert (await raw.ask(ASK_CHAT)).body == whole("Hello there")


async def test_a_replica_that_says_nothing_has_failed(served: Gateway, raw: RawClient) -> None:
    async def nothing(call: InferenceCall, sink: ByteSink) -> None: ...

    served.upstreams.script = nothing
    assert (await raw.ask(ASK_CHAT)).status == 502
    assert (await raw.ask(ASK_STREAM)).status == 502


async def test_a_defect_is_told_as_one_and_no_more(served: Gateway, raw: RawClient) -> None:
    async def defective(call: InferenceCall, sink: ByteSink) -> None:
        raise ValueError("secret details")

    served.upstreams.script = defective
    reply = await raw.ask(ASK_CHAT)
    assert (reply.status, reply.json["error"]["code"]) == (500, "internal")
    assert b"secret" not in reply.body
    assert len(served.ledger.own()) == 0


async def test_a_long_answer_goes_out_in_parts(served: Gateway, raw: RawClient) -> None:
    parts = [bytes([65 + n]) * 100_000 for n in range(10)]

    async def long(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, JSON)
        for part in parts:
            await sink.write(part)

    served.upstreams.script = long
    reply = await raw.ask(ASK_CHAT)
    assert (reply.headers["content-type"], reply.body) == ("application/json", b"".join(parts))


async def test_a_long_answer_that_breaks_ends_without_an_end(served: Gateway, raw: RawClient) -> None:
    async def breaks(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, JSON)
        for _ in range(10):
            await sink.write(b"x" * 100_000)
        raise UpstreamFailed(Fault.BROKE, "the backend crashed")

    served.upstreams.script = breaks
    with pytest.raises((anyio.IncompleteRead, anyio.BrokenResourceError)):
        await raw.ask(ASK_CHAT)


async def test_a_slow_reader_holds_the_replica_back_and_costs_no_memory(
    served: Gateway, raw: RawClient
) -> None:
    piece, pieces, written = b"data: " + b"x" * 64_000 + b"\n\n", 2000, 0

    async def flood(call: InferenceCall, sink: ByteSink) -> None:
        nonlocal written
        await sink.begin(200, SSE)
        for _ in range(pieces):
            await sink.write(piece)
            written += 1

    served.upstreams.script = flood
    await raw.send(ASK_STREAM)
    await raw.head()
    before = -1

    def held() -> bool:
        nonlocal before
        at_rest, before = written == before, written
        return at_rest

    await wait_until(held)
    assert 0 < written < 200  # What both kernels hold for a connection; nothing of it is ours.
    total = sum([len(part) async for part in raw.chunks()])
    assert total == len(piece) * pieces


async def test_a_stream_has_what_keeps_proxies_from_collecting_it(client: httpx.AsyncClient) -> None:
    reply = await client.post(CHAT, json=STREAM)
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-store", "no")

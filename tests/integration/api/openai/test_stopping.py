"""A frontend that stops finishes what it has begun, within a bound, and begins nothing new."""

import json

import anyio
import pytest

from remuda.inference.answers import ByteSink
from remuda.inference.model import InferenceCall
from tests.integration.api.openai.asking import ASK_CHAT, ASK_STREAM
from tests.support.raw_http import raw_client
from tests.support.scripted_upstreams import Endless, gateway, hello, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_what_runs_is_finished_and_what_comes_is_refused() -> None:
    go_on = anyio.Event()

    async def slow(call: InferenceCall, sink: ByteSink) -> None:
        await go_on.wait()
        await hello(call, sink)

    async with (
        serving(gateway()) as served,
        raw_client(served.port) as early,
        raw_client(served.port) as late,
    ):
        served.upstreams.script = slow
        await early.send(ASK_CHAT)
        await wait_until(lambda: len(served.running) == 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.running.close)
            await wait_until(lambda: served.running.stopping)
            refused = await late.ask(ASK_CHAT)
            assert (refused.status, refused.json["error"]["code"]) == (503, "stopping")
            assert "retry-after" in refused.headers
            go_on.set()
        assert (await early.reply()).status == 200


@pytest.mark.parametrize("ask", [ASK_CHAT, ASK_STREAM])
async def test_what_does_not_end_in_time_is_ended_and_told(ask: bytes) -> None:
    async with serving(gateway(grace_s=0.05)) as served, raw_client(served.port) as raw:
        served.upstreams.script = endless = Endless()
        await raw.send(ask)
        await wait_until(lambda: endless.began)
        with anyio.fail_after(10):
            await served.running.close()
        reply = await raw.reply()
        event = reply.body.split(b"\n\n")[1].removeprefix(b"data: ") if ask is ASK_STREAM else reply.body
        assert json.loads(event)["error"]["code"] == "stopping"
        assert (reply.status, endless.stopped) == (200 if ask is ASK_STREAM else 503, 1)


async def test_one_with_nothing_to_do_stops_at_once() -> None:
    running = gateway().running
    with anyio.fail_after(10):
        await running.close()
    assert running.stopping

"""A model that is not loaded: who waits is kept informed, and told how it ended."""

import json

import pytest

from remuda.core.errors import NoCapacity
from remuda.router.loading import LoadStatus, Meanwhile, ModelLoadFailed, ModelLoading
from tests.integration.api.openai.asking import ASK_CHAT, ASK_STREAM, CHAT, STREAM
from tests.support.raw_http import RawClient, post
from tests.support.scripted_upstreams import Gateway, chunk, model, route_to, table

pytestmark = pytest.mark.anyio

AT = LoadStatus("m", "loading", "gpu-1", 42.4)


class Load:
    """Tells how far it is until the test has it end."""

    def __init__(self, served: Gateway, until: str) -> None:
        self._served = served
        self._until = until
        served.tables.replace(table(model("m")))
        served.loading.bringing = self

    async def __call__(self, name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        for _ in range(3):
            await meanwhile(AT)
            self._served.clock.forward(1)
        if self._until == "loaded":
            self._served.tables.replace(table(model("m", route_to("m"))))
            return
        raise ModelLoading("m is being loaded", AT, 30)


async def test_who_asked_for_a_stream_sees_how_far_it_is_and_then_the_answer(
    served: Gateway, raw: RawClient
) -> None:
    Load(served, until="loaded")
    reply = await raw.ask(ASK_STREAM)
    comment, _, rest = reply.body.partition(b"\n\n")
    assert (reply.status, comment) == (200, b": loading m on gpu-1")
    assert rest.startswith(chunk("Hello"))
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_whose_answer_it_is_is_told_in_the_stream_where_the_head_came_too_early(
    served: Gateway, raw: RawClient
) -> None:
    Load(served, until="loaded")
    reply = await raw.ask(post(CHAT, STREAM, "x-remuda-show-node: 1"))
    assert b"\n\n: node gpu-1\n\ndata: " in reply.body


async def test_a_wait_that_is_over_is_told_in_the_stream_with_what_is_loading(
    served: Gateway, raw: RawClient
) -> None:
    Load(served, until="wait is over")
    reply = await raw.ask(ASK_STREAM)
    told = json.loads(reply.body.split(b"\n\n")[1].removeprefix(b"data: "))
    assert (told["error"]["code"], told["loading"]["progress"]) == ("model_loading", 42.4)
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert (await raw.ask(ASK_STREAM)).status == 200  # The line can be used again.


async def test_who_asked_for_a_whole_answer_gets_a_status_and_the_loading_object(
    served: Gateway, raw: RawClient
) -> None:
    Load(served, until="wait is over")
    reply = await raw.ask(ASK_CHAT)
    assert (reply.status, reply.headers["retry-after"]) == (503, "30")
    assert reply.json["error"]["type"] == "model_loading"
    assert reply.json["loading"]["node"] == "gpu-1"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ModelLoadFailed("cuda: out of memory"), "model_load_failed"),
        (NoCapacity("no node can take m", hint="gpu-1: full"), "no_capacity"),
        (ModelLoading("m is being loaded", AT, 30), "model_loading"),
    ],
)
async def test_a_quick_failure_keeps_its_status_for_streams_too(
    served: Gateway, raw: RawClient, failure: Exception, code: str
) -> None:
    async def fail(name: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        await meanwhile(AT)
        raise failure

    served.tables.replace(table(model("m")))
    served.loading.bringing = fail
    reply = await raw.ask(ASK_STREAM)
    assert (reply.status, reply.json["error"]["code"]) == (503, code)
    assert str(failure) in reply.json["error"]["message"]

"""Clients that take their time to say what they want are not waited for without end, and harm nobody else."""

from contextlib import suppress

import anyio
import pytest

from remuda.core import limits
from remuda.gateway.server import _Connection
from tests.integration.api.openai.asking import ASK, ASK_CHAT, ASK_STREAM, CHAT
from tests.support.raw_http import RawClient, post, raw_client
from tests.support.scripted_upstreams import Endless, Gateway, gateway, hello, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HEAD_SO_FAR = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ".encode()


async def test_a_body_that_does_not_come_is_given_up(
    served: Gateway, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INFERENCE_BODY_READ_S", 0.05)
    reply = await raw.ask(post(CHAT, b'{"model"', length=1000))
    assert (reply.status, reply.json["error"]["code"]) == (408, "request_incomplete")
    assert "did not arrive" in reply.json["error"]["message"]
    await wait_until(lambda: len(served.running) == 0)


async def test_a_head_that_does_not_end_is_given_up(
    served: Gateway, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await raw.ask(ASK_CHAT)).status == 200
    monkeypatch.setattr(limits, "HEAD_READ_S", 0.05)
    reply = await raw.ask(HEAD_SO_FAR)
    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert await raw.closed()


@pytest.mark.parametrize("said", [b"", b"\r\n", HEAD_SO_FAR])
async def test_who_connects_and_asks_nothing_is_hung_up_on(
    served: Gateway, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(limits, "HEAD_READ_S", 0.05)
    async with raw_client(served.port) as raw:
        with suppress(anyio.BrokenResourceError):  # It was too late with that, too.
            await raw.send(said)
        assert await wait_until(raw.closed)


async def test_empty_lines_after_an_answer_do_not_keep_a_line_open(
    served: Gateway, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await raw.ask(ASK_CHAT)).status == 200
    monkeypatch.setattr(limits, "HEAD_READ_S", 0.05)
    await raw.send(b"\r\n")
    assert await raw.closed()


async def test_a_slow_head_does_not_end_the_answer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(gateway()) as served, raw_client(served.port) as raw:
        served.upstreams.script = endless = Endless()
        given_up = _counted(monkeypatch)
        monkeypatch.setattr(limits, "HEAD_READ_S", 0.01)
        await raw.send(ASK_STREAM + HEAD_SO_FAR)
        await wait_until(lambda: endless.began)
        seen = len(given_up)
        await wait_until(lambda: len(given_up) > seen + 2)
        assert endless.stopped == 0


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows whenever the server loses its patience with a head."""
    seen: list[object] = []
    give_up = _Connection._give_up_on_head

    def counted(connection: _Connection) -> None:
        seen.append(connection)
        give_up(connection)

    monkeypatch.setattr(_Connection, "_give_up_on_head", counted)
    return seen


async def test_a_head_may_come_in_pieces(served: Gateway, raw: RawClient) -> None:
    served.upstreams.script = hello
    request = post(CHAT, ASK, "X-Long: " + "x" * 1000)
    for at in range(0, len(request), 100):
        await raw.send(request[at : at + 100])
    assert (await raw.reply()).status == 200
    assert (await raw.ask(ASK_CHAT)).status == 200

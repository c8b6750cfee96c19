"""A response on a connection that does not work as it should."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.gateway import client_response as module
from remuda.gateway.client_response import ClientGone, ClientResponse
from remuda.gateway.openai.rendering import OPENAI
from remuda.gateway.server import HeaderPairs
from remuda.inference.model import RequestKind

pytestmark = pytest.mark.anyio


class Line:
    """A line on which writing stalls after the head."""

    when_lost: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.congested = False
        self.hung_up = False

    async def send(self, message: Any) -> None:
        if self.congested:
            await anyio.sleep_forever()
        self.congested = True

    def body(self) -> bytes | None:
        return b""

    def answer(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        raise AssertionError("whole answers are not what is tested here")

    def add(self, data: bytes) -> None:
        self.congested = True

    def hang_up(self) -> None:
        self.hung_up = True


def on(line: Line) -> ClientResponse:
    return ClientResponse(RequestKind.CHAT, "id", line.send, line, SystemClock(), OPENAI, expose_node=False)


async def test_a_reader_that_takes_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STALL_S", 0.05)
    line = Line()
    response = on(line)
    await response.begin(200, b"text/event-stream")
    with anyio.fail_after(5), pytest.raises(ClientGone):
        await response.write(b"data: 1\n\n")
    assert (line.hung_up, response.gone) == (True, True)


async def test_writing_to_a_client_that_is_gone_raises() -> None:
    line = Line()
    response = on(line)
    await response.begin(200, b"text/event-stream")
    response.gone = True
    with pytest.raises(ClientGone):
        await response.write(b"data: 1\n\n")


async def test_a_client_that_leaves_after_its_answer_has_not_left() -> None:
    line = Line()
    response = on(line)
    response._over = True
    response.leave()
    assert not response.gone

"""Clients that cost little: plain protocols on one event loop, which count what comes and when."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from httptools import HttpResponseParser

HOST = "127.0.0.1"
OPENED_PER_S = 250.0
FLOW_LIMIT_S = 60.0
ASKING_S = 15.0  # So that a slow gateway does not take an hour.


@dataclass(frozen=True, slots=True)
class Api:
    """Where an API takes chats, and what each of a stream's events has."""

    path: str
    mark: bytes = b"data: {"


OPENAI = Api("/v1/chat/completions")
RESPONSES = Api("/v1/responses")
ANTHROPIC = Api("/v1/messages")
OLLAMA = Api("/api/chat", b'{"model"')


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests go, and what is asked there."""

    port: int
    key: str = ""
    api: Api = OPENAI

    def request(self, body: bytes) -> bytes:
        head = (
            f"POST {self.api.path} HTTP/1.1",
            f"Host: {HOST}:{self.port}",
            f"Authorization: Bearer {self.key}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join((*head, "", "")).encode() + body


class _Client(asyncio.Protocol):
    """Asks; what comes is counted by those below."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = HttpResponseParser(self)
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(ConnectionError("the gateway hung up"))

    def ask(self) -> None:
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200 and not self.over.done():
            self.over.set_exception(ConnectionError(f"the gateway answered {status}"))


class Asker(_Client):
    """So many requests, one after the other, unless time is up before."""

    def __init__(self, request: bytes, latencies_s: list[float], left: int, until_s: float) -> None:
        super().__init__(request)
        self._latencies_s = latencies_s
        self._left = left
        self._until_s = until_s

    def ask(self) -> None:
        self._asked_s = time.perf_counter()
        super().ask()

    def on_message_complete(self) -> None:
        now_s = time.perf_counter()
        self._latencies_s.append(now_s - self._asked_s)
        self._left -= 1
        if self._left > 0 and now_s < self._until_s:
            self.ask()
        elif not self.over.done():
            self.over.set_result(None)


class Reader(_Client):
    """One stream, whose tokens it counts."""

    def __init__(self, request: bytes, mark: bytes) -> None:
        super().__init__(request)
        self._mark = mark
        self.tokens = 0

    def on_body(self, body: bytes) -> None:
        self.tokens += body.count(self._mark)


async def ask_many(place: Place, body: bytes, at_once: int, each: int) -> list[float]:
    """The latency of every request; of a slow gateway there are fewer than `each` from each client."""
    latencies_s: list[float] = []
    loop, request, until_s = asyncio.get_running_loop(), place.request(body), time.perf_counter() + ASKING_S

    def hired() -> Asker:
        return Asker(request, latencies_s, each, until_s)

    askers = [(await loop.create_connection(hired, HOST, place.port))[1] for _ in range(at_once)]
    for asker in askers:
        asker.ask()
    try:
        await asyncio.gather(*(asker.over for asker in askers))
    finally:
        for asker in askers:
            asker.transport.abort()
    return latencies_s


async def with_streams(
    place: Place, body: bytes, count: int, then: Callable[[list[Reader]], Awaitable[None]]
) -> None:
    """Open streams one after the other, and go on with those that flow: with all of them, unless the gateway
    is too slow for that."""
    loop, request = asyncio.get_running_loop(), place.request(body)
    readers: list[Reader] = []
    try:
        for _ in range(count):
            _, reader = await loop.create_connection(
                lambda: Reader(request, place.api.mark), HOST, place.port
            )
            readers.append(reader)
            reader.ask()
            await asyncio.sleep(1 / OPENED_PER_S)
        until_s = time.perf_counter() + FLOW_LIMIT_S
        while not all(reader.tokens for reader in readers) and time.perf_counter() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        flowing = [reader for reader in readers if reader.tokens]
        if flowing:
            await then(flowing)
        for reader in readers:
            if reader.over.done():
                await reader.over
        if not flowing:
            raise TimeoutError(f"no stream flows after {FLOW_LIMIT_S:.0f} s")
    finally:
        for reader in readers:
            reader.over.cancel()
            reader.transport.abort()

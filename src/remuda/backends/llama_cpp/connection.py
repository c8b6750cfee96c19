"""A thin HTTP client for the engine's local port: one exchange for each connection.

Closing the connection is how a call is cancelled: the engine notices before the next token it would write.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import anyio
import grpc
import httptools

from remuda.backends.calls import Refused
from remuda.backends.llama_cpp import limits
from remuda.core.os_errors import os_reason
from remuda.core.sse import SseEvent, SseParser, SseTooLarge

Json = Mapping[str, Any]
_OK = 200
_STREAM_END = "[DONE]"

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class EngineGone(Exception):
    """The engine closed the connection before it had answered, or could not be reached."""


class EngineConnection:
    """Where an engine listens, and the key it asks for: other users of the machine can reach the port too."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._head = f"Host: engine\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"

    async def get(self, path: str) -> bytes:
        return await self._answer(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())

    async def post(self, path: str, body: Json) -> Any:
        """The decoded answer; Refused with the engine's own words if it refuses."""
        return json.loads(await self._answer(self._request(path, body)))

    async def stream(self, path: str, body: Json) -> AsyncGenerator[Sequence[bytes], None]:
        """The events of an answer, as JSON texts. Those that came between two reads come together."""
        exchange = await self._open(self._request(path, body))
        try:
            with anyio.fail_after(limits.SILENCE_S):
                status = await exchange.status()
            if status != _OK:
                raise refusal(status, await exchange.rest())
            parser = SseParser(limits.ANSWER_BYTES_MAX)
            while data := await exchange.more():
                if texts := [event.data.encode() for event in _parsed(parser, data)]:
                    yield texts
        finally:
            exchange.close()

    async def _answer(self, request: bytes) -> bytes:
        exchange = await self._open(request)
        try:
            with anyio.fail_after(limits.ANSWER_S):
                status = await exchange.status()
                body = await exchange.rest()
        finally:
            exchange.close()
        if status != _OK:
            raise refusal(status, body)
        return body

    def _request(self, path: str, body: Json) -> bytes:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content

    async def _open(self, request: bytes) -> "_Exchange":
        loop = asyncio.get_running_loop()
        try:
            with anyio.fail_after(limits.CONNECT_S):
                transport, exchange = await loop.create_connection(_Exchange, "127.0.0.1", self._port)
        except TimeoutError as error:
            raise EngineGone(
                f"the engine cannot be reached: no answer within {limits.CONNECT_S:g} s"
            ) from error
        except OSError as error:
            raise EngineGone(f"the engine cannot be reached: {os_reason(error)}") from error
        transport.write(request)
        return exchange


def _parsed(parser: SseParser, data: bytes) -> Sequence[SseEvent]:
    """Without the event that only says that it is the last."""
    try:
        events = parser.feed(data)
    except SseTooLarge as error:
        raise EngineGone(f"the engine's answer: {error.message}") from error
    return events[:-1] if events and events[-1].data == _STREAM_END else events


def refusal(status: int, body: bytes) -> Refused:
    """What the engine's error means to our callers, in its own words."""
    try:
        error = json.loads(body)["error"]
        message = str(error["message"])
    except (ValueError, LookupError, TypeError):
        message = body.decode(errors="replace") or f"the engine answered with status {status}"
    return Refused(_CODES.get(status, grpc.StatusCode.INTERNAL), message)


class _Exchange(asyncio.Protocol):
    """One request's answer, kept until it is read; the engine waits when too much of it is unread."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._unread = bytearray()
        self._status = 0
        self._complete = False
        self._lost = False
        self._paused = False
        self._news = asyncio.Event()

    async def status(self) -> int:
        while not self._status:
            await self._wait()
        return self._status

    async def more(self) -> bytes:
        """What has come since the last time, waiting for some; nothing at the end of the answer."""
        while not self._unread and not self._complete:
            with anyio.fail_after(limits.SILENCE_S):
                await self._wait()
        return self._take()

    async def rest(self) -> bytes:
        whole = bytearray()
        while data := await self.more():
            whole += data
            if len(whole) > limits.ANSWER_BYTES_MAX:
                raise EngineGone(f"the engine's answer is longer than {limits.ANSWER_BYTES_MAX} bytes")
        return bytes(whole)

    def close(self) -> None:
        self._transport.abort()

    async def _wait(self) -> None:
        if self._lost:
            raise EngineGone("the engine ended before its answer did")
        self._news.clear()
        await self._news.wait()

    def _take(self) -> bytes:
        data = bytes(self._unread)
        self._unread.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # It is one.
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._news.set()

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._unread += body
        if len(self._unread) > limits.UNREAD_BYTES_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._complete = True

"""The thin client, against servers that cut their answers anywhere."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import grpc
import pytest
from anyio.abc import SocketAttribute, SocketStream

from remuda.backends.calls import Refused
from remuda.backends.llama_cpp import limits
from remuda.backends.llama_cpp.connection import EngineConnection, EngineGone

pytestmark = pytest.mark.anyio

EVENTS = [b'{"n":1}', '{"n":"grüß"}'.encode(), b'{"n":3}']
STREAM = b"".join(b"data: " + event + b"\n\n" for event in EVENTS)
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


@asynccontextmanager
async def answering(*parts: bytes) -> AsyncIterator[tuple[EngineConnection, list[bytes]]]:
    """A server that answers every request with these parts, one packet each, and closes."""
    requests: list[bytes] = []

    async def answer(stream: SocketStream) -> None:
        async with stream:
            requests.append(await stream.receive())
            for part in parts:
                await stream.send(part)
                await anyio.wait_all_tasks_blocked()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, answer)
        yield EngineConnection(listener.extra(SocketAttribute.local_port), "secret"), requests
        tasks.cancel_scope.cancel()


async def streamed(connection: EngineConnection) -> list[bytes]:
    return [event async for events in connection.stream("/completion", {}) for event in events]


@pytest.mark.parametrize("size", [1, 7, len(STREAM)])
async def test_events_arrive_whole_wherever_they_are_cut(size: int) -> None:
    body = STREAM + b"data: [DONE]\n\n"
    parts = [chunked(body[start : start + size]) for start in range(0, len(body), size)]
    async with answering(OK, *parts, b"0\r\n\r\n") as (connection, requests):
        assert await streamed(connection) == EVENTS
    assert b"Authorization: Bearer secret\r\n" in requests[0]


async def test_a_refusal_has_the_engine_s_words() -> None:
    body = json.dumps({"error": {"code": 400, "message": "too long"}}).encode()
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with answering(head + body) as (connection, _):
        with pytest.raises(Refused, match="too long") as streaming:
            await streamed(connection)
        with pytest.raises(Refused, match="too long") as asking:
            await connection.post("/tokenize", {})
    assert streaming.value.code is asking.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200", OK, OK + chunked(STREAM)])
async def test_an_engine_that_ends_early_is_noticed(part: bytes) -> None:
    async with answering(part) as (connection, _):
        with pytest.raises(EngineGone):
            await streamed(connection)


async def test_nobody_listening_is_an_engine_that_is_gone() -> None:
    async with answering() as (connection, _):
        pass
    with pytest.raises(EngineGone):
        await connection.get("/props")


async def test_an_answer_longer_than_what_is_kept_unread_comes_whole() -> None:
    size = 3 * limits.UNREAD_BYTES_MAX
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode()
    async with answering(head, b"x" * size) as (connection, _):
        assert len(await connection.get("/props")) == size

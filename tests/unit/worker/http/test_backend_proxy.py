"""The door to HTTP backends, with real servers on both sides."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from yarl import URL

from remuda.core import limits
from remuda.host.ports import free_port
from remuda.wire.process_keys import ProcessKey, door_path
from tests.support.waiting import wait_until
from tests.support.worker_http import TOKEN, worker

pytestmark = pytest.mark.anyio

KEY = ProcessKey("org/model:q4", 0)
MEGABYTE = 1 << 20
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def backend(handler: Handler) -> AsyncIterator[int]:
    """An HTTP backend that answers everything in one way; its port."""
    runner = web.ServerRunner(web.Server(handler, handler_cancellation=True), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def behind_the_door(folder: Path, handler: Handler) -> AsyncIterator[aiohttp.ClientSession]:
    async with backend(handler) as port, worker(folder, find={KEY: port}.get) as caller:
        yield caller


@asynccontextmanager
async def raw_backend(folder: Path, answer: bytes) -> AsyncIterator[aiohttp.ClientSession]:
    """A caller of a backend that reads a request's head, says `answer`, and hangs up."""

    async def talk(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive()
            if answer:
                await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, talk)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with worker(folder, find={KEY: port}.get) as caller:
            yield caller
        tasks.cancel_scope.cancel()


def at(path: str) -> URL:
    return URL(door_path(KEY, path), encoded=True)


# What passes, and what does not


async def test_a_request_arrives_as_it_was_sent(tmp_path: Path) -> None:
    async def echo(request: web.BaseRequest) -> web.Response:
        return web.json_response(
            {"method": request.method, "target": request.raw_path, "body": await request.text()}, status=201
        )

    async with behind_the_door(tmp_path, echo) as caller:
        for target in ("/v1/models", "/", "/a%2Fb//c%20d?x=%2F&y=a+b&z", "/%C3%A9"):
            async with caller.post(at(target), data=b'{"model": 1}') as answer:
                assert answer.status == 201
                assert await answer.json() == {
                    "method": "POST",
                    "target": target,
                    "body": '{"model": 1}',
                }


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "PATCH"])
async def test_every_method_passes(tmp_path: Path, method: str) -> None:
    async def name(request: web.BaseRequest) -> web.Response:
        return web.Response(text=request.method, headers={"X-Method": request.method})

    async with behind_the_door(tmp_path, name) as caller, caller.request(method, at("/x")) as answer:
        assert (answer.status, answer.headers["X-Method"]) == (200, method)
        assert await answer.text() == ("" if method == "HEAD" else method)


async def test_the_token_and_what_is_about_one_connection_stay_behind(tmp_path: Path) -> None:
    async def tell(request: web.BaseRequest) -> web.Response:
        seen = [f"{name}: {value}" for name, value in request.headers.items()]
        return web.json_response(sorted(line.lower() for line in seen if not line.startswith("Host")))

    sent = {
        "Connection": "x-private",
        "X-Private": "1",
        "TE": "trailers",
        "X-Passed": "caf\u00e9",
        "Accept": "a/b",
    }
    async with (
        behind_the_door(tmp_path, tell) as caller,
        caller.get(at("/"), headers=sent, skip_auto_headers=["User-Agent", "Accept-Encoding"]) as answer,
    ):
        assert await answer.json() == ["accept: a/b", "x-passed: café"]


async def test_an_answer_arrives_as_it_was_given(tmp_path: Path) -> None:
    async def give(_: web.BaseRequest) -> web.Response:
        given = web.Response(body=b"\x1f\x8b not really gzip", status=418)
        given.headers["Content-Encoding"] = "gzip"
        given.headers.add("Set-Cookie", "a=1")
        given.headers.add("Set-Cookie", "b=2")
        given.headers["Connection"] = "X-Secret"
        given.headers["X-Secret"] = "between us"
        return given

    async with behind_the_door(tmp_path, give) as caller:
        caller._auto_decompress = False
        for _ in range(2):  # Cookies are not kept for the next caller either.
            async with caller.get(at("/")) as answer:
                assert (answer.status, await answer.read()) == (418, b"\x1f\x8b not really gzip")
                assert answer.headers.getall("Set-Cookie") == ["a=1", "b=2"]
                assert answer.headers["Content-Encoding"] == "gzip"
                assert "X-Secret" not in answer.headers
                assert len(answer.headers.getall("Date")) == 1


async def test_a_redirect_is_the_callers_to_follow(tmp_path: Path) -> None:
    async def elsewhere(_: web.BaseRequest) -> web.Response:
        return web.Response(status=307, headers={"Location": "http://192.0.2.1/"})

    async with (
        behind_the_door(tmp_path, elsewhere) as caller,
        caller.get(at("/"), allow_redirects=False) as answer,
    ):
        assert (answer.status, answer.headers["Location"]) == (307, "http://192.0.2.1/")


# Streams


async def test_events_arrive_one_by_one(tmp_path: Path) -> None:
    heard = [anyio.Event() for _ in range(5)]

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        events = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await events.prepare(request)
        for number, event in enumerate(heard):
            await events.write(b"data: %d\n\n" % number)
            await event.wait()  # The next is sent only after this one was heard.
        return events

    with anyio.fail_after(20):
        async with (
            behind_the_door(tmp_path, stream) as caller,
            caller.post(at("/v1/chat"), data=b"{}") as answer,
        ):
            assert answer.headers["Content-Type"] == "text/event-stream"
            for number, event in enumerate(heard):
                assert await answer.content.readany() == b"data: %d\n\n" % number
                event.set()
            assert await answer.content.read() == b""


async def test_a_request_is_streamed_too(tmp_path: Path) -> None:
    arrived = anyio.Event()

    async def take(request: web.BaseRequest) -> web.Response:
        first = await request.content.readany()
        arrived.set()
        return web.Response(body=first + await request.content.read())

    async def upload() -> AsyncIterator[bytes]:
        yield b"first "
        await arrived.wait()  # Before the body has ended.
        yield b"second"

    with anyio.fail_after(20):
        async with behind_the_door(tmp_path, take) as caller, caller.post(at("/"), data=upload()) as answer:
            assert await answer.read() == b"first second"


async def test_large_bodies_pass_both_ways(tmp_path: Path) -> None:
    async def back(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": request.headers["Content-Length"]})
        await answer.prepare(request)
        async for chunk in request.content.iter_any():
            await answer.write(chunk)
        return answer

    async def upload() -> AsyncIterator[bytes]:
        for number in range(64):
            yield bytes([number]) * MEGABYTE

    expected = hashlib.sha256(b"".join([bytes([number]) * MEGABYTE for number in range(64)])).digest()
    got = hashlib.sha256()
    with anyio.fail_after(60):
        async with behind_the_door(tmp_path, back) as caller:
            headers = {"Content-Length": str(64 * MEGABYTE)}
            async with caller.post(at("/"), data=upload(), headers=headers) as answer:
                assert answer.headers["Content-Length"] == str(64 * MEGABYTE)
                async for chunk in answer.content.iter_any():
                    got.update(chunk)
    assert got.digest() == expected


async def test_a_slow_reader_holds_up_the_backend_and_not_the_memory(tmp_path: Path) -> None:
    written = 0

    async def flood(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal written
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * MEGABYTE)
            written += 1

    async def settled() -> bool:
        before = written
        for _ in range(20):
            await anyio.wait_all_tasks_blocked()
        return written == before

    with anyio.fail_after(60):
        async with behind_the_door(tmp_path, flood) as caller, caller.get(at("/")):
            await wait_until(settled, within=30)
            assert written < 64


async def test_a_hundred_at_a_time(tmp_path: Path) -> None:
    waiting = 0
    together = anyio.Event()

    async def meet(request: web.BaseRequest) -> web.Response:
        nonlocal waiting
        waiting += 1
        if waiting == 100:
            together.set()
        await together.wait()  # Nobody is answered before all have arrived.
        return web.Response(text=await request.text())

    answers: list[str] = []

    async def ask(caller: aiohttp.ClientSession, number: int) -> None:
        async with caller.post(at("/"), data=str(number)) as answer:
            answers.append(await answer.text())

    with anyio.fail_after(60):
        async with behind_the_door(tmp_path, meet) as caller, anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(ask, caller, number)
    assert sorted(map(int, answers)) == list(range(100))


# Who leaves, and who breaks


@pytest.mark.parametrize("begun", [False, True])
async def test_a_caller_that_leaves_ends_the_request(tmp_path: Path, begun: bool) -> None:
    arrived, ended = anyio.Event(), anyio.Event()

    async def think(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        if begun:
            await answer.prepare(request)
            await answer.write(b"token ")
        arrived.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return answer

    with anyio.fail_after(20):
        async with behind_the_door(tmp_path, think) as caller:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_get, caller, at("/"))
                await arrived.wait()
                tasks.cancel_scope.cancel()
            await ended.wait()
    assert ended.is_set()


async def test_a_caller_that_leaves_while_it_sends_ends_the_request(tmp_path: Path) -> None:
    arrived, ended = anyio.Event(), anyio.Event()

    async def take(request: web.BaseRequest) -> web.Response:
        try:
            await request.content.readany()
            arrived.set()
            await request.content.read()
        finally:
            ended.set()
        return web.Response(text="whole")

    async def upload() -> AsyncIterator[bytes]:
        yield b"half"
        await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with behind_the_door(tmp_path, take) as caller:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_post, caller, at("/"), upload())
                await arrived.wait()
                tasks.cancel_scope.cancel()
            await ended.wait()
    assert ended.is_set()


async def _get(caller: aiohttp.ClientSession, url: URL) -> None:
    async with caller.get(url) as answer:
        await answer.read()


async def _post(caller: aiohttp.ClientSession, url: URL, body: AsyncIterator[bytes]) -> None:
    async with caller.post(url, data=body):
        pass


async def test_a_caller_that_takes_nothing_does_not_hold_a_backend_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DOOR_STALL_S", 0.1)
    ended = anyio.Event()

    async def flood(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"x" * MEGABYTE)
        finally:
            ended.set()

    with anyio.fail_after(20):
        async with behind_the_door(tmp_path, flood) as caller, caller.get(at("/")):
            await ended.wait()
    assert ended.is_set()


async def test_an_answer_may_come_before_the_request_has_ended(tmp_path: Path) -> None:
    async def refuse(_: web.BaseRequest) -> web.Response:
        return web.Response(status=413, text="too large")

    async def upload() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 1000
        await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with behind_the_door(tmp_path, refuse) as caller, caller.post(at("/"), data=upload()) as answer:
            assert (answer.status, await answer.text()) == (413, "too large")


async def test_a_process_that_is_not_ready_is_named(tmp_path: Path) -> None:
    async with worker(tmp_path) as caller, caller.get(at("/v1/models")) as answer:
        assert answer.status == 503
        error = (await answer.json())["error"]
        assert error["message"] == "the process org/model:q4#0 is not ready on this worker"
        assert error["reason"] == answer.headers["X-Remuda-Code"] == "unavailable"
        assert answer.headers["X-Remuda-Refusal"] == "not_ready"


@pytest.mark.parametrize("name", ["model", "model%23", "model%23x", "%230", ""])
async def test_what_is_no_process_is_not_found(tmp_path: Path, name: str) -> None:
    url = URL(f"/v1/processes/{name}/v1/models", encoded=True)
    async with worker(tmp_path, find=lambda _: 1) as caller, caller.get(url) as answer:
        assert answer.status == 404


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 O", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000]
)
async def test_a_backend_that_breaks_before_its_answer_is_a_bad_gateway(
    tmp_path: Path, answer: bytes
) -> None:
    with anyio.fail_after(20), capture_logs() as events:
        async with raw_backend(tmp_path, answer) as caller, caller.post(at("/"), data=b"{}") as got:
            assert (got.status, got.headers["X-Remuda-Refusal"]) == (502, "backend_failed")
            error = (await got.json())["error"]
            assert error["message"].startswith("the process org/model:q4#0 did not answer: ")
    assert [event["event"] for event in events] == ["backend_broke_off"]


@pytest.mark.parametrize("reads", [True, False])
async def test_it_is_told_whether_a_backend_that_ends_has_read_the_request(
    tmp_path: Path, reads: bool
) -> None:
    async def end(listener: socket.socket) -> None:
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        with accepted:
            await anyio.wait_readable(accepted)
            while reads and b"{}" not in accepted.recv(MEGABYTE):
                await anyio.wait_readable(accepted)

    with socket.create_server(("127.0.0.1", 0)) as listener, anyio.fail_after(20):
        listener.setblocking(False)
        async with (
            anyio.create_task_group() as tasks,
            worker(tmp_path, find={KEY: listener.getsockname()[1]}.get) as caller,
        ):
            tasks.start_soon(end, listener)
            async with caller.post(at("/"), data=b"{}") as got:
                assert (got.status, got.headers["X-Remuda-Refusal"]) == (502, "backend_failed")
                assert got.headers.get("X-Remuda-Unread") == (None if reads else "1")


async def test_a_backend_that_does_not_listen_has_heard_nothing(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    async with worker(tmp_path, find=lambda _: port) as caller, caller.get(at("/")) as answer:
        assert (answer.status, answer.headers["X-Remuda-Refusal"]) == (503, "not_ready")
        assert "accepts no connections" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_a_backend_that_breaks_in_its_answer_cuts_the_connection(tmp_path: Path, answer: bytes) -> None:
    with anyio.fail_after(20):
        async with raw_backend(tmp_path, answer) as caller, caller.get(at("/")) as got:
            assert got.status == 200
            assert await got.content.readexactly(4) == b"half"
            with pytest.raises(aiohttp.ClientError):
                await got.content.read()


async def test_a_backend_that_was_replaced_is_found_at_its_new_port(tmp_path: Path) -> None:
    async def one(_: web.BaseRequest) -> web.Response:
        return web.Response(text="one")

    async def two(_: web.BaseRequest) -> web.Response:
        return web.Response(text="two")

    ports: dict[ProcessKey, int] = {}
    async with worker(tmp_path, find=ports.get) as caller:
        for handler in (one, two):
            async with backend(handler) as ports[KEY], caller.get(at("/")) as answer:
                assert await answer.text() == handler.__name__


def test_the_token_is_not_in_the_path() -> None:
    assert door_path(KEY, "/v1/models") == "/v1/processes/org%2Fmodel%3Aq4%230/v1/models"
    assert TOKEN not in door_path(KEY, "/")

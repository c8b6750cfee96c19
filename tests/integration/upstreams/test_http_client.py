"""The pooled HTTP client against a server that behaves in every way servers do."""

import anyio
import pytest
from anyio.abc import SocketStream

from remuda.inference.failures import Fault, UpstreamFailed
from remuda.upstreams.http.client import HELD_BYTES_MAX, HttpTimeouts, Pool, ServerAddress
from tests.integration.upstreams.scripted_http import (
    LAST_CHUNK,
    SSE,
    HangUp,
    Script,
    ScriptedServer,
    chunk,
    opened_pool,
    says,
    says_and_hangs,
    scripted,
    whole,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_HEAD = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n"
_OK = "HTTP/1.1 200 OK\r\n"


@pytest.fixture(scope="module", params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """Both event loops: their transports differ in what they promise."""
    return "asyncio", {"use_uvloop": request.param}


async def _ask(server: ScriptedServer, pool: Pool) -> tuple[int, bytes]:
    host, _, port = server.address.partition(":")
    connection = await pool.exchange(ServerAddress(host, int(port)), _HEAD, b"{}")
    try:
        pieces = list[bytes]()
        while piece := await connection.piece():
            pieces.append(piece)
        return connection.status, b"".join(pieces)
    finally:
        pool.release(connection)


async def _failure(script: Script, timeouts: HttpTimeouts | None = None) -> UpstreamFailed:
    async with scripted(script) as server, opened_pool(timeouts) as pool:
        with pytest.raises(UpstreamFailed) as failed:
            await _ask(server, pool)
        assert (pool.busy, pool.idle) == (0, 0)
    return failed.value


@pytest.mark.parametrize(
    ("script", "reused"),
    [
        (says(whole(b"hello")), True),
        (says(SSE, chunk(b"hel"), chunk(b"lo"), LAST_CHUNK), True),
        (says(SSE, b"5;ext=1\r\nhe", b"llo\r", b"\n0\r\nTrailer: x\r\n\r\n"), True),
        (says(_OK.encode(), b"\r\nhel", b"lo", hang_up=True), False),
        (says(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n", whole(b"hello")), True),
        (says(whole(b"hello", more="Connection: close\r\n"), hang_up=True), False),
        (says(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", hang_up=True), False),
        (says(whole(b"hello") + whole(b"unasked")), False),
        (says(whole(b"hello") + b"garbage"), False),
    ],
)
async def test_every_kind_of_body_is_read_and_only_clean_connections_are_kept(
    script: Script, reused: bool
) -> None:
    async with scripted(script) as server, opened_pool() as pool:
        assert await _ask(server, pool) == (200, b"hello")

        assert (pool.busy, pool.idle) == (0, int(reused))


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (says(hang_up=True), Fault.UNREACHABLE),
        (says(_OK.encode(), hang_up=True), Fault.BROKE),
        (says(b"SSH-2.0-OpenSSH\r\n"), Fault.BROKE),
        (says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), Fault.BROKE),
        (says(f"{_OK}Content-Length: 9\r\n\r\nhello".encode(), hang_up=True), Fault.BROKE),
        (says(f"{_OK}Content-Length: x\r\n\r\nhello".encode()), Fault.BROKE),
        (says(SSE, b"ff\r\nhalf", hang_up=True), Fault.BROKE),
        (says(SSE, b"zz\r\n"), Fault.BROKE),
        (says(SSE, chunk(b"hello"), hang_up=True), Fault.BROKE),
        (says(_OK.encode(), *[b"X: %s\r\n" % (b"y" * 1000)] * 80), Fault.BROKE),
        (says(SSE, chunk(b"hello"), b"0\r\n", *[b"X: %s\r\n" % (b"y" * 1000)] * 80), Fault.BROKE),
    ],
)
async def test_every_way_of_breaking_off_is_told_apart_from_an_end(script: Script, fault: Fault) -> None:
    failure = await _failure(script)
    assert (failure.fault, failure.unprocessed) == (fault, False)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (says_and_hangs(), "did not begin to answer within 0.1 s"),
        (says_and_hangs(_OK.encode()), "did not begin to answer within 0.1 s"),
        (says_and_hangs(SSE, chunk(b"hello")), "paused for more than 0.2 s"),
    ],
)
async def test_silence_has_an_end(script: Script, words: str) -> None:
    failed = await _failure(script, HttpTimeouts(whole_s=0.1, silence_s=0.2))

    assert (failed.fault, failed.status) == (Fault.SILENT, 504)
    assert words in failed.message


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with scripted(says()) as server:
        pass
    async with opened_pool() as pool:
        with pytest.raises(UpstreamFailed, match="could not be reached") as failed:
            await _ask(server, pool)

    assert failed.value.fault is Fault.UNREACHABLE


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with scripted(says(whole(b"hello"))) as server, opened_pool() as pool:
        for _ in range(5):
            await _ask(server, pool)

        assert (server.opened, len(server.requests)) == (1, 5)


async def test_more_idle_connections_than_wanted_are_not_kept() -> None:
    async with scripted(says(whole(b"hello"))) as server, opened_pool(HttpTimeouts(idle_max=2)) as pool:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(_ask, server, pool)

        assert pool.idle == 2
        await wait_until(lambda: server.open == 2)


async def test_idle_connections_are_closed_after_a_while() -> None:
    async with scripted(says(whole(b"hello"))) as server, opened_pool(HttpTimeouts(idle_s=0.05)) as pool:
        await _ask(server, pool)

        await wait_until(lambda: server.open == 0)
        assert pool.idle == 0


async def test_a_request_that_meets_a_closing_connection_is_sent_once_more() -> None:
    async with opened_pool() as pool:

        async def once(stream: SocketStream) -> None:
            """The second request on a connection finds it closed."""
            if len(server.requests) == 2:
                raise HangUp
            await stream.send(whole(b"hello"))

        async with scripted(once) as server:
            await _ask(server, pool)
            assert await _ask(server, pool) == (200, b"hello")

            assert (server.opened, len(server.requests)) == (2, 3)


async def test_a_new_connection_that_is_closed_is_not_tried_again() -> None:
    async with scripted(says(hang_up=True)) as server, opened_pool() as pool:
        with pytest.raises(UpstreamFailed):
            await _ask(server, pool)

        assert len(server.requests) == 1


async def test_a_connection_closed_while_idle_is_not_used() -> None:
    async with scripted(says(whole(b"hello"), hang_up=True)) as server, opened_pool() as pool:
        await _ask(server, pool)
        await wait_until(lambda: server.open == 0)

        assert await _ask(server, pool) == (200, b"hello")


async def test_a_server_is_not_read_from_while_the_reader_is_behind() -> None:
    sent = 0

    async def floods(stream: SocketStream) -> None:
        nonlocal sent
        await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(1000):
            await stream.send(bytes(65536))
            sent += 65536
        raise HangUp

    async with scripted(floods) as server, opened_pool() as pool:
        host, _, port = server.address.partition(":")
        connection = await pool.exchange(ServerAddress(host, int(port)), _HEAD, b"{}")
        seen = list[int]()

        def stuck() -> bool:
            seen.append(sent)
            return sent > 0 and seen.count(sent) > 5

        await wait_until(stuck)
        stuck_at = sent
        first = await connection.piece()
        received = len(first)
        while piece := await connection.piece():
            received += len(piece)
        pool.release(connection)

    assert len(first) <= HELD_BYTES_MAX + (256 << 10)
    assert stuck_at < 20_000_000  # Ours, and the kernel's.
    assert received == 65_536_000


async def test_closing_the_pool_ends_what_is_under_way() -> None:
    async with scripted(says_and_hangs(SSE)) as server, opened_pool() as pool:

        async def interrupted() -> None:
            with pytest.raises(UpstreamFailed):
                await _ask(server, pool)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(interrupted)
            await wait_until(lambda: bool(server.requests))
            pool.close()

        assert pool.busy == 0

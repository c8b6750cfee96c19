"""Uploads that break off, stall, meet each other or fill the disk; and what is swept afterwards."""

import errno
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest
from anyio.abc import SocketAttribute

from remuda.core.clock import SystemClock
from remuda.worker.files import limits
from remuda.worker.files.areas import FileAreas
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import partial_name
from remuda.worker.files.sweep import Sweeper
from remuda.worker.files.uploads import EphemeralUse
from tests.support.file_server import FileServer
from tests.support.raw_http import RawClient, raw_client
from tests.support.waiting import wait_until
from tests.support.worker_http import TOKEN

pytestmark = pytest.mark.anyio

KEY = "models/m/w.bin"
CONTENT = os.urandom(1 << 20)
SHA = hashlib.sha256(CONTENT).hexdigest()


@asynccontextmanager
async def half_sent(
    server: FileServer, *, whole: bool = False, size: int = 600_000
) -> AsyncIterator[RawClient]:
    """A connection on which the first bytes of an upload were sent, and have arrived."""
    ranged = "" if whole else f"Content-Range: bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}\r\n"
    head = (
        f"PUT /v1/files/{KEY} HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\n{ranged}"
        f"X-Content-SHA256: {SHA}\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
    )
    async with raw_client(server.port) as raw:
        await raw.send(head.encode() + CONTENT[:size])
        await wait_until(lambda: server.left_over() != [])
        yield raw


async def arrived_all(server: FileServer, size: int) -> bool:
    return await arrived(server) == size


async def arrived(server: FileServer) -> int:
    return int((await server.do(server.client.head, KEY)).headers["x-file-size"])


async def finished(server: FileServer, tmp_path: Path) -> None:
    """A client comes back and gets it through."""
    file = tmp_path / "w.bin"
    file.write_bytes(CONTENT)
    await server.do(server.client.stage, file, KEY, wait=lambda _: None)
    assert (server.models / "m/w.bin").read_bytes() == CONTENT
    assert server.left_over() == []


async def test_a_lost_connection_keeps_what_arrived(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with half_sent(server):
        pass
    await wait_until(partial(arrived_all, server, 600_000))
    read_again: list[int] = []
    monkeypatch.setattr(Hashes, "read", lambda _, descriptor: read_again.append(descriptor))

    await finished(server, tmp_path)

    assert server.client.log[-3:] == [("HEAD", 200), ("HEAD", 200), ("PUT", 200)]
    assert read_again == [], "what arrived before is not hashed again"


async def test_a_lost_whole_upload_leaves_nothing_and_keeps_the_old_file(server: FileServer) -> None:
    await server.do(server.client.put, KEY, b"old")

    async with half_sent(server, whole=True):
        pass

    await wait_until(lambda: server.left_over() == [])
    assert (server.models / "m/w.bin").read_bytes() == b"old"


async def test_a_client_that_stalls_is_cut_and_can_go_on(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.05)

    async with half_sent(server) as raw:
        status, headers = await raw.head()
        assert (status, headers["x-file-size"]) == (308, "600000"), "which clients try again"
        assert await raw.closed()

    await finished(server, tmp_path)


async def test_a_whole_upload_that_stalls_is_cut(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.05)

    async with half_sent(server, whole=True) as raw:
        assert (await raw.head())[0] == 408

    assert server.left_over() == []


async def test_a_reader_that_takes_nothing_is_cut(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.05)
    with (server.models / "big").open("wb") as file:
        file.truncate(64 << 20)
    async with raw_client(server.port) as raw:
        await raw.send(
            f"GET /v1/files/models/big HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        own = raw.stream.extra(SocketAttribute.local_port)

        await wait_until(lambda: own not in peers_of(server.port))


def peers_of(port: int) -> set[int]:
    """Ports of those who are connected to this one."""
    here = psutil.Process().net_connections("tcp")
    return {one.raddr.port for one in here if one.laddr.port == port and one.raddr}


async def test_a_newer_upload_takes_over_from_one_that_waits(server: FileServer, tmp_path: Path) -> None:
    """The old connection may be dead without our having noticed."""
    async with half_sent(server) as old:
        await finished(server, tmp_path)
        status, headers = await old.head()

    assert status == 308
    assert int(headers["x-file-size"]) <= len(CONTENT)


async def test_what_was_all_there_when_the_worker_was_killed_is_not_sent_again(server: FileServer) -> None:
    (server.models / "m").mkdir()
    (server.models / "m" / partial_name("w.bin", SHA)).write_bytes(CONTENT)

    reply = await server.do(server.client.put_range, KEY, CONTENT, 0, len(CONTENT), SHA)

    assert reply.status == 200
    assert (server.models / "m/w.bin").read_bytes() == CONTENT
    assert server.left_over() == []


async def test_damaged_bytes_of_an_earlier_life_are_noticed_at_the_end(server: FileServer) -> None:
    (server.models / "m").mkdir()
    (server.models / "m" / partial_name("w.bin", SHA)).write_bytes(b"\0" * 1000)

    reply = await server.do(server.client.put_range, KEY, CONTENT[1000:], 1000, len(CONTENT), SHA)

    assert reply.status == 400
    assert reply.body.startswith(b"hash mismatch")
    assert [path for path in server.models.rglob("*") if path.is_file()] == []


async def test_a_disk_that_fills_up_keeps_what_fitted(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.write, 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal written
        if written >= 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        written += (count := real(descriptor, data[: min(len(data), 1000)]))
        return count

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        reply = await server.do(server.client.put_range, KEY, CONTENT, 0, len(CONTENT), SHA)

    assert reply.status == 507
    assert b"the upload of w.bin needs" in reply.body
    assert await arrived(server) == 1000
    await finished(server, tmp_path)


async def test_too_many_uploads_at_once_are_refused(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UPLOADS_AT_ONCE_MAX", 1)

    async with half_sent(server):
        assert (await server.do(server.client.put, "models/other", b"x")).status == 503


async def test_inputs_of_requests_are_bounded_together(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EPHEMERAL_BYTES_MAX", 10)

    assert (await server.do(server.client.put, "ephemeral/inputs/1/a", b"123456")).status == 200
    refused = await server.do(server.client.put, "ephemeral/inputs/1/b", b"123456")

    assert refused.status == 507
    assert (await server.do(server.client.put, "models/b", b"123456")).status == 200


class InTwoDays(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(days=2)


async def test_what_nobody_came_back_for_is_swept(server: FileServer) -> None:
    stale, foreign = partial_name("w.bin", SHA), server.models / "m/f.bin"
    for name in ("models/m/keep.bin", "data/keep", "staging/keep", "staging/ephemeral/inputs/1/a.wav"):
        path = server.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    (server.models / "m" / stale).write_bytes(b"x")
    (server.root / "data" / stale).write_bytes(b"x")
    foreign.write_bytes(b"x")
    foreign.with_name("f.bin.sha256.target").write_text(SHA)
    await server.do(server.client.temp)
    use = EphemeralUse()

    assert Sweeper(FileAreas(server.models), SystemClock(), use).sweep() == 0
    assert use.bytes == 5
    assert Sweeper(FileAreas(server.models), InTwoDays(), use).sweep() == 6

    left = {str(path.relative_to(server.root)) for path in server.root.rglob("*") if path.is_file()}
    assert left == {"models/m/keep.bin", "data/keep", "staging/keep"}
    assert not (server.staging / "ephemeral/inputs").exists()
    assert use.bytes == 0


async def test_an_upload_that_goes_on_is_not_swept(server: FileServer, tmp_path: Path) -> None:
    async with half_sent(server):
        assert Sweeper(FileAreas(server.models), InTwoDays(), EphemeralUse()).sweep() == 0
        assert server.left_over() != []
    await finished(server, tmp_path)

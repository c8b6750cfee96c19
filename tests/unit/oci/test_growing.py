"""A file that is read while it grows."""

import hashlib
import threading
from pathlib import Path
from threading import Event

import pytest
from anyio.to_thread import run_sync

from remuda.oci.disk import GrowingFile, Growth, Partial, StartedOver, appending


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "partial"
    file.write_bytes(b"0123456789")
    return file


def test_only_what_was_told_of_is_read(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(4)

    assert file.read(3) == b"012"
    assert file.read(3) == b"3"
    growth.reached(10)
    assert file.read(100) == b"456789"
    file.close()


def test_the_end_is_reached_once_it_is_verified(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(10)
    growth.verified()
    growth.ended()

    assert file.read(100) == b"0123456789"
    assert file.read(100) == b""
    file.close()


def test_a_download_that_ends_unverified_has_no_end(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(10)
    growth.ended()

    assert file.read(100) == b"0123456789"
    with pytest.raises(StartedOver):
        file.read(100)
    file.close()


def test_a_download_that_starts_over_cannot_be_read_on(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(4)
    file.read(2)

    growth.restarted()
    growth.reached(10)

    with pytest.raises(StartedOver):
        file.read(2)
    file.close()


# What is written is hashed beside it.


@pytest.mark.anyio
async def test_bytes_are_on_the_disk_however_far_their_hash_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_hash = Event()

    class SlowHash:
        def __init__(self) -> None:
            self._own = hashlib.sha256()

        def update(self, data: bytes) -> None:
            assert may_hash.wait(10)
            self._own.update(data)

        def hexdigest(self) -> str:
            return self._own.hexdigest()

    monkeypatch.setattr("remuda.oci.disk.hashlib.new", lambda _: SlowHash())
    partial = Partial.claimed(tmp_path / "p", "p", None, "sha256")
    assert partial is not None
    partial.append(b"one")
    assert (tmp_path / "p").read_bytes() == b"one"
    may_hash.set()
    for _ in range(20):
        partial.append(b"more")
    assert partial.digest == f"sha256:{hashlib.sha256(b'one' + b'more' * 20).hexdigest()}"
    partial.append(b"last")
    await run_sync(partial.reread)
    assert partial.digest == f"sha256:{hashlib.sha256(b'one' + b'more' * 20 + b'last').hexdigest()}"
    partial.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "hash"]


@pytest.mark.anyio
async def test_who_gives_more_than_is_written_waits_for_room(tmp_path: Path) -> None:
    partial = Partial.claimed(tmp_path / "p", "p", None, "sha256")
    assert partial is not None
    pieces = [bytes([number]) * 1000 for number in range(200)]
    async with appending(partial) as appender:
        for piece in pieces:
            await appender.give(piece)
    assert (tmp_path / "p").read_bytes() == b"".join(pieces)
    assert partial.digest == f"sha256:{hashlib.sha256(b''.join(pieces)).hexdigest()}"
    partial.close()

"""Files are pushed to a file server that was written from the contract alone, whatever it does."""

import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from remuda.core.entropy import SystemEntropy
from remuda.core.errors import Invalid, NoAnswerYet, NodeUnreachable
from remuda.core.retry import Backoff
from remuda.staging import push_rules as limits
from remuda.staging.push import FilePusher, FileRefused, FileServerAddress, LocalFile, PushedFile, open_pusher
from remuda.staging.push_rules import RemoteState, remote_state, start_of
from remuda.wire.files import model_key
from tests.peers.localai_files import LocalAiFiles
from tests.support.file_server import file_server
from tests.support.worker_http import TOKEN

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(3_000_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
TOTAL = len(CONTENT)
KEY = "models/qwen/sub dir/weights ü%.gguf"


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[LocalAiFiles]:
    with LocalAiFiles(tmp_path / "peer", TOKEN).serving() as serving:
        yield serving


@pytest.fixture
async def pusher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FilePusher]:
    soon = Backoff(timedelta(milliseconds=1), timedelta(milliseconds=2))
    monkeypatch.setattr(limits, "BACKOFF", soon)
    async with open_pusher(SystemEntropy()) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> LocalFile:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    return LocalFile(path, TOTAL, SHA)


def server_of(peer: LocalAiFiles, token: str = TOKEN) -> FileServerAddress:
    return FileServerAddress("gpu-1", peer.address, SecretStr(token))


def arrived(peer: LocalAiFiles, content: bytes = CONTENT) -> bool:
    path = peer.place(KEY)
    return path is not None and path.read_bytes() == content and _digest_kept(path)


def _digest_kept(path: Path) -> bool:
    return not path.with_name(f"{path.name}.sha256.target").exists()


async def test_what_a_worker_has_is_told_by_its_hash(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile
) -> None:
    await pusher.push(file, server_of(peer), KEY)

    assert await pusher.sha256(server_of(peer), KEY, TOTAL) == SHA
    with pytest.raises(FileRefused, match=f"gpu-1 has no {KEY} of 5 bytes any more"):
        await pusher.sha256(server_of(peer), KEY, 5)
    with pytest.raises(FileRefused, match="has no models/none"):
        await pusher.sha256(server_of(peer), "models/none", 5)
    with pytest.raises(FileRefused, match="HTTP 401"):
        await pusher.sha256(server_of(peer, "wrong"), KEY, TOTAL)
    with pytest.raises(NodeUnreachable, match=r"gpu-2 at 127\.0\.0\.1:1 does not say"):
        await pusher.sha256(FileServerAddress("gpu-2", "127.0.0.1:1"), KEY, TOTAL)


async def test_a_worker_that_is_still_reading_is_not_taken_for_one_that_is_gone(
    pusher: FilePusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWER_S", 0.2)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent:
        port = silent.extra(SocketAttribute.local_port)
        with pytest.raises(NoAnswerYet, match="gpu-1 at 127"):
            await pusher.sha256(FileServerAddress("gpu-1", f"127.0.0.1:{port}"), KEY, TOTAL)
    with pytest.raises(NodeUnreachable) as refused:
        await pusher.sha256(FileServerAddress("gpu-1", "127.0.0.1:1"), KEY, TOTAL)
    assert not isinstance(refused.value, NoAnswerYet)


async def test_a_file_is_pushed_once(peer: LocalAiFiles, pusher: FilePusher, file: LocalFile) -> None:
    sizes: list[int] = []

    first = await pusher.push(file, server_of(peer), KEY, sizes.append)
    again = await pusher.push(file, server_of(peer), KEY)

    path = str(peer.place(KEY))
    assert (first, again) == (PushedFile(path, TOTAL), PushedFile(path, 0))
    assert arrived(peer)
    assert sizes == sorted(sizes)
    assert sizes[-1] == TOTAL
    assert peer.requests == [("HEAD", 404), ("PUT", 200), ("HEAD", 200)]


async def test_no_byte_is_sent_twice_however_often_it_breaks(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile
) -> None:
    peer.breaks_after = [100_000, 700_000, 1]
    peer.takes_only = []

    await pusher.push(file, server_of(peer), KEY)

    assert arrived(peer)
    assert peer.received == TOTAL


async def test_a_worker_that_takes_only_a_part_gets_the_rest(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile
) -> None:
    """308, which is no redirect."""
    peer.takes_only = [100_000, 700_000]

    await pusher.push(file, server_of(peer), KEY)

    assert arrived(peer)
    assert peer.received == TOTAL
    assert [status for method, status in peer.requests if method == "PUT"] == [308, 308, 200]


async def test_a_wrong_start_is_looked_up_again(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile
) -> None:
    peer.answers = [416]

    await pusher.push(file, server_of(peer), KEY)

    assert arrived(peer)
    assert [status for _, status in peer.requests] == [404, 416, 404, 200]


async def test_other_content_is_replaced(peer: LocalAiFiles, pusher: FilePusher, file: LocalFile) -> None:
    path = peer.place(KEY)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(b"another model")

    await pusher.push(file, server_of(peer), KEY)

    assert arrived(peer)


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 500, 503, 507])
async def test_a_refusal_is_final_and_told(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile, status: int
) -> None:
    peer.answers = [status]

    with pytest.raises(
        FileRefused, match=rf"gpu-1 refused models/qwen/.* \(HTTP {status}: as the test"
    ) as told:
        await pusher.push(file, server_of(peer), KEY)

    assert not told.value.retryable
    assert len([method for method, _ in peer.requests if method == "PUT"]) == 1


async def test_a_redirect_is_not_followed(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile, tmp_path: Path
) -> None:
    """The token is for this worker."""
    with LocalAiFiles(tmp_path / "elsewhere").serving() as elsewhere:
        peer.redirects_to = f"http://{elsewhere.address}"
        with pytest.raises(FileRefused, match="HTTP 307"):
            await pusher.push(file, server_of(peer), KEY)

        assert elsewhere.requests == []


async def test_a_wrong_token_is_told(peer: LocalAiFiles, pusher: FilePusher, file: LocalFile) -> None:
    with pytest.raises(FileRefused, match="HTTP 401") as told:
        await pusher.push(file, server_of(peer, "wrong"), KEY)

    assert "token" in told.value.hint


async def test_an_empty_file_is_sent_without_a_range(
    peer: LocalAiFiles, pusher: FilePusher, tmp_path: Path
) -> None:
    empty = LocalFile(tmp_path / "empty", 0, hashlib.sha256().hexdigest())
    empty.path.write_bytes(b"")

    await pusher.push(empty, server_of(peer), KEY)

    assert arrived(peer, b"")


async def test_a_worker_that_stalls_is_left_and_asked_again(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.1)
    monkeypatch.setattr(limits, "ANSWER_S", 0.5)
    peer.stalls_after = [100_000]

    await pusher.push(file, server_of(peer), KEY)

    assert arrived(peer)


async def test_a_worker_that_is_not_there_is_given_up_only_after_a_while(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WITHOUT_PROGRESS_S", 0.05)
    gone = FileServerAddress("gpu-1", "127.0.0.1:9")

    with pytest.raises(NodeUnreachable, match=r"gpu-1 at 127\.0\.0\.1:9: Connection refused; nothing moved"):
        await pusher.push(file, gone, KEY)


async def test_a_push_that_moves_is_not_given_up(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt brings something, and all of them take longer than one may without progress."""
    monkeypatch.setattr(limits, "WITHOUT_PROGRESS_S", 0.2)
    peer.takes_only = [100_000] * 25

    await pusher.push(file, server_of(peer), KEY)

    assert arrived(peer)
    assert peer.received == TOTAL


async def test_what_the_connection_swallows_is_no_progress(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WITHOUT_PROGRESS_S", 0.1)
    peer.breaks_after, peer.forgets = [500_000] * 10_000, True

    with anyio.fail_after(20), pytest.raises(NodeUnreachable, match="nothing moved"):
        await pusher.push(file, server_of(peer), KEY)


async def test_a_file_that_changed_is_not_pushed(
    peer: LocalAiFiles, pusher: FilePusher, file: LocalFile
) -> None:
    file.path.write_bytes(CONTENT[:1000])
    with pytest.raises(Invalid, match="shorter than it was"):
        await pusher.push(file, server_of(peer), KEY)

    file.path.write_bytes(bytes(TOTAL))
    with pytest.raises(FileRefused, match="hash mismatch"):
        await pusher.push(file, server_of(peer), KEY)

    file.path.unlink()
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        await pusher.push(file, server_of(peer), KEY)
    assert peer.place(KEY) is not None


async def test_our_own_worker_understands_it_too(pusher: FilePusher, file: LocalFile, tmp_path: Path) -> None:
    async with file_server(tmp_path) as ours:
        server = FileServerAddress("gpu-1", ours.client.address, SecretStr(TOKEN))
        pushed = await pusher.push(file, server, "models/qwen/weights")
        again = await pusher.push(file, server, "models/qwen/weights")

        assert (pushed.sent_bytes, again.sent_bytes) == (TOTAL, 0)
        assert (ours.models / "qwen/weights").read_bytes() == CONTENT


def test_keys_of_models() -> None:
    assert model_key("org/qwen", "sub/a.gguf") == "models/org/qwen/sub/a.gguf"
    for path in ("", "/a", "../a", "a/../../b"):
        with pytest.raises(Invalid):
            model_key("qwen", path)


@given(st.integers(0, 30), st.sampled_from(["", SHA, "b" * 64]), st.integers(1, 20))
def test_an_upload_begins_where_its_own_bytes_end(size: int, target: str, total: int) -> None:
    start = start_of(RemoteState(size, target=target), SHA, total)

    assert 0 <= start < total
    assert start in (0, size)
    assert start == 0 or target == SHA


def test_answers_to_head() -> None:
    assert remote_state(404, {}) == RemoteState()
    assert remote_state(401, {}) is None
    assert remote_state(200, {"X-File-Size": "-1"}) == RemoteState()

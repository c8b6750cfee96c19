"""Files of requests on workers: ours, and one written from the contract alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Invalid
from remuda.core.tasks import TaskOwner
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.media_requests import FILES_MAX, InputFile
from remuda.inference.model import ReplicaEndpoint
from remuda.upstreams.http import request_files
from remuda.upstreams.http.client import HttpTimeouts, Pool
from remuda.upstreams.http.request_files import RequestFiles
from tests.peers.localai_files import LocalAiFiles
from tests.support.file_server import file_server
from tests.support.worker_http import TOKEN

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 4000  # A megabyte: several pieces in these tests.
KINDS = ("ours", "localai")


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _write(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)


@dataclass
class Place:
    """A worker's file server, and its folder for files of requests."""

    server: ReplicaEndpoint
    staging: Path

    def held(self) -> dict[str, int]:
        """Sizes of what is there, by path; checksums left out."""
        return {
            str(path.relative_to(self.staging)): path.stat().st_size
            for path in self.staging.rglob("*")
            if path.is_file() and ".sha256" not in path.name
        }


@asynccontextmanager
async def place(kind: str, folder: Path, **faults: list[int]) -> AsyncIterator[Place]:
    if kind == "ours":
        async with file_server(folder) as ours:
            yield Place(ReplicaEndpoint(ours.client.address, token=TOKEN), ours.staging)
    else:
        with LocalAiFiles(folder / "peer", token=TOKEN, **faults).serving() as peer:  # type: ignore[arg-type]
            yield Place(ReplicaEndpoint(peer.address, token=TOKEN), peer.root / "staging")


@pytest.fixture
async def files(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RequestFiles]:
    monkeypatch.setattr(request_files, "PIECE_BYTES", 300_000)
    pool, tasks = Pool(HttpTimeouts(whole_s=10, silence_s=10)), TaskOwner()
    yield RequestFiles(pool, SeededEntropy(7), tasks)
    assert pool.busy == 0
    pool.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"x", CONTENT])
async def test_an_input_arrives_and_takes_no_room_when_the_request_is_over(
    files: RequestFiles, tmp_path: Path, kind: str, content: bytes
) -> None:
    async with place(kind, tmp_path) as there:
        async with files.opened(there.server) as mine:
            path = await mine.put(InputFile("My Speech.WAV", content))
            assert (path.endswith(".wav"), _read(path) == content) == (True, True)
            [held] = there.held()
            assert held.startswith("ephemeral/inputs/")

        assert sum(there.held().values()) == 0
        assert kind == "localai" or there.held() == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_output_is_fetched_and_takes_no_room_afterwards(
    files: RequestFiles, tmp_path: Path, kind: str
) -> None:
    async with place(kind, tmp_path) as there:
        async with files.opened(there.server) as mine:
            output = await mine.output()
            _write(output, CONTENT)
            assert await mine.whole(output, len(CONTENT)) == CONTENT

        assert sum(there.held().values()) == 0


async def test_two_requests_never_share_a_file(files: RequestFiles, tmp_path: Path) -> None:
    async with place("ours", tmp_path) as there, files.opened(there.server) as mine:
        async with files.opened(there.server) as other:
            first, _ = await mine.put(InputFile("a", b"1")), await other.put(InputFile("a", b"2"))
        assert _read(first) == b"1"
        assert list(there.held()) == [first.removeprefix(f"{there.staging}/")]


@pytest.mark.parametrize(
    "faults",
    [
        {"breaks_after": [100_000]},
        {"breaks_after": [0, 0, 0]},
        {"takes_only": [50_000, 1000, 1]},
        {"breaks_after": [20_000] * 9},  # More often than failures in a row are accepted: bytes arrive.
    ],
)
async def test_an_upload_goes_on_after_it_broke_off(
    files: RequestFiles, tmp_path: Path, faults: dict[str, list[int]]
) -> None:
    async with place("localai", tmp_path, **faults) as there, files.opened(there.server) as mine:
        path = await mine.put(InputFile("a.png", CONTENT))
        assert _read(path) == CONTENT


def test_pieces_follow_what_the_link_carries() -> None:
    """A piece that is not taken within the silence is a failure: on a slow link it has to be small."""
    size, sizes = request_files.PIECE_BYTES, list[int]()
    for took_s in (20.0, None, None, 5.0, *[0.1] * 9):
        size = request_files.next_piece_bytes(size, took_s)
        sizes.append(size >> 10)
    assert sizes == [256, 64, 64, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096]


async def test_a_worker_that_never_takes_it_is_given_up_unheard(files: RequestFiles, tmp_path: Path) -> None:
    async with place("localai", tmp_path, breaks_after=[0] * 9) as there, files.opened(there.server) as mine:
        with pytest.raises(UpstreamFailed, match="cannot be sent files of requests") as failed:
            await mine.put(InputFile("a.png", CONTENT))

    assert (failed.value.fault, failed.value.unprocessed) == (Fault.UNREACHABLE, True)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_token_is_told(files: RequestFiles, tmp_path: Path, kind: str) -> None:
    async with place(kind, tmp_path) as there:
        stranger = ReplicaEndpoint(there.server.address, token="wrong")
        async with files.opened(stranger) as mine:
            with pytest.raises(UpstreamFailed, match="HTTP 401") as failed:
                await mine.put(InputFile("a", b"x"))
            with pytest.raises(UpstreamFailed, match="HTTP 401"):
                await mine.output()

    assert (failed.value.unprocessed, "token" in failed.value.hint) == (True, True)


async def test_a_worker_without_a_file_server_is_told(files: RequestFiles) -> None:
    with pytest.raises(UpstreamFailed, match="no address of its HTTP server") as failed:
        async with files.opened(None):
            pass

    assert failed.value.elsewhere


@pytest.mark.parametrize(
    ("written", "bytes_max", "words"), [(b"", 10, "wrote no output"), (b"x" * 11, 10, "exceeds")]
)
async def test_an_output_that_is_none_or_too_long_is_a_failure(
    files: RequestFiles, tmp_path: Path, written: bytes, bytes_max: int, words: str
) -> None:
    async with place("ours", tmp_path) as there, files.opened(there.server) as mine:
        output = await mine.output()
        _write(output, written)
        with pytest.raises(UpstreamFailed, match=words):
            await mine.whole(output, bytes_max)


async def test_bounds_of_a_request(
    files: RequestFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_files, "INPUT_BYTES_MAX", 10)
    async with place("ours", tmp_path) as there:
        async with files.opened(there.server) as mine:
            for size in (0, 11):
                with pytest.raises(Invalid, match="1 to 10 bytes"):
                    await mine.put(InputFile("a", b"x" * size))
            for _ in range(FILES_MAX):
                await mine.put(InputFile("a", b"x"))
            with pytest.raises(Invalid, match=f"at most {FILES_MAX} files"):
                await mine.output()
        assert there.held() == {}


async def _fail_with_files(files: RequestFiles, server: ReplicaEndpoint) -> None:
    async with files.opened(server) as mine:
        await mine.put(InputFile("a", CONTENT))
        await mine.output()
        raise UpstreamFailed(Fault.FAILED, "as backends do")


@pytest.mark.parametrize("kind", KINDS)
async def test_files_are_removed_when_a_request_fails(files: RequestFiles, tmp_path: Path, kind: str) -> None:
    async with place(kind, tmp_path) as there:
        with pytest.raises(UpstreamFailed):
            await _fail_with_files(files, there.server)

        assert sum(there.held().values()) == 0


async def test_a_worker_that_has_gone_does_not_hold_up_the_end(files: RequestFiles, tmp_path: Path) -> None:
    async with place("localai", tmp_path) as there:
        entered = files.opened(there.server)
        mine = await entered.__aenter__()
        await mine.put(InputFile("a", b"x"))

    with anyio.fail_after(request_files.REMOVAL_S):
        await entered.__aexit__(None, None, None)
    assert [key.partition("/")[0] for key in mine.keys] == ["ephemeral"]

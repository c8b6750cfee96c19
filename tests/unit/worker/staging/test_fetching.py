"""What a worker makes of files that are to be in its folder of models, before and after they travel."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import Conflict, Invalid, NotFound, RemudaError
from remuda.core.ids import NodeId
from remuda.oci.blobs import BlobStore
from remuda.oci.client import open_client
from remuda.oci.errors import ContentRefused, DiskFull
from remuda.wire.files import FilePhase, WantedFile
from remuda.wire.model_file_urls import WORKER_PATH, FileGrant, signed_path
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.tree import Tree
from remuda.worker.staging import fetching
from remuda.worker.staging.fetching import ModelFetcher
from remuda.worker.staging.giving import GivingPages
from remuda.worker.staging.placed import PlacedFiles
from remuda.worker.staging.placing import place, store_root
from tests.support.hub import hub_server
from tests.support.path_attacks import ATTACKS, SECRET, hostile_tree

pytestmark = pytest.mark.anyio

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def wanted(path: str = "m/q.gguf", sha256: str = SHA256, size: int = len(CONTENT)) -> WantedFile:
    return WantedFile(path=path, size=size, sha256=sha256, sources=())


async def fetch(
    models: Path, file: WantedFile, *sources: str, hashes: Hashes | None = None
) -> dict[str, int]:
    clock, seen = SystemClock(), dict[str, int]()
    async with open_client(clock, SystemEntropy()) as client:
        fetcher = ModelFetcher(models, client, hashes or Hashes(), "http://127.0.0.1:1", clock)

        def on_file(phase: FilePhase, path: str, done: int) -> None:
            if phase is FilePhase.STAGING:
                seen[path] = done

        await fetcher.fetch([fetcher.checked(file.model_copy(update={"sources": sources}))], on_file)
    return seen


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "m").mkdir(parents=True)
    return folder


async def test_file_that_is_there_and_the_same_is_taken(models: Path) -> None:
    (models / "m/q.gguf").write_bytes(CONTENT)
    assert await fetch(models, wanted()) == {"m/q.gguf": len(CONTENT)}


async def test_file_that_a_person_has_linked_to_is_taken(models: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(CONTENT)
    (models / "m/q.gguf").symlink_to(tmp_path / "elsewhere")
    assert await fetch(models, wanted()) == {"m/q.gguf": len(CONTENT)}


@pytest.mark.parametrize("there", [b"another", b"a longer one"])
async def test_file_that_differs_is_not_replaced_and_both_are_named(models: Path, there: bytes) -> None:
    (models / "m/q.gguf").write_bytes(there)
    with pytest.raises(Conflict, match=r"is another file than the model's m/q\.gguf") as refused:
        await fetch(models, wanted())
    assert str(models / "m/q.gguf") in refused.value.message
    assert (models / "m/q.gguf").read_bytes() == there


@pytest.mark.parametrize("there", [b"another", b"a longer one"])
async def test_file_that_was_fetched_here_and_has_changed_since_is_replaced(
    models: Path, there: bytes
) -> None:
    file = models / "m/q.gguf"
    file.write_bytes(there)
    PlacedFiles(models, store_root(models)).note({"m/q.gguf": file})
    with pytest.raises((NotFound, ContentRefused)):  # No source has it: what was there stays.
        await fetch(models, wanted())
    assert file.read_bytes() == there

    async with hub_server() as hub:
        url = hub.add("/q.gguf", CONTENT)
        assert await fetch(models, wanted(), url) == {"m/q.gguf": len(CONTENT)}
    assert file.read_bytes() == CONTENT
    assert PlacedFiles(models, store_root(models)).here()["m/q.gguf"].sha256 == SHA256


async def test_what_was_fetched_under_another_name_is_linked_to_and_does_not_come_again(models: Path) -> None:
    async with hub_server() as hub:
        url = hub.add("/q.gguf", CONTENT)
        await fetch(models, wanted("m/one.gguf"), url)
        asked = len(hub.asked("GET"))
        hashes = Hashes()
        assert await fetch(models, wanted("m/two.gguf"), url, hashes=hashes) == {"m/two.gguf": len(CONTENT)}
        assert len(hub.asked("GET")) == asked
    one, two = models / "m/one.gguf", models / "m/two.gguf"
    assert one.samefile(two)
    assert two.read_bytes() == CONTENT
    for path in (one, two):
        assert hashes.recalled(path.stat()) == SHA256, "neither is read again"
    assert hashes.look(Tree(models), ("m", "one.gguf")).sha256 == SHA256
    assert Hashes().look(Tree(models), ("m", "one.gguf")).sha256 == SHA256, "nor after a restart"
    placed = PlacedFiles(models, store_root(models))
    assert set(placed.here()) == {"m/one.gguf", "m/two.gguf"}


async def test_what_a_person_has_put_there_is_not_linked_to(models: Path) -> None:
    """They may write to it."""
    (models / "m/mine.gguf").write_bytes(CONTENT)
    await fetch(models, wanted("m/mine.gguf"))
    async with hub_server() as hub:
        await fetch(models, wanted("m/two.gguf"), hub.add("/q.gguf", CONTENT))
    assert not (models / "m/mine.gguf").samefile(models / "m/two.gguf")


async def test_fetched_file_that_was_written_to_is_not_linked_to(models: Path) -> None:
    async with hub_server() as hub:
        url = hub.add("/q.gguf", CONTENT)
        await fetch(models, wanted("m/one.gguf"), url)
        (models / "m/one.gguf").write_bytes(CONTENT.upper())
        await fetch(models, wanted("m/two.gguf"), url)
    assert (models / "m/two.gguf").read_bytes() == CONTENT


async def test_room_is_asked_for_before_the_first_byte(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiskFull, match="needs"):
        await fetch(models, wanted(size=1 << 49))
    monkeypatch.setattr(fetching, "_check_room", lambda *_: None)
    with pytest.raises((NotFound, ContentRefused)):  # Nobody has it.
        await fetch(models, wanted())
    assert not (models / "m/q.gguf").exists()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_path_leads_outside(tmp_path: Path, attack: str) -> None:
    """Neither when a file is put there, nor when one is given to another worker."""
    tree = hostile_tree(tmp_path / "worker")
    models, blob = tree.root / "models", tmp_path / "blob"
    blob.write_bytes(CONTENT)
    async with open_client(SystemClock(), SystemEntropy()) as client:
        fetcher = ModelFetcher(models, client, Hashes(), "http://127.0.0.1:1", SystemClock())
        with pytest.raises(RemudaError):
            place(blob, SHA256, Tree(models), fetcher.checked(wanted(ATTACKS[attack])).parts)
    grant = FileGrant(ATTACKS[attack], len(SECRET), SHA256, NodeId("n"), 10**10)
    status, body = await given_to(models, signed_path(WORKER_PATH, "token", grant))
    assert status in (400, 404)
    assert SECRET not in body
    assert tree.untouched()


async def given_to(models: Path, address: str) -> tuple[int, bytes]:
    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [],
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await GivingPages(models, lambda: "token", SystemClock())(scope, receive, send)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


async def test_file_is_given_to_whoever_has_a_signed_address_and_to_nobody_else(models: Path) -> None:
    (models / "m/q.gguf").write_bytes(CONTENT)
    grant = FileGrant("m/q.gguf", len(CONTENT), SHA256, NodeId("n"), 10**10)
    assert await given_to(models, signed_path(WORKER_PATH, "token", grant)) == (200, CONTENT)
    assert (await given_to(models, signed_path(WORKER_PATH, "another", grant)))[0] == 403
    assert (await given_to(models, f"{WORKER_PATH}m/q.gguf"))[0] == 403
    another = FileGrant("m/q.gguf", len(CONTENT) + 1, SHA256, NodeId("n"), 10**10)
    assert (await given_to(models, signed_path(WORKER_PATH, "token", another)))[0] == 404


@pytest.mark.parametrize("source", ["file:///etc/passwd", "ftp://x/y", "x"])
async def test_sources_are_http_addresses(models: Path, source: str) -> None:
    async with open_client(SystemClock(), SystemEntropy()) as client:
        fetcher = ModelFetcher(models, client, Hashes(), "http://127.0.0.1:1", SystemClock())
        with pytest.raises(Invalid):
            fetcher.checked(WantedFile(path="q.gguf", size=1, sha256=SHA256, sources=(source,)))


# Into the folder of models.


@pytest.fixture
def blob(models: Path) -> Path:
    path = BlobStore(store_root(models)).path(f"sha256:{SHA256}")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return path


def test_store_is_beside_the_folder_of_models_not_in_it(models: Path) -> None:
    assert store_root(models) == models.parent / "model-downloads"


def test_file_is_linked_without_a_copy(models: Path, blob: Path) -> None:
    place(blob, SHA256, Tree(models), ("new", "q.gguf"))
    assert (models / "new/q.gguf").stat().st_ino == blob.stat().st_ino


def test_file_is_copied_where_links_cannot_be_made(
    models: Path, blob: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    place(blob, SHA256, Tree(models), ("q.gguf",))
    assert (models / "q.gguf").read_bytes() == CONTENT
    with pytest.raises(Conflict):
        place(blob, SHA256, Tree(models), ("q.gguf",))
    with pytest.raises(ContentRefused):
        place(blob, "ab" * 32, Tree(models), ("other.gguf",))
    assert sorted(path.name for path in models.iterdir()) == ["m", "q.gguf"]


def test_file_that_came_meanwhile_is_not_replaced(models: Path, blob: Path) -> None:
    (models / "q.gguf").write_bytes(b"mine")
    with pytest.raises(Conflict):
        place(blob, SHA256, Tree(models), ("q.gguf",))
    assert (models / "q.gguf").read_bytes() == b"mine"

"""What a worker tells of the model files that it has fetched, and which it removes when it is asked to."""

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid
from remuda.oci.blobs import BlobStore, WantedBlob
from remuda.oci.disk import Partial
from remuda.wire.files import FilesDrop, FilesDropReply, UnusedFile, WantedFile
from remuda.wire.models import ModelDelete
from remuda.wire.nodes import ArrivedFile, ModelFile
from remuda.worker.commands.model_files import ModelFiles, ModelListing
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.tree import Tree
from remuda.worker.staging.dropping import FetchedFiles
from remuda.worker.staging.placed import PlacedFiles
from remuda.worker.staging.placing import store_root
from tests.support.path_attacks import ATTACKS, hostile_tree

pytestmark = pytest.mark.anyio

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Site:
    """A folder of models with one file that was fetched, and the models that are loaded."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self.loaded: set[str] = set()
        self.files = FetchedFiles(models, Hashes(), SystemClock(), lambda: self.loaded)
        self.placed = PlacedFiles(models, store_root(models))

    def put(self, path: str, *, fetched_for: str = "") -> Path:
        file = self.models / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(CONTENT)
        if fetched_for:
            self.placed.note({path: file})
            wanted = WantedFile(path=path, size=len(CONTENT), sha256=SHA256)
            self.files.needed([wanted], fetched_for, verified=True)
        return file

    def told(self, path: str) -> ModelFile:
        (told,), _ = self.files.noted([ModelFile(path=path, size=len(CONTENT))])
        return told

    async def drop(self, *told: ModelFile) -> FilesDropReply:
        files = (UnusedFile(path=one.path, sha256=one.sha256, used_ms=one.used_ms) for one in told)
        return await self.files.drop(FilesDrop(files=tuple(files)))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "models").mkdir()
    return Site(tmp_path / "models")


async def test_what_was_fetched_goes_and_leaves_no_folder_behind(site: Site) -> None:
    file = site.put("m/q.gguf", fetched_for="qwen")
    (file.parent / "q.gguf.sha256").write_text("x")
    told = site.told("m/q.gguf")
    assert (told.sha256, told.models) == (SHA256, ("qwen",))

    reply = await site.drop(told)

    assert (reply.removed, reply.kept, reply.freed) == (("m/q.gguf",), (), len(CONTENT))
    assert reply.available_disk
    assert not file.parent.exists()
    assert site.files.noted([]) == ((), 0)
    assert (await site.drop(told)).removed == ("m/q.gguf",), "what is gone is as good as removed"


async def test_what_has_come_of_a_file_goes_unless_a_fetch_has_it_open(site: Site) -> None:
    store = BlobStore(store_root(site.models))
    wanted = WantedBlob("q.gguf", f"sha256:{SHA256}", f"sha256:{SHA256}", len(CONTENT))
    asked = FilesDrop(parts=(SHA256, "0" * 64))
    async with store.claim(wanted, lambda _: None) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT[:3])
        reply = await site.files.drop(asked)
        assert (reply.parts, reply.freed) == (("0" * 64,), 0), "what is gone is as good as removed"
        assert site.files.partial()
    reply = await site.files.drop(asked)
    assert (reply.parts, reply.freed) == ((SHA256, "0" * 64), 3)
    assert site.files.partial() == ()
    with pytest.raises(Invalid, match="not a digest"):
        await site.files.drop(FilesDrop(parts=("../../etc/passwd",)))


async def test_what_an_earlier_load_has_left_is_told(site: Site) -> None:
    store = BlobStore(store_root(site.models))
    assert site.files.partial() == ()
    wanted = WantedBlob("q.gguf", f"sha256:{SHA256}", f"sha256:{SHA256}", len(CONTENT))
    async with store.claim(wanted, lambda _: None) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT[:3])
    assert site.files.partial() == (ArrivedFile(sha256=SHA256, size=3),)
    changes: list[str] = []
    listing = ModelListing(site.models, lambda: changes.append("changed"), site.files)
    await listing.look()
    assert listing.listed.partial == (ArrivedFile(sha256=SHA256, size=3),)
    assert changes == [], "that it grows is told with the next heartbeat, and not before"


def half_fetched(site: Site) -> AbstractAsyncContextManager[Partial | Path]:
    digest = f"sha256:{SHA256}"
    wanted = WantedBlob("q.gguf", digest, digest, len(CONTENT))
    return BlobStore(store_root(site.models)).claim(wanted, lambda _: None)


async def begun(site: Site, *paths: str) -> None:
    """A load that has ended before it had all."""
    for path in paths:
        site.files.needed([WantedFile(path=path, size=len(CONTENT), sha256=SHA256)], "qwen")
    async with half_fetched(site) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT[:3])


async def removed(site: Site, *paths: str) -> None:
    await ModelFiles(site.models).delete(ModelDelete(model_name="qwen", files=paths))


async def test_what_is_half_fetched_goes_with_its_model(site: Site) -> None:
    await begun(site, "q.gguf")
    await removed(site, "another.gguf")
    assert site.files.partial(), "another model was removed"
    await removed(site, "q.gguf", "r.gguf")
    assert site.files.partial() == ()


async def test_content_that_another_model_waits_for_as_well_stays(site: Site) -> None:
    await begun(site, "q.gguf", "same.gguf")
    await removed(site, "q.gguf")
    assert site.files.partial()


async def test_what_a_fetch_still_has_open_goes_once_that_has_ended(site: Site) -> None:
    await begun(site, "q.gguf")
    async with half_fetched(site):
        await removed(site, "q.gguf")
        assert site.files.partial()
    assert site.files.partial() == ()


async def test_load_that_needs_it_again_goes_on_with_it(site: Site) -> None:
    await begun(site, "q.gguf")
    async with half_fetched(site):
        await removed(site, "q.gguf")
        site.files.needed([WantedFile(path="q.gguf", size=len(CONTENT), sha256=SHA256)], "qwen")
    assert site.files.partial()


async def test_what_no_load_goes_on_with_goes_after_three_days_without_another_load(site: Site) -> None:
    await begun(site, "q.gguf")
    (file,) = (store_root(site.models) / "partial").iterdir()
    now_s = SystemClock().now().timestamp()
    os.utime(file, (now_s - 71 * 3600, now_s - 71 * 3600))
    assert site.files.partial()
    os.utime(file, (now_s - 73 * 3600, now_s - 73 * 3600))
    assert site.files.partial() == ()


async def test_paths_that_are_one_file_on_the_disk_are_told_as_one(site: Site) -> None:
    """Frontends count with that what is freed, as the worker counts what is used."""
    site.put("a.gguf", fetched_for="a")
    site.put("copy.gguf", fetched_for="b")
    os.link(site.models / "a.gguf", site.models / "link.gguf")
    site.placed.note({"link.gguf": site.models / "link.gguf"})
    inodes = [site.told(path).inode for path in ("a.gguf", "link.gguf", "copy.gguf")]
    assert inodes[0] == inodes[1] != inodes[2]
    assert 0 not in inodes
    assert site.files.noted([])[1] == 2 * len(CONTENT)


async def test_persons_file_stays(site: Site) -> None:
    file = site.put("q.gguf")
    told = site.told("q.gguf")
    assert not told.brought
    (kept,) = (await site.drop(told.model_copy(update={"sha256": SHA256}))).kept
    assert "this worker has not fetched it" in kept.why
    assert file.exists()


def replaced(site: Site, file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(CONTENT)
    os.replace(other, file)


def overwritten(site: Site, file: Path) -> None:
    file.write_bytes(b"changed")
    os.utime(file, ns=(1, 1))


def needed(site: Site, file: Path) -> None:
    site.files.needed([WantedFile(path="q.gguf", size=len(CONTENT), sha256=SHA256)], "another")


def loaded(site: Site, file: Path) -> None:
    site.loaded.add("qwen")


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (replaced, "was replaced since"),
        (overwritten, "its content has changed"),
        (needed, "a load has needed it since"),
        (loaded, "qwen is loaded"),
    ],
)
async def test_file_that_is_another_or_in_use_by_now_stays(
    site: Site, happens: Callable[[Site, Path], None], why: str
) -> None:
    file = site.put("q.gguf", fetched_for="qwen")
    told = site.told("q.gguf")
    happens(site, file)
    reply = await site.drop(told)
    assert (reply.removed, reply.freed) == ((), 0)
    assert why in reply.kept[0].why
    assert file.exists()


async def test_content_that_was_not_meant_stays(site: Site) -> None:
    file = site.put("q.gguf", fetched_for="qwen")
    told = site.told("q.gguf").model_copy(update={"sha256": "0" * 64})
    assert "content has changed" in (await site.drop(told)).kept[0].why
    assert file.exists()


def test_loaded_model_keeps_its_files_in_use_without_a_write_at_each_look(site: Site) -> None:
    site.put("q.gguf", fetched_for="qwen")
    before = site.told("q.gguf").used_ms
    site.placed.in_use({"qwen"}, before + 1000, at_most_every_ms=5000)
    assert site.told("q.gguf").used_ms == before
    site.placed.in_use({"phi"}, before + 9000, at_most_every_ms=5000)
    assert site.told("q.gguf").used_ms == before
    site.placed.in_use({"qwen"}, before + 9000, at_most_every_ms=5000)
    assert site.told("q.gguf").used_ms == before + 9000


def test_two_links_to_one_file_take_room_once(site: Site) -> None:
    file = site.put("q.gguf", fetched_for="qwen")
    os.link(file, site.models / "r.gguf")
    site.placed.note({"r.gguf": site.models / "r.gguf"})
    assert site.files.noted([])[1] == len(CONTENT)


async def test_content_that_was_read_before_a_restart_is_told_after_it(site: Site) -> None:
    file = site.put("m/q.gguf")
    await Hashes().of(Tree(site.models), ("m", "q.gguf"))
    site.files = FetchedFiles(site.models, Hashes(), SystemClock(), lambda: site.loaded)
    assert (site.told("m/q.gguf").sha256, site.told("m/q.gguf").brought) == (SHA256, False)
    file.write_bytes(CONTENT[::-1])
    later_ns = file.stat().st_mtime_ns + 10**10
    os.utime(file, ns=(later_ns, later_ns))
    assert not site.told("m/q.gguf").sha256


async def test_nothing_is_told_of_where_a_link_leads_by_the_checksum_beside_the_link(site: Site) -> None:
    other = site.put("other.gguf")
    (site.models / "q.gguf").symlink_to(other)
    (site.models / "q.gguf.sha256").write_text(SHA256)
    assert not site.told("q.gguf").sha256


def test_content_of_an_earlier_releases_file_is_not_told_until_a_load_has_verified_it(site: Site) -> None:
    file = site.put("q.gguf")
    facts = file.stat()
    notes = store_root(site.models) / "placed.json"
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text(f'{{"q.gguf": {{"inode": {facts.st_ino}, "size": {facts.st_size}}}}}')
    assert not site.told("q.gguf").sha256
    wanted = [WantedFile(path="q.gguf", size=len(CONTENT), sha256=SHA256)]
    site.files.needed(wanted, "qwen")
    assert not site.told("q.gguf").sha256
    site.files.needed(wanted, "qwen", verified=True)
    assert site.told("q.gguf").sha256 == SHA256


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_path_leads_outside(tmp_path: Path, attack: str) -> None:
    tree = hostile_tree(tmp_path / "worker")
    site = Site(tree.root / "models")
    told = UnusedFile(path=ATTACKS[attack], sha256=SHA256)
    try:
        reply = await site.files.drop(FilesDrop(files=(told,)))
    except Invalid:
        pass
    else:
        assert not reply.freed
    assert tree.untouched()

"""The store on disk: blobs whole or absent, one writer each, nothing swept in use, and honest when full."""

import errno
import fcntl
import os
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from remuda.core.errors import Misconfigured
from remuda.oci.blobs import BlobStore, WantedBlob
from remuda.oci.disk import Partial, free_bytes, require_headroom, with_margin
from remuda.oci.errors import DiskFull
from tests.support.images import digest_of

pytestmark = pytest.mark.anyio

CONTENT = b"some bytes"
DIGEST = digest_of(CONTENT)
WANTED = WantedBlob("a blob", DIGEST, DIGEST, len(CONTENT))
GIB = 1 << 30
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2090, 1, 1, tzinfo=UTC)


def ignore(done: int) -> None:
    pass


async def put(store: BlobStore, content: bytes) -> str:
    digest = digest_of(content)
    async with store.claim(WantedBlob("a blob", digest, digest, len(content)), ignore) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(content)
        store.commit(claimed, digest)
    return digest


def age(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()))


async def test_a_blob_is_absent_until_it_is_whole(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    async with store.claim(WANTED, ignore) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT[:4])
        assert store.find(DIGEST) is None
        assert store.missing_bytes(DIGEST, len(CONTENT)) == len(CONTENT) - 4
        claimed.append(CONTENT[4:])
        assert claimed.digest == DIGEST
        store.commit(claimed, DIGEST)

    found = store.find(DIGEST)
    assert found is not None
    assert found.read_bytes() == CONTENT
    assert [blob.digest for blob in store.listing()] == [DIGEST]
    assert list((tmp_path / "partial").iterdir()) == []


async def test_a_claim_is_exclusive_and_survives_as_a_partial(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    async with store.claim(WANTED, ignore) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT[:4])
        assert store._try_claim(WANTED) is None

    async with store.claim(WANTED, ignore) as again:
        assert isinstance(again, Partial)
        again.restart()
        assert again.size == 0


async def test_a_finished_blob_needs_no_claim(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = await put(store, CONTENT)

    async with store.claim(WANTED, ignore) as claimed:
        assert claimed == store.path(digest)


async def test_a_blob_can_be_held_before_its_writer_lets_go_of_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    async with store.claim(WANTED, ignore) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT)
        path = store.commit(claimed, DIGEST)
        with path.open("rb") as reader:
            fcntl.flock(reader, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert store.sweep(set(), 0, FAR_AHEAD).freed_bytes == 0


async def test_sweeping_lets_go_of_the_old_and_keeps_the_named(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    old, kept, fresh = [await put(store, text) for text in (b"old", b"kept", b"fresh")]
    for digest in (old, kept):
        age(store.path(digest), LONG_AGO)
    stale = tmp_path / "partial" / "sha256-stale"
    stale.write_bytes(b"12345")
    age(stale, LONG_AGO)

    swept = store.sweep({kept}, GIB, LONG_AGO + timedelta(days=1))

    assert {blob.digest for blob in store.listing()} == {kept, fresh}
    assert (swept.blobs, swept.partials, swept.freed_bytes, swept.kept_bytes) == (1, 1, 3 + 5, 4 + 5)


async def test_what_is_in_use_is_not_swept(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = await put(store, b"read")
    async with store.claim(WANTED, ignore):
        with ExitStack() as holds:
            assert holds.enter_context(store.held(digest)) is not None
            assert store.sweep(set(), 0, FAR_AHEAD).freed_bytes == 0
        assert store.sweep(set(), 0, FAR_AHEAD).blobs == 1
        assert len(list((tmp_path / "partial").iterdir())) == 1
    assert store.sweep(set(), 0, FAR_AHEAD).partials == 1


async def test_what_belongs_to_nothing_is_counted_unless_something_is_at_work_on_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    kept, other = await put(store, b"kept"), await put(store, b"other")
    async with store.claim(WANTED, ignore) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT[:4])
        with store.held(other):
            assert store.unheld_bytes({kept}) == 0
        assert store.unheld_bytes({kept}) == len(b"other")
    assert store.unheld_bytes({kept}) == len(b"other") + 4
    assert store.unheld_bytes(frozenset()) == len(b"kept" + b"other") + 4


def test_what_is_not_there_cannot_be_held(tmp_path: Path) -> None:
    with BlobStore(tmp_path).held(DIGEST) as path:
        assert path is None


async def test_a_full_disk_is_explained_with_numbers_and_loses_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    async with store.claim(WANTED, ignore) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT[:4])
        written, claimed._descriptor = claimed._descriptor, os.open("/dev/full", os.O_WRONLY)
        with pytest.raises(DiskFull, match=r"a blob needs 6 B on the disk of .*, where .* are free"):
            claimed.append(CONTENT[4:])
        os.close(claimed._descriptor)
        claimed._descriptor = written

        claimed.append(CONTENT[4:])
        assert claimed.digest == DIGEST


async def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(Misconfigured, match=os.strerror(errno.ENOTDIR)):
        async with BlobStore(tmp_path / "store").claim(WANTED, ignore):
            pass


@pytest.mark.parametrize(
    ("payload", "needed"), [(0, GIB), (10 * GIB, 11 * GIB), (100 * GIB, 105 * GIB), (None, 2 * GIB)]
)
def test_the_margin_is_five_percent_or_a_gibibyte(payload: int | None, needed: int) -> None:
    assert with_margin(payload) == needed


def test_too_little_room_is_said_before_the_first_byte(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "made" / "yet"
    needed = r"the image needs 1\.0 EiB, and 51\.2 PiB more to stay free, on the disk of .* are free"
    with pytest.raises(DiskFull, match=needed):
        require_headroom(folder, 1 << 60, "the image")
    require_headroom(folder, 0, "nothing")
    assert free_bytes(folder) > 0


async def test_a_file_of_the_same_disk_is_taken_over_without_a_copy_if_its_bytes_are_right(
    tmp_path: Path,
) -> None:
    store, theirs = BlobStore(tmp_path / "store"), tmp_path / "theirs"
    theirs.write_bytes(CONTENT)

    assert not await run_sync(store.adopt, theirs, digest_of(b"others"))
    assert await run_sync(store.adopt, theirs, DIGEST)

    assert store.path(DIGEST).samefile(theirs)
    assert not await run_sync(store.adopt, tmp_path / "absent", DIGEST)
    assert [path.name for path in (tmp_path / "store" / "partial").iterdir()] == []


async def test_bytes_wanted_by_the_key_of_one_version_are_found_by_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    wanted = WantedBlob("a blob", "from:here", None, None, one_version=True)
    async with store.claim(wanted, ignore) as claimed:
        assert isinstance(claimed, Partial)
        claimed.append(CONTENT)
        store.link_key(wanted, DIGEST)
        assert store.find(DIGEST) is None
        store.commit(claimed, DIGEST)

    async with store.claim(wanted, ignore) as found:
        assert found == store.path(DIGEST)
    async with store.claim(WantedBlob("a blob", "from:here", None, None), ignore) as other:
        assert isinstance(other, Partial)  # What an address has now may be something else.


async def test_a_key_goes_after_its_blob(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = await put(store, CONTENT)
    wanted = WantedBlob("a blob", "from:here", None, None, one_version=True)
    store.link_key(wanted, digest)
    (key,) = (tmp_path / "keys").iterdir()
    store.sweep_partials(FAR_AHEAD)
    assert key.is_symlink()

    store.discard(digest)
    store.sweep_partials(LONG_AGO)
    assert key.is_symlink()
    store.sweep_partials(FAR_AHEAD, dry_run=True)
    assert key.is_symlink()
    store.sweep_partials(FAR_AHEAD)
    assert not key.is_symlink()

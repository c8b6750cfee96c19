"""Blobs on disk by their digest: complete and verified under blobs/, or on their way under partial/; and
which of them are deleted, by reference, age and budget.

Every file is its own lock (flock): the writer of a partial holds it alone, readers share a blob,
and what is held is not swept. The kernel lets go however a process ends.
"""

import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio
import structlog
from anyio.from_thread import check_cancelled

from remuda.oci import limits
from remuda.oci.disk import Partial, disk_trouble_explained
from remuda.oci.errors import RegistryFailed
from remuda.oci.reference import parse_digest

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredBlob:
    digest: str
    size: int
    used_at: datetime


def to_let_go(
    blobs: Sequence[StoredBlob], keep: Set[str], budget_bytes: int, unused_since: datetime
) -> list[StoredBlob]:
    """Never a blob in `keep`, even when those alone exceed the budget.

    Of the others, all that were not used since `unused_since`; then, least recently used first, as many as it
    takes to fit the budget.
    """
    total = sum(blob.size for blob in blobs)
    going: list[StoredBlob] = []
    for blob in sorted(blobs, key=lambda blob: (blob.used_at, blob.digest)):
        if blob.digest not in keep and (blob.used_at < unused_since or total > budget_bytes):
            going.append(blob)
            total -= blob.size
    return going


OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class WantedBlob:
    """Bytes to bring. Without a digest they are named by `key` until they are all there."""

    name: str
    """For people."""
    key: str
    digest: str | None
    size: int | None
    one_version: bool = False
    """The key stands for one version of the bytes, so that they are continued even without a digest."""


@dataclass(frozen=True, slots=True)
class Swept:
    blobs: int
    partials: int
    freed_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class SweptPartials:
    count: int
    freed_bytes: int


class BlobStore:
    """A folder of blobs. Any number of processes may use one at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs"
        self._partials = root / "partial"
        self._keys = root / "keys"

    def path(self, digest: str) -> Path:
        """Where the blob is, if it is."""
        algorithm, _, value = parse_digest(digest).partition(":")
        return self._blobs / algorithm / value

    def find(self, digest: str) -> Path | None:
        """The blob's path when it is there, and a note that it was of use."""
        path = self.path(digest)
        try:
            os.utime(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:  # A folder that others fill for us is as good.
            return path if path.exists() else None
        return path

    @contextmanager
    def held(self, digest: str) -> Iterator[Path | None]:
        """The blob stays while the block runs. None when it is not there."""
        path = self.path(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield self.find(digest)  # Swept between opening and locking, it is gone after all.
        finally:
            os.close(descriptor)

    def open_as_it_comes(self, digest: str) -> int | None:
        """A descriptor of the blob, or of what there is of it so far, which nothing has verified."""
        for path in (self.path(digest), self._partial_path(digest), self.path(digest)):  # It may be moved.
            with suppress(FileNotFoundError, NotADirectoryError):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return None

    @asynccontextmanager
    async def claim(self, wanted: WantedBlob, on_bytes: OnBytes) -> AsyncIterator[Partial | Path]:
        """The finished blob, or the right to finish it, which is exclusive while the block runs.

        Waits as long as another process makes progress with it; `on_bytes` hears how far they are.
        """
        waited = _Waited(wanted.name, on_bytes)
        while True:
            found = self._found(wanted)
            partial = None if found is not None else self._try_claim(wanted)
            if partial is not None:
                # It may have been finished between looking and claiming.
                found = self._found(wanted)
                if found is None:
                    break
                partial.discard()
            if found is not None:
                yield found
                return
            await waited.a_little(self._partial_path(wanted.key))
        try:
            yield partial
        finally:
            partial.close()

    def commit(self, partial: Partial, digest: str) -> Path:
        """Make a finished partial a blob. The caller has checked size and digest. Blocks on the disk."""
        path = self.path(digest)
        with disk_trouble_explained(partial.name, self.root, 0):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.move_to(path)
        return path

    def link_key(self, wanted: WantedBlob, digest: str) -> None:
        """Bytes that were wanted by a key alone can be found by it once they are a blob.

        Before that, or bytes whose fetcher ends in between would be fetched again. Blocks on the disk.
        """
        if wanted.digest is not None or not wanted.one_version:
            return
        link = self._key_path(wanted.key)
        with disk_trouble_explained(wanted.name, self.root, 0):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(Path("..") / self.path(digest).relative_to(self.root))

    def adopt(self, source: Path, digest: str, *, verified: bool = False) -> bool:
        """Take over a file of the same disk without copying it; False when that cannot be done, or its bytes
        are others, unless that was `verified`. Only for files that are no longer written. Blocks on the disk;
        can be cancelled."""
        path = self.path(digest)
        link = self._partials / f"link-{os.getpid()}-{path.name}"
        try:
            self._partials.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.hardlink_to(source)
        except OSError:  # Another disk, or another user's file: it is copied instead.
            return False
        try:
            same = verified or f"sha256:{_sha256_of(link)}" == digest
            if same:
                link.rename(path)
        finally:
            link.unlink(missing_ok=True)
        return same

    def missing_bytes(self, digest: str, size: int) -> int:
        """How much of the blob has yet to come."""
        if self.find(digest) is not None:
            return 0
        return max(size - _size(self._partial_path(digest)), 0)

    def listing(self) -> list[StoredBlob]:
        """Every finished blob. Blocks on the disk."""
        blobs: list[StoredBlob] = []
        for path in self._blobs.glob("*/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                used_at = datetime.fromtimestamp(status.st_mtime, UTC)
                blobs.append(StoredBlob(digest_of(path), status.st_size, used_at))
        return blobs

    def unplaced(self) -> dict[str, int]:
        """How much is here of each blob, finished or not, by digest. Blocks on the disk."""
        sizes = {blob.digest: blob.size for blob in self.listing()}
        for path in self._partials.glob("sha256-*"):
            with suppress(FileNotFoundError):
                sizes.setdefault(path.name.replace("-", ":", 1), path.stat().st_size)
        return sizes

    def sweep(
        self, keep: Set[str], budget_bytes: int, unused_since: datetime, *, partials: bool = True
    ) -> Swept:
        """Let go of blobs by reference, age and budget, and, if so wanted, of partials that were not touched
        since.

        Blocks on the disk. What another task or process holds stays, whatever the rules say.
        """
        blobs = self.listing()
        gone = [
            blob
            for blob in to_let_go(blobs, keep, budget_bytes, unused_since)
            if _remove_unless_held(self.path(blob.digest))
        ]
        freed = sum(blob.size for blob in gone)
        kept = sum(blob.size for blob in blobs) - freed
        begun = self.sweep_partials(unused_since) if partials else SweptPartials(0, 0)
        return Swept(len(gone), begun.count, freed + begun.freed_bytes, kept)

    def unheld_bytes(self, keep: Set[str]) -> int:
        """The size of blobs beside these and of partials that nothing is at work on. Blocks on the disk."""
        found = [self.path(blob.digest) for blob in self.listing() if blob.digest not in keep]
        return sum(_size(path) for path in (*found, *self._partials.glob("*")) if not _is_held(path))

    def sweep_partials(self, unused_since: datetime, *, dry_run: bool = False) -> SweptPartials:
        """Let go of downloads that were not continued since; `dry_run` only counts. Blocks on the disk."""
        count = freed = 0
        if not dry_run:
            self._unlink_stale_keys(unused_since)
        for path in self._partials.glob("*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                stale = datetime.fromtimestamp(status.st_mtime, UTC) < unused_since
                if stale and (dry_run or _remove_unless_held(path)):
                    count += 1
                    freed += status.st_size
        return SweptPartials(count, freed)

    def discard(self, digest: str) -> bool:
        """Let go of one blob; False when it is not there, or it is in use. Blocks on the disk."""
        return _remove_unless_held(self.path(digest))

    def lone_bytes(self, digest: str) -> int:
        """What letting go of it would free: a file with other links stays on the disk."""
        size = 0
        for path in (self._partial_path(digest), self.path(digest)):
            with suppress(FileNotFoundError):
                status = path.stat()
                size += status.st_size if status.st_nlink == 1 else 0
        return size

    def let_go(self, digest: str) -> bool:
        """Of a blob and of what has come of it so far; False while something is at work on it. Blocks on the
        disk."""
        return all(
            _remove_unless_held(path) or not path.exists()
            for path in (self._partial_path(digest), self.path(digest))
        )

    def _found(self, wanted: WantedBlob) -> Path | None:
        if wanted.digest is not None:
            return self.find(wanted.digest)
        digest = self._digest_behind(wanted.key) if wanted.one_version else None
        return self.find(digest) if digest is not None else None

    def _digest_behind(self, key: str) -> str | None:
        try:
            blob = self._key_path(key).readlink()
        except OSError:
            return None
        return digest_of(blob)

    def _unlink_stale_keys(self, unused_since: datetime) -> None:
        """Those whose blob has gone, or has not become one."""
        for link in self._keys.glob("*"):
            with suppress(FileNotFoundError):
                stale = datetime.fromtimestamp(link.lstat().st_mtime, UTC) < unused_since
                if stale and not link.exists():
                    link.unlink()

    def _partial_path(self, key: str) -> Path:
        return self._partials / key.replace(":", "-")

    def _key_path(self, key: str) -> Path:
        return self._keys / key.replace(":", "-")

    def _try_claim(self, wanted: WantedBlob) -> Partial | None:
        with disk_trouble_explained(wanted.name, self.root, wanted.size or 0):
            self._partials.mkdir(parents=True, exist_ok=True)
            algorithm = wanted.digest.partition(":")[0] if wanted.digest is not None else "sha256"
            return Partial.claimed(self._partial_path(wanted.key), wanted.name, wanted.size, algorithm)


def digest_of(blob: Path) -> str:
    """The digest of a finished blob, by where it is."""
    return f"{blob.parent.name}:{blob.name}"


class _Waited:
    """For another process's download, which ends, breaks, or gets stuck."""

    def __init__(self, name: str, on_bytes: OnBytes) -> None:
        self._name = name
        self._on_bytes = on_bytes
        self._size = -1
        self._since = anyio.current_time()

    async def a_little(self, partial: Path) -> None:
        size = _size(partial)
        if size != self._size:
            self._size, self._since = size, anyio.current_time()
            self._on_bytes(max(size, 0))
        elif anyio.current_time() - self._since > limits.CLAIM_STALL_S:
            raise RegistryFailed(
                f"another download of {self._name} has got stuck",
                hint=f"end the process that has {partial} open",
            )
        await anyio.sleep(limits.CLAIM_POLL_S)


def _sha256_of(path: Path) -> str:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(limits.COPY_BYTES):
            check_cancelled()
            hashed.update(chunk)
    return hashed.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _alone(path: Path) -> Iterator[bool | None]:
    """Whether the file is this one's alone while the block runs; None: it is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _is_held(path: Path) -> bool:
    with _alone(path) as alone:
        return alone is False


def _remove_unless_held(path: Path) -> bool:
    with _alone(path) as alone:
        if alone:
            path.unlink(missing_ok=True)
        return bool(alone)

"""A file on its way: it arrives under a hidden name, is hashed as it comes, and takes its place when whole.

All methods block on the disk, so they are called in threads. What replaces a file never changes it: where
the old one is open, or shared by a hard link, it stays as it was.
"""

import fcntl
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remuda.core.errors import Invalid, Unavailable
from remuda.oci.disk import Writeback, disk_trouble_explained
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.sidecars import keep_hash, remove_partials, remove_target

if TYPE_CHECKING:
    from hashlib import _Hash

_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE_MODE: Final = 0o644


class PartialFile:
    """Locked against other processes while it is open. Unavailable when another has it."""

    def __init__(
        self, folder: int, name: str, entry: str, *, where: Path, what: str, total: int, hashes: Hashes
    ) -> None:
        """`where` and `what` are for messages; `total` is the expected size, 0 when unknown."""
        self._folder = os.dup(folder)
        self._name = name
        self._entry = entry
        self._where = where
        self._what = what
        self._total = total
        self._hashes = hashes
        self._descriptor = -1
        try:
            self._descriptor = os.open(entry, _OPEN, _FILE_MODE, dir_fd=folder)
            facts = self._lock()
        except BaseException:
            self._close_descriptors()
            raise
        self.size = facts.st_size
        os.lseek(self._descriptor, 0, os.SEEK_END)
        self._hash: _Hash | None = hashlib.sha256() if not self.size else hashes.take_unfinished(facts)
        self._writeback = Writeback(self._descriptor, self.size)

    def _lock(self) -> os.stat_result:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable("another upload of this file is under way") from None
        facts = os.fstat(self._descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
            raise Invalid("the partial upload is not a plain file")
        return facts

    def append(self, data: bytes) -> None:
        """DiskFull when it does not fit; what did fit counts and is kept."""
        view = memoryview(data)
        with disk_trouble_explained(self._what, self._where, max(self._total - self.size, len(data))):
            while view:
                written = os.write(self._descriptor, view)
                if self._hash is not None:
                    self._hash.update(view[:written])
                self.size += written
                view = view[written:]
        self._writeback.reached(self.size)

    def cut_to(self, size: int) -> None:
        """Forget what was appended beyond."""
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)
        self.size, self._hash = size, None if size else hashlib.sha256()

    @property
    def hashed(self) -> bool:
        """All of it was hashed as it arrived."""
        return self._hash is not None

    def digest(self) -> str:
        """Of all of it, which is read again if it did not arrive in this life."""
        return self._hashes.read(self._descriptor) if self._hash is None else self._hash.hexdigest()

    def publish(self, digest: str) -> None:
        """Take the place of the file, also after a power cut. What can be checked was; an empty digest: it
        has no known hash."""
        with disk_trouble_explained(self._what, self._where, self._total):
            os.fsync(self._descriptor)
            try:
                os.rename(self._entry, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except (IsADirectoryError, NotADirectoryError):
                raise Invalid("is a directory") from None
            remove_target(self._folder, self._name)  # First: with it the file would count as a partial one.
            remove_partials(self._folder, self._name)
            if digest:
                self._hashes.remember(os.fstat(self._descriptor), digest)
                keep_hash(self._folder, self._name, digest)
            os.fsync(self._folder)
        self._hash = None

    def discard(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._entry, dir_fd=self._folder)
        self._hash = None
        self.close()

    def close(self) -> None:
        """Keep the file, and what is known of it. Closing twice does nothing."""
        if self._descriptor >= 0 and self._hash is not None:
            self._hashes.keep_unfinished(os.fstat(self._descriptor), self._hash)
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for descriptor in (self._descriptor, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._folder = -1

"""A download on its way: a locked file that only grows, and the digest of what it holds.

All methods block on the disk, so they are called in threads. Nothing but the file itself is needed to go on
after a crash: its bytes are hashed again, and if they were damaged the digest at the end will tell.
"""

import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from anyio.from_thread import check_cancelled

from remuda.oci import limits
from remuda.oci.growing import GrowingFile, Growth
from remuda.oci.space import disk_trouble_explained
from remuda.oci.writeback import Writeback


class Partial:
    """Made by `claimed`. Its `size` and `digest` are of what was written or `reread`."""

    def __init__(self, descriptor: int, path: Path, name: str, expected: int | None, algorithm: str) -> None:
        self.name = name
        self.size = 0
        self._descriptor = descriptor
        self._path = path
        self._expected = expected
        self._algorithm = algorithm
        self._hash = hashlib.new(algorithm)
        self._writeback = Writeback(descriptor)
        self._growth = Growth()

    @classmethod
    def claimed(cls, path: Path, name: str, expected: int | None, algorithm: str) -> "Partial | None":
        """None while somebody else has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Until the lock was ours the file could be finished or swept: then this is no longer the partial.
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return cls(descriptor, path, name, expected, algorithm)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    @property
    def digest(self) -> str:
        return f"{self._algorithm}:{self._hash.hexdigest()}"

    def reread(self) -> None:
        """Take over what an earlier life left behind. Can be cancelled."""
        self._hash = hashlib.new(self._algorithm)
        self.size = 0
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        while chunk := os.read(self._descriptor, limits.COPY_BYTES):
            check_cancelled()
            self._hash.update(chunk)
            self.size += len(chunk)
        self._writeback = Writeback(self._descriptor, self.size)
        self._growth.reached(self.size)

    def append(self, data: bytes) -> None:
        """DiskFull when it does not fit; what did fit counts and is kept."""
        view = memoryview(data)
        with disk_trouble_explained(self.name, self._path.parent, (self._expected or 0) - self.size):
            while view:
                written = os.write(self._descriptor, view)
                self._hash.update(view[:written])
                self.size += written
                view = view[written:]
        self._writeback.reached(self.size)
        self._growth.reached(self.size)

    def restart(self) -> None:
        """Forget everything."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._hash = hashlib.new(self._algorithm)
        self.size = 0
        self._writeback = Writeback(self._descriptor)
        self._growth.restarted()

    def opened(self) -> GrowingFile:
        """To be read while it grows. FileNotFoundError when it has become a blob."""
        return GrowingFile(self._path, self._growth)

    def move_to(self, path: Path) -> None:
        """Be a blob from here on, also after a power cut. Size and digest were checked."""
        self._growth.verified()
        os.fsync(self._descriptor)
        self._path.rename(path)
        # Others may read it from now on. They would wait for us in vain: that we close it takes the event
        # loop, which is theirs, too.
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        self.close()

    def close(self) -> None:
        """Let go of the lock and keep the file. Closing twice does nothing."""
        self._growth.ended()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

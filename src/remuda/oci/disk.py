"""A download on the disk: room is asked for before the first byte and explained when it runs out after all,
writing begins early, so that the sync at the end is short, and a partial file is locked and only grows.

All methods of `Partial` block on the disk, so they are called in threads. Nothing but the file itself is
needed to go on after a crash: its bytes are hashed again, and if they were damaged the digest at the end will
tell. It can be read while it arrives: the end of the file is reached only when all of it has the digest that
was promised, so that whatever was made of the bytes before can be thrown away.
"""

import asyncio
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Semaphore, Thread
from typing import Final, Protocol

import anyio
from anyio.from_thread import check_cancelled
from anyio.to_thread import run_sync

from remuda.core.errors import Misconfigured, RemudaError
from remuda.oci import limits
from remuda.oci.errors import disk_full

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def with_margin(payload_bytes: int | None) -> int:
    """What should be free before so much is written; None when the amount is unknown."""
    if payload_bytes is None:
        return limits.UNKNOWN_PAYLOAD_BYTES
    return payload_bytes + max(int(payload_bytes * limits.MARGIN_SHARE), limits.MARGIN_BYTES_MIN)


def require_headroom(folder: Path, payload_bytes: int | None, what: str) -> None:
    """DiskFull, with the numbers, unless the payload and a margin fit where `folder` is or will be.

    A payload of nothing needs no room: what is there already can be used on a full disk.
    """
    needed = with_margin(payload_bytes)
    free = free_bytes(folder)
    if payload_bytes != 0 and free < needed:
        known = needed if payload_bytes is None else payload_bytes
        raise disk_full(what, folder, known, free, needed - known)


def free_bytes(folder: Path) -> int:
    """Free to this user, on the disk that holds the folder or will once it is made."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


@contextmanager
def disk_trouble_explained(what: str, folder: Path, needed_bytes: int) -> Iterator[None]:
    """DiskFull or Misconfigured instead of a bare OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise disk_full(what, folder, needed_bytes, free_bytes(folder)) from error
        raise Misconfigured(
            f"{what} cannot be kept in {folder}: {error.strerror or error}",
            hint="correct the folder's permissions or choose another",
        ) from error


EVERY_BYTES: Final = 8 << 20
_BEGIN: Final = 2  # SYNC_FILE_RANGE_WRITE: start writing, wait for nothing.


def _no_writeback(descriptor: int, offset: int, size: int) -> None:
    """For systems without sync_file_range."""


def _chosen() -> Callable[[int, int, int], None]:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
    if call is None:
        return _no_writeback
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def begin(descriptor: int, offset: int, size: int) -> None:
        call(descriptor, offset, size, _BEGIN)  # A failure does not matter.

    return begin


begin_writeback: Final = _chosen()


class Writeback:
    """Of one file that is written from `start` on."""

    def __init__(self, descriptor: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._begun = start

    def reached(self, size: int) -> None:
        """The file was written up to here."""
        if size - self._begun >= EVERY_BYTES:
            begin_writeback(self._descriptor, self._begun, size - self._begun)
            self._begun = size


class StartedOver(Exception):
    """The bytes read so far are not, or may not be, those of the finished file."""


class Growth:
    """How far one file is. Told by the thread that writes it, waited for by those that read."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._size = 0
        self._life = 0
        self._final = False
        self._ended = False

    @property
    def life(self) -> int:
        """Changes whenever the file starts over."""
        return self._life

    def reached(self, size: int) -> None:
        with self._changed:
            self._size = size
            self._changed.notify_all()

    def restarted(self) -> None:
        with self._changed:
            self._size, self._life = 0, self._life + 1
            self._changed.notify_all()

    def verified(self) -> None:
        """It is whole, and as promised."""
        with self._changed:
            self._final = True
            self._changed.notify_all()

    def ended(self) -> None:
        """Nothing will come any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def size_beyond(self, position: int, life: int) -> int:
        """The size once it is larger than `position`, or once it is final. StartedOver when it cannot be."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._size > position or self._final or self._ended or self._life != life
            )
            if self._life != life or (self._size <= position and not self._final):
                raise StartedOver
            return self._size


class GrowingFile:
    """Reads blocks until there is something to read. Used by one thread, closed by its opener."""

    def __init__(self, path: Path, growth: Growth) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._growth = growth
        self._life = growth.life
        self._position = 0

    def read(self, size: int, /) -> bytes:
        """Some bytes; none at the end of a verified file. StartedOver when that will not come."""
        available = self._growth.size_beyond(self._position, self._life) - self._position
        data = os.pread(self._descriptor, min(size, available), self._position)
        if available and not data:
            raise StartedOver
        self._position += len(data)
        return data

    def close(self) -> None:
        os.close(self._descriptor)


class SideHash:
    """A hash of what is written, computed by a thread of its own, so that a download takes as long as the
    slower of the two. What is given must not change. Used by one thread at a time; `close` ends it."""

    def __init__(self, algorithm: str) -> None:
        self._hash = hashlib.new(algorithm)
        self._given: SimpleQueue[bytes | memoryview | None] = SimpleQueue()
        self._free = Semaphore(limits.CHUNKS_BEHIND_MAX)
        self._thread: Thread | None = None

    def update(self, data: bytes | memoryview) -> None:
        """Waits while too much is waiting."""
        if self._thread is None:
            self._thread = Thread(target=self._compute, name="hash", daemon=True)
            self._thread.start()
        self._free.acquire()
        self._given.put(data)

    def hexdigest(self) -> str:
        """Of all that was given."""
        for _ in range(limits.CHUNKS_BEHIND_MAX):
            self._free.acquire()
        for _ in range(limits.CHUNKS_BEHIND_MAX):
            self._free.release()
        return self._hash.hexdigest()

    def close(self) -> None:
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
            self._thread = None

    def _compute(self) -> None:
        while (data := self._given.get()) is not None:
            self._hash.update(data)
            del data  # Else it would stay until the next one comes.
            self._free.release()


class Partial:
    """Made by `claimed`. Its `size` and `digest` are of what was written or `reread`."""

    def __init__(self, descriptor: int, path: Path, name: str, expected: int | None, algorithm: str) -> None:
        self.name = name
        self.size = 0
        self._descriptor = descriptor
        self._path = path
        self._expected = expected
        self._algorithm = algorithm
        self._hash = SideHash(algorithm)
        self._writeback = Writeback(descriptor)
        self._growth = Growth()

    @classmethod
    def claimed(cls, path: Path, name: str, expected: int | None, algorithm: str) -> "Partial | None":
        """None while another process has it."""
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
        self._hash_anew()
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
        self._hash_anew()
        self.size = 0
        self._writeback = Writeback(self._descriptor)
        self._growth.restarted()

    def _hash_anew(self) -> None:
        self._hash.close()
        self._hash = SideHash(self._algorithm)

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
        self._hash.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Appendable(Protocol):
    """A file that grows. `append` blocks on the disk, and raises a RemudaError when it cannot."""

    @property
    def size(self) -> int: ...

    def append(self, data: bytes) -> None: ...


class Appender:
    """Opened by `appending`, in an event loop. `size` is the partial's once all that was given is written."""

    def __init__(self, partial: Appendable) -> None:
        self.size = partial.size
        self._partial = partial
        self._given: SimpleQueue[bytes | None] = SimpleQueue()
        self._free = Semaphore(limits.CHUNKS_BEHIND_MAX)
        self._loop = asyncio.get_running_loop()
        # For room: told by the thread that writes, for to wait in another one takes longer than most writes.
        self._waiting: asyncio.Event | None = None
        self._failure: RemudaError | None = None
        self._thread = Thread(target=self._write, name="append", daemon=True)
        self._thread.start()

    async def give(self, data: bytes) -> None:
        """Waits while too much is waiting. Raises what an earlier write failed with."""
        while not self._free.acquire(blocking=False):
            room = self._waiting = asyncio.Event()
            if self._free.acquire(blocking=False):  # Made just before it would have been told.
                break
            await room.wait()
        self.check()
        self.size += len(data)
        self._given.put(data)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Returns when all that was given is written. Blocks."""
        self._given.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (data := self._given.get()) is not None:
            if self._failure is None:  # Else it is only taken, so that no writer waits for room.
                try:
                    self._partial.append(data)
                except RemudaError as failure:
                    self._failure = failure
            del data
            self._free.release()
            if (waiting := self._waiting) is not None:
                self._loop.call_soon_threadsafe(waiting.set)


@asynccontextmanager
async def appending(partial: Appendable) -> AsyncIterator[Appender]:
    """The partial has everything that was given when the block ends, however it ends."""
    appender = Appender(partial)
    try:
        yield appender
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(appender.finish)
    appender.check()

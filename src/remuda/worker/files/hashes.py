"""SHA-256 of files, remembered for as long as a file is the same one: by device, inode, size and time of
modification in memory, and in its sidecar. Read in threads, few at a time, each file once."""

import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync

from remuda.core.errors import Unavailable
from remuda.worker.files import limits
from remuda.worker.files.sidecars import keep_hash, kept_hash
from remuda.worker.files.tree import Tree

if TYPE_CHECKING:
    from hashlib import _Hash

FileIdentity = tuple[int, int, int, int]


def identity(facts: os.stat_result) -> FileIdentity:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


@dataclass(frozen=True, slots=True)
class WholeFile:
    size: int
    identity: FileIdentity
    sha256: str  # Empty: not known yet.


class Hashes:
    """`stop` ends what is being read: the process is about to end."""

    def __init__(self) -> None:
        self._known: OrderedDict[FileIdentity, str] = OrderedDict()
        self._unfinished: OrderedDict[tuple[int, int], tuple[int, _Hash]] = OrderedDict()
        self._guard = Lock()
        self._stopped = Event()
        self._reading: dict[FileIdentity, anyio.Event] = {}
        self.threads = anyio.CapacityLimiter(limits.HASHED_AT_ONCE_MAX)

    def stop(self) -> None:
        self._stopped.set()

    def look(self, tree: Tree, parts: Sequence[str]) -> WholeFile:
        """What is known without reading the file. NotFound or Invalid. Blocks on the disk."""
        with tree.open_file(parts) as descriptor, tree.open_folder(parts[:-1]) as folder:
            facts = os.fstat(descriptor)
            digest = self.recalled(facts) or kept_hash(folder, parts[-1], facts)
        return WholeFile(facts.st_size, identity(facts), digest)

    async def of(self, tree: Tree, parts: Sequence[str]) -> WholeFile:
        """Read if it must be, while others who ask for the same wait."""
        while True:
            found = await run_sync(self.look, tree, parts)
            if found.sha256:
                return found
            if (other := self._reading.get(found.identity)) is None:
                break
            await other.wait()
        done = self._reading[found.identity] = anyio.Event()
        try:
            return await run_sync(self._read, tree, parts, limiter=self.threads)
        finally:
            del self._reading[found.identity]
            done.set()

    def recalled(self, facts: os.stat_result) -> str:
        with self._guard:
            return self._known.get(identity(facts), "")

    def told(self, path: Path) -> str:
        """What is known of a file itself, no link, without reading it: here, or from its sidecar, which an
        earlier process may have written. Empty: nothing. Raises OSError. Blocks on the disk."""
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            return ""
        if known := self.recalled(facts):
            return known
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return kept_hash(folder, path.name, facts)
        finally:
            os.close(folder)

    def remember(self, facts: os.stat_result, digest: str) -> None:
        with self._guard:
            self._known[identity(facts)] = digest
            while len(self._known) > limits.HASHES_KNOWN_MAX:
                self._known.popitem(last=False)

    def keep_unfinished(self, facts: os.stat_result, state: "_Hash") -> None:
        """Of a partial upload, all of which was hashed as it arrived."""
        with self._guard:
            self._unfinished[facts.st_dev, facts.st_ino] = (facts.st_size, state)
            while len(self._unfinished) > limits.UNFINISHED_HASHES_MAX:
                self._unfinished.popitem(last=False)

    def take_unfinished(self, facts: os.stat_result) -> "_Hash | None":
        """None: it has to be read again."""
        with self._guard:
            size, state = self._unfinished.pop((facts.st_dev, facts.st_ino), (-1, None))
        return state if size == facts.st_size else None

    def read(self, descriptor: int) -> str:
        """The hash of all of the file. Blocks on the disk."""
        state, position = hashlib.sha256(), 0
        while chunk := os.pread(descriptor, limits.READ_BYTES, position):
            if self._stopped.is_set():
                raise Unavailable("this worker is stopping")
            state.update(chunk)
            position += len(chunk)
        return state.hexdigest()

    def _read(self, tree: Tree, parts: Sequence[str]) -> WholeFile:
        with tree.open_file(parts) as descriptor:
            before = os.fstat(descriptor)
            digest = self.read(descriptor)
            if identity(os.fstat(descriptor)) != identity(before):
                raise Unavailable("the file changed while it was read")
        self.remember(before, digest)
        with tree.open_folder(parts[:-1]) as folder:
            keep_hash(folder, parts[-1], digest)
        return WholeFile(before.st_size, identity(before), digest)

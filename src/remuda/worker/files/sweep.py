"""Removes what will not be used again: partial uploads that have not grown for a day, and the inputs and
outputs of requests of the day before. Looks at the disk now and then, in a thread."""

import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, NotFound
from remuda.worker.files import limits
from remuda.worker.files.areas import FileAreas
from remuda.worker.files.keys import TARGET_SUFFIX, Area, FilePlace, is_partial
from remuda.worker.files.sidecars import foreign_target
from remuda.worker.files.tree import Tree
from remuda.worker.files.uploads import EphemeralUse

log = structlog.get_logger(__name__)


class Sweeper:
    def __init__(self, areas: FileAreas, clock: Clock, ephemeral: EphemeralUse) -> None:
        self._areas = areas
        self._clock = clock
        self._ephemeral = ephemeral

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                removed = await run_sync(self.sweep)
            except OSError as error:
                log.warning("files_not_swept", error=str(error))
            else:
                if removed:
                    log.info("stale_files_removed", count=removed)
            await anyio.sleep(limits.SWEEP_EVERY_S)

    def sweep(self) -> int:
        """How many files were removed. Blocks on the disk."""
        now = self._clock.now().timestamp()
        sweeping = _Sweeping(now)
        for area, tree in self._areas.trees.items():
            sweeping.begin_area()
            sweeping.folder(tree, area, ())
        self._ephemeral.bytes = sweeping.ephemeral_bytes
        return sweeping.removed


class _Sweeping:
    def __init__(self, now: float) -> None:
        self.removed = 0
        self.ephemeral_bytes = 0
        self._now = now
        self._looked_at = 0

    def begin_area(self) -> None:
        self._looked_at = 0

    def folder(self, tree: Tree, area: Area, parts: Sequence[str]) -> None:
        below: list[str] = []
        try:
            with tree.open_folder(parts) as folder:
                for name in os.listdir(folder):
                    self._looked_at += 1
                    if self._looked_at > limits.SWEPT_ENTRIES_MAX:
                        return
                    with suppress(FileNotFoundError):
                        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if stat.S_ISDIR(facts.st_mode):
                            below.append(name)
                        elif stat.S_ISREG(facts.st_mode):
                            self._file(folder, area, parts, name, facts)
        except (NotFound, Invalid):  # There is no such area, or it went away.
            return
        for name in below:
            if len(parts) < limits.FOLDERS_DEEP_MAX:
                self.folder(tree, area, (*parts, name))
                self._empty_folder(tree, area, parts, name)

    def _file(self, folder: int, area: Area, parts: Sequence[str], name: str, facts: os.stat_result) -> None:
        age = self._now - facts.st_mtime
        if is_partial(name):
            if age > limits.PARTIAL_STALE_S and _unlocked(folder, name):
                self._remove(folder, name)
        elif name.endswith(TARGET_SUFFIX):
            self._foreign(folder, name.removesuffix(TARGET_SUFFIX))
        elif FilePlace(area, (*parts, name)).of_request:
            if age > limits.EPHEMERAL_STALE_S:
                self._remove(folder, name)
            else:
                self.ephemeral_bytes += facts.st_size

    def _foreign(self, folder: int, name: str) -> None:
        """A partial upload as a LocalAI worker leaves it."""
        if not foreign_target(folder, name):
            return
        with suppress(FileNotFoundError):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if self._now - facts.st_mtime > limits.PARTIAL_STALE_S and stat.S_ISREG(facts.st_mode):
                self._remove(folder, name)
                self._remove(folder, f"{name}{TARGET_SUFFIX}")

    def _remove(self, folder: int, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            self.removed += 1

    def _empty_folder(self, tree: Tree, area: Area, parts: Sequence[str], name: str) -> None:
        """Of a request whose files are gone; one that is new is about to be used."""
        if not FilePlace(area, (*parts, name)).of_request:
            return
        with suppress(NotFound, Invalid, OSError), tree.open_folder(parts) as folder:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if self._now - facts.st_mtime > limits.EPHEMERAL_STALE_S:
                os.rmdir(name, dir_fd=folder)


def _unlocked(folder: int, name: str) -> bool:
    """Whether no upload to it is in progress."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True

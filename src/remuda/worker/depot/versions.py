"""Installed versions by name, each present whole or not at all, whatever ends the process at whatever moment.

Once a new version lies in `ready` it is decided upon. All that follows are renames which `settle` can begin
or go on with from any point, so a crash needs no journal: what lies where says what is left to do.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

import psutil

from remuda.core.errors import NotFound
from remuda.worker.depot.layout import PROVEN_FILE, START_FAILED_FILE, DepotLayout


@dataclass(frozen=True, slots=True)
class RunningProgram:
    pid: int
    name: str


def program_running_in(folder: Path) -> RunningProgram | None:
    """One that works in the folder or runs a program of it, also if the folder was moved since. Those of
    other users that may not be looked at do not count. Blocks while it looks at all processes."""
    real = folder.resolve()
    for process in psutil.process_iter(["name", "cwd", "exe"]):
        places = (process.info["cwd"], process.info["exe"])
        if any(place and Path(place).is_relative_to(real) for place in places):
            return RunningProgram(process.pid, process.info["name"])
    return None


class Disk(Protocol):
    """The steps that change what others see, and who would miss what is to go."""

    def in_use(self, path: Path) -> bool: ...
    def move(self, source: Path, target: Path) -> None: ...
    def discard(self, path: Path) -> None: ...
    def mark(self, path: Path) -> None: ...


class SystemDisk:
    """Each step is on the disk when it returns."""

    def in_use(self, path: Path) -> bool:
        """A process runs from it."""
        return program_running_in(path) is not None

    def move(self, source: Path, target: Path) -> None:
        """Rename within one file system. The target must not be there."""
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        for folder in {source.parent, target.parent}:
            _sync(folder)

    def discard(self, path: Path) -> None:
        """Remove a folder or file, if it is there, also where the folders in it may not be written."""
        if path.is_symlink() or path.is_file():
            path.unlink()
            return
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        with suppress(FileNotFoundError):
            shutil.rmtree(path)

    def mark(self, path: Path) -> None:
        path.touch()
        _sync(path.parent)


class VersionStore:
    """Callers hold the name's lock. Blocks on the disk."""

    def __init__(self, places: DepotLayout, disk: Disk | None = None) -> None:
        self._places = places
        self._disk = disk or SystemDisk()

    def stage(self, name: str) -> Path:
        """A fresh, empty folder in which to make a version."""
        staging = self._places.staging(name)
        self._disk.discard(staging)
        staging.mkdir(parents=True)
        return staging

    def abandon(self, name: str) -> None:
        self._disk.discard(self._places.staging(name))

    def commit(self, name: str) -> None:
        """Let the staged version, whole and synced, take its place."""
        self.settle(name)
        self._disk.move(self._places.staging(name), self._places.ready(name))
        self.settle(name)

    def settle(self, name: str) -> None:
        """Finish what was decided, and tidy up after it. Does nothing when there is nothing to do."""
        if _exists(self._places.ready(name)):
            self._make_way(name)
            self._disk.move(self._places.ready(name), self._places.installed(name))
        self._empty_trash(name)

    def is_proven(self, name: str) -> bool:
        """There is nothing left for `mark_proven` to do. Needs no lock."""
        installed = self._places.installed(name)
        left = (self._places.previous(name), self._places.trash(name), installed / START_FAILED_FILE)
        return (installed / PROVEN_FILE).exists() and not any(_exists(path) for path in left)

    def mark_proven(self, name: str) -> None:
        """The installed version has run: the one before is of no use any more."""
        installed = self._require(name)
        if not (installed / PROVEN_FILE).exists():
            self._disk.mark(installed / PROVEN_FILE)
        (installed / START_FAILED_FILE).unlink(missing_ok=True)
        self._throw_away(self._places.previous(name), name)

    def failed_after_a_good_one(self, name: str) -> bool:
        failed = (self._places.installed(name) / START_FAILED_FILE).exists()
        return failed and (self._places.previous(name) / PROVEN_FILE).exists()

    def switch_back(self, name: str) -> None:
        """Let the version before take the installed one's place, and the other way round."""
        previous = self._places.previous(name)
        if not _exists(previous):
            raise NotFound(
                f"no earlier version of {name} is kept", hint="it was removed when a newer one ran"
            )
        self.settle(name)
        self._disk.mark(
            previous / PROVEN_FILE
        )  # Going back to it means that it is trusted more than the other.
        self._disk.move(previous, self._places.ready(name))
        self.settle(name)

    def remove(self, name: str) -> None:
        """The version before goes first, so that no crash can leave it alone."""
        self.settle(name)
        self._throw_away(self._places.previous(name), name)
        self._throw_away(self._places.installed(name), name)

    def _make_way(self, name: str) -> None:
        """Keep the newest version that has run, or else the oldest; never more than one."""
        installed, previous = self._places.installed(name), self._places.previous(name)
        if not _exists(installed):
            return
        if not installed.is_dir():  # A stray file.
            self._throw_away(installed, name)
        elif not _exists(previous):
            self._disk.move(installed, previous)
        elif (installed / PROVEN_FILE).exists():
            self._throw_away(previous, name)
            self._disk.move(installed, previous)
        else:
            self._throw_away(installed, name)

    def _throw_away(self, path: Path, name: str) -> None:
        """Gone at once for readers. Its files go bit by bit, once no process runs from them."""
        if _exists(path):
            trash = self._places.trash(name)
            self._disk.move(path, next(place for n in count() if not _exists(place := trash / str(n))))
            self._empty_trash(name)

    def _empty_trash(self, name: str) -> None:
        trash = self._places.trash(name)
        if not trash.is_dir():
            return
        for thrown in sorted(trash.iterdir()):
            if not self._disk.in_use(thrown):
                self._disk.discard(thrown)
        if not any(trash.iterdir()):
            trash.rmdir()

    def _require(self, name: str) -> Path:
        installed = self._places.installed(name)
        if not installed.is_dir():
            raise NotFound(f"{name} is not installed")
        return installed


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Whether this block alone, among all tasks and processes, has the lock. The kernel lets go of it however
    the process ends, so the file can stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Notices at once that another process changed what is installed, as `remuda backends register` does.

The kernel says when something was renamed, made or removed in a folder (inotify). Where it cannot say so, and
for what it may have missed, the folders are looked at every second, which costs next to nothing.
"""

import ctypes
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

LOOK_EVERY_S: Final = 1.0

_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x40, 0x80, 0x100, 0x200
_IN_ONLYDIR: Final = 0x01000000
_EVENTS: Final = _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
_READ_BYTES: Final = 64 << 10

_State = tuple[tuple[int, tuple[tuple[str, int], ...]] | None, ...]


async def changes(folders: Sequence[Path], every_s: float = LOOK_EVERY_S) -> AsyncIterator[None]:
    """One item after each change of which folders there are in these, and never two for one change."""
    with _inotify() as notified:
        before = await run_sync(_state, folders)
        while True:
            notified.watch(folders)
            with anyio.move_on_after(every_s):
                await notified.wait()
            now = await run_sync(_state, folders)
            if now != before:
                before = now
                yield


async def tell_changes(folders: Sequence[Path], changed: Callable[[], None]) -> None:
    async for _ in changes(folders):
        changed()


def _state(folders: Sequence[Path]) -> _State:
    """What differs when a folder in them was replaced, also within one tick of the file system's clock."""
    return tuple(map(_contents, folders))


def _contents(folder: Path) -> tuple[int, tuple[tuple[str, int], ...]] | None:
    try:
        with os.scandir(folder) as entries:
            inodes = tuple(sorted((entry.name, entry.inode()) for entry in entries))
        return os.stat(folder).st_mtime_ns, inodes
    except OSError:
        return None


class _Blind:
    """Where the kernel does not tell."""

    def watch(self, folders: Sequence[Path]) -> None:
        pass

    async def wait(self) -> None:
        await anyio.sleep_forever()


class _Notified(_Blind):
    def __init__(self, descriptor: int, libc: ctypes.CDLL) -> None:
        self._descriptor = descriptor
        self._libc = libc

    def watch(self, folders: Sequence[Path]) -> None:
        """Again and again: a folder may be made later, or anew. For one that is watched this does nothing."""
        for folder in folders:
            self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _EVENTS)

    async def wait(self) -> None:
        await anyio.wait_readable(self._descriptor)
        os.read(self._descriptor, _READ_BYTES)  # What it says is looked up.


@contextmanager
def _inotify() -> Iterator[_Blind]:
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if libc is not None else -1
    if libc is None or descriptor < 0:
        yield _Blind()
        return
    try:
        yield _Notified(descriptor, libc)
    finally:
        os.close(descriptor)

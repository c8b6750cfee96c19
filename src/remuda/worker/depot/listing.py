"""Which backends a machine has, from what lies in its folders (`listing` is pure; `scan` looks), and
noticing at once that another process changed that, as `remuda backends register` does.

The kernel says when something was renamed, made or removed in a folder (inotify). Where it cannot say so,
and for what it may have missed, the folders are looked at every second, which costs next to nothing.
"""

import ctypes
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from remuda.core.errors import RemudaError
from remuda.gallery.resolve import preferred_tokens
from remuda.wire.backends import InstalledBackend
from remuda.worker.depot.layout import (
    MANIFEST_FILE,
    PASSING_SUFFIXES,
    RUN_FILE,
    DepotLayout,
    Metadata,
    read_metadata,
)


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """One folder as it was found."""

    path: Path
    runs: str  # The file that tells how to run it; empty: there is none.
    system: bool = False
    metadata: Metadata | None = None
    problem: str = ""  # Why its metadata cannot be used.


@dataclass(frozen=True, slots=True)
class ListedBackend:
    """A name that can be asked for, and what runs for it. Of an alias `metadata` has another name."""

    name: str
    folder: Path
    metadata: Metadata
    system: bool = False
    meta: bool = False
    runs: str = RUN_FILE

    @property
    def run_file(self) -> Path:
        """A program, or the manifest of a backend that has none."""
        return self.folder / self.runs

    @property
    def row(self) -> InstalledBackend:
        """As others read of it."""
        metadata = self.metadata
        return InstalledBackend(
            name=self.name,
            is_system=self.system,
            is_meta=self.meta,
            installed_at=metadata.installed_at,
            gallery_url=metadata.gallery_url,
            version=metadata.version,
            uri=metadata.uri,
            digest=metadata.digest,
        )


@dataclass(frozen=True, slots=True)
class Listing:
    backends: tuple[ListedBackend, ...]  # By name, each once.
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> ListedBackend | None:
        return next((one for one in self.backends if one.name == name), None)

    @property
    def reported(self) -> tuple[ListedBackend, ...]:
        """Without those that exist only as an alias."""
        return tuple(one for one in self.backends if one.name == one.metadata.name)


def listing(folders: Sequence[FolderFacts], backends: Path, capability: str) -> Listing:
    """Names to folders: system ones, then the machine's own, meta backends, and aliases over them all.

    A folder whose metadata cannot be used costs itself, not the rest.
    """
    found: dict[str, ListedBackend] = {}
    problems = [facts.problem for facts in folders if facts.problem]
    usable = sorted((facts for facts in folders if not facts.problem), key=lambda facts: facts.path.name)
    own = [facts for facts in usable if not facts.system]
    runs = {facts.path.name: facts.runs for facts in own if facts.runs}
    for facts in (*(facts for facts in usable if facts.system), *own):
        if facts.runs:
            name = facts.path.name
            found[name] = ListedBackend(
                name, facts.path, _named(facts.metadata, name), facts.system, runs=facts.runs
            )
    for facts in own:
        if facts.metadata is not None and (target := facts.metadata.meta_backend_for):
            name = facts.metadata.name or facts.path.name
            if Path(target).name != target:  # A path would lead out of the folder of backends.
                problems.append(f"{facts.path} stands for {target!r}, which is not a backend")
                continue
            stands_for = backends / target
            found[name] = ListedBackend(
                name, stands_for, facts.metadata, meta=True, runs=runs.get(target, RUN_FILE)
            )
    for alias in sorted({facts.metadata.alias for facts in own if facts.metadata} - {""}):
        best = _best(alias, own, capability)
        assert best.metadata is not None, "it has an alias"
        found[alias] = ListedBackend(alias, best.path, best.metadata, runs=best.runs or RUN_FILE)
    return Listing(tuple(found[name] for name in sorted(found)), tuple(problems))


def _named(metadata: Metadata | None, name: str) -> Metadata:
    return metadata if metadata is not None and metadata.name else Metadata(name=name)


def _best(alias: str, own: Iterable[FolderFacts], capability: str) -> FolderFacts:
    sharing = [facts for facts in own if facts.metadata and facts.metadata.alias == alias]
    for token in preferred_tokens(capability):
        for facts in sharing:
            if token in facts.path.name.lower():
                return facts
    return sharing[0]


def scan(places: DepotLayout) -> list[FolderFacts]:
    """Every folder that may be a backend. Blocks on the disk."""
    system = [_system_facts(path) for path in _folders(places.system)]
    return [*system, *(_facts(path) for path in _folders(places.backends))]


def run_name(folder: Path) -> str:
    """The file in the folder that tells how to run it; empty where there is none. Blocks on the disk."""
    return next((name for name in (RUN_FILE, MANIFEST_FILE) if (folder / name).is_file()), "")


def find_run_file(places: DepotLayout, listed: Listing, name: str) -> Path | None:
    """What to run for a name: a listed backend's file, else a file of that name, plain or in a folder of the
    same name, first among this machine's own and then in the system's. Blocks on the disk."""
    known = listed.get(name)
    nearby = (root / place for root in (places.backends, places.system) for place in (name, f"{name}/{name}"))
    candidates = [*([known.run_file] if known else []), *(nearby if Path(name).name == name else ())]
    return next((path for path in candidates if path.is_file()), None)


def _folders(root: Path) -> list[Path]:
    """Folders that are about to be renamed or removed do not count."""
    try:
        with os.scandir(root) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if entry.is_dir() and not entry.name.startswith(".")
                if not entry.name.endswith(PASSING_SUFFIXES)
            ]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _system_facts(path: Path) -> FolderFacts:
    return FolderFacts(path, run_name(path), system=True)


def _facts(path: Path) -> FolderFacts:
    runs = run_name(path)
    try:
        return FolderFacts(path, runs, metadata=read_metadata(path))
    except RemudaError as error:
        return FolderFacts(path, runs, problem=error.message)


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

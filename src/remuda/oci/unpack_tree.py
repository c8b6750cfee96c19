"""Writes files, folders and links below one folder and nowhere else.

No archive can make a write land elsewhere, whatever it puts in the way or replaces between two entries: paths
are walked by `OpenFolders`, and what is there already is removed, never written through.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path as FilePath
from types import TracebackType
from typing import TypeVar

import structlog

from remuda.oci.unpack_errors import Refusal, shown
from remuda.oci.unpack_folders import (
    OPEN_FOLDER,
    WHILE_UNPACKING,
    OpenFolders,
    is_folder,
    joined,
    names_in,
)
from remuda.oci.unpack_links import NO_LINKS, OPEN_NEW, copy_file, is_plain_file, link_or_copy, resolved
from remuda.oci.unpack_names import Path
from remuda.oci.writeback import Writeback

log = structlog.get_logger()
T = TypeVar("T")

UNNAMED_FOLDER = 0o755  # A folder that holds entries and has none itself.
PERMISSIONS = 0o777  # Without setuid, setgid and sticky: nothing in an image may raise its own rights here.


class DirectoryTree:
    """One image being unpacked into a fresh folder, layer by layer. Call `finish` after the last.

    The folder itself keeps the mode and time its maker gave it.
    """

    def __init__(self, root: FilePath) -> None:
        self.root = root
        self.bytes_written = 0
        self.bytes_claimed = 0  # Holes in sparse files included.
        self.entries = 0
        self._open = OpenFolders(root)
        self._folders: dict[Path, tuple[int, int | None]] = {}  # Mode and time to give each at the end.
        self._copies: dict[
            Path, bytes
        ] = {}  # Symbolic links the file system refused, to be copied at the end.
        self._fresh = True  # No lower layer: nothing to hide, so nothing to remember.
        self._written: set[bytes] = set()  # By this layer, folders on the way included.

    def __enter__(self) -> "DirectoryTree":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def next_layer(self) -> None:
        """What was written until now is what whiteouts from here on may hide."""
        self._fresh = self.entries == 0
        self._written.clear()

    def add_folder(self, path: Path, mode: int, mtime_ns: int) -> None:
        """A folder that is there already keeps its content."""
        if not path:
            return
        parent = self._enter(path[:-1])
        try:
            os.mkdir(path[-1], WHILE_UNPACKING, dir_fd=parent)
        except FileExistsError:
            _check_case(parent, path[-1])
            if not is_folder(parent, path[-1]):
                self._remove(path, parent)
                os.mkdir(path[-1], WHILE_UNPACKING, dir_fd=parent)
        self._folders[path] = mode & PERMISSIONS, mtime_ns
        self._note(path)

    def add_file(
        self, path: Path, mode: int, mtime_ns: int, size: int, pieces: Iterable[tuple[int, memoryview]]
    ) -> None:
        """Pieces come with their positions; what none of them covers reads as zeros."""
        parent = self._enter(path[:-1])
        descriptor = self._create(path, parent, lambda: os.open(path[-1], OPEN_NEW, 0o600, dir_fd=parent))
        try:
            end = 0
            writeback = Writeback(descriptor)
            for position, piece in pieces:
                end = position + len(piece)
                _write(descriptor, piece, position)
                self.bytes_written += len(piece)
                writeback.reached(end)
            if end != size:
                os.ftruncate(descriptor, size)
            os.fchmod(descriptor, mode & PERMISSIONS)
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(descriptor)
        self._note(path)

    def add_symlink(self, path: Path, text: bytes, mtime_ns: int) -> None:
        """The link as written; nothing checks that it leads anywhere."""
        parent = self._enter(path[:-1])
        try:
            self._create(path, parent, lambda: os.symlink(text, path[-1], dir_fd=parent))
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._copies[path] = text
        else:
            os.utime(path[-1], ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)
        self._note(path)

    def add_hardlink(self, path: Path, target: Path) -> None:
        """Another name for a file that is already in the tree."""
        if target[: len(path)] == path:
            raise Refusal("it is a hard link to itself")
        folder = self._open.find(target[:-1]) if target else None
        if folder is None or not is_plain_file(folder, target[-1]):
            raise Refusal(f"it is a hard link to {joined(target) or 'the folder itself'}, where no file is")
        source = os.dup(folder)  # Entering the other folder may close this one.
        try:
            parent = self._enter(path[:-1])
            self._create(path, parent, lambda: link_or_copy(source, target[-1], parent, path[-1]))
        finally:
            os.close(source)
        self._note(path)

    def hide(self, path: Path, content_only: bool) -> None:
        """Remove what lower layers put there. What this layer writes stays, in whatever order it comes."""
        if self._fresh:
            return
        self._forget_copies(path)
        if content_only or b"/".join(path) in self._written:
            folder = self._open.find(path)
            if folder is not None:
                self._clear(path, folder)
        else:
            parent = self._open.find(path[:-1])
            if parent is not None:
                self._remove(path, parent)

    def finish(self, check_cancelled: Callable[[], None]) -> None:
        """Copy what could not be linked, and give folders their modes and times, innermost first."""
        for path in self._copies:
            check_cancelled()
            self._copy_for_link(path)
        for path in sorted(self._folders, reverse=True):
            check_cancelled()
            mode, mtime_ns = self._folders[path]
            folder = self._open.find(path)
            assert folder is not None, "folders that were removed are forgotten"
            os.fchmod(folder, mode)
            if mtime_ns is not None:
                os.utime(folder, ns=(mtime_ns, mtime_ns))

    def _enter(self, path: Path) -> int:
        return self._open.enter(path, self._note_unnamed)

    def _note_unnamed(self, path: Path) -> None:
        self._folders[path] = UNNAMED_FOLDER, None

    def _note(self, path: Path) -> None:
        if self._fresh:
            return
        while path and (key := b"/".join(path)) not in self._written:
            self._written.add(key)
            path = path[:-1]

    def _create(self, path: Path, parent: int, make: Callable[[], T]) -> T:
        """Whatever stands in the way goes first: the last entry of a name wins, of whatever kind it is."""
        self._copies.pop(path, None)
        try:
            return make()
        except FileExistsError:
            _check_case(parent, path[-1])
            self._remove(path, parent)
            return make()

    def _remove(self, path: Path, parent: int) -> None:
        """The file, link or whole folder, if there is one."""
        try:
            if not is_folder(parent, path[-1]):
                os.unlink(path[-1], dir_fd=parent)
                return
        except FileNotFoundError:
            return
        folder = os.open(path[-1], OPEN_FOLDER, dir_fd=parent)
        try:
            for name in names_in(folder):
                self._remove((*path, name), folder)
        finally:
            os.close(folder)
        os.rmdir(path[-1], dir_fd=parent)
        self._folders.pop(path, None)

    def _clear(self, path: Path, folder: int) -> None:
        """Remove a folder's content, except what this layer wrote."""
        for name in names_in(folder):
            child = (*path, name)
            if b"/".join(child) not in self._written:
                self._remove(child, folder)
            elif is_folder(folder, name):
                descriptor = os.open(name, OPEN_FOLDER, dir_fd=folder)
                try:
                    self._clear(child, descriptor)
                finally:
                    os.close(descriptor)

    def _forget_copies(self, path: Path) -> None:
        for link in [link for link in self._copies if link[: len(path)] == path]:
            if b"/".join(link) not in self._written:
                del self._copies[link]

    def _copy_for_link(self, path: Path) -> None:
        target = resolved(path, self._copies)
        folder = self._open.find(target[:-1]) if target else None
        if not target or folder is None or not _exists(folder, target[-1]):
            log.warning("link_left_out", link=joined(path), target=shown(self._copies[path]))
            return
        if not is_plain_file(folder, target[-1]):
            raise Refusal(
                f"{joined(path)}: it is a symbolic link to a folder; this file system keeps no links, "
                "and only files are copied in their place"
            )
        source = os.dup(folder)
        try:
            copy_file(source, target[-1], self._enter(path[:-1]), path[-1])
        except FileExistsError as error:
            raise Refusal(f"{joined(path)}: it is a symbolic link and a folder at once") from error
        finally:
            os.close(source)


def _exists(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(descriptor: int, piece: memoryview, position: int) -> None:
    while piece:
        done = os.pwrite(descriptor, piece, position)
        piece = piece[done:]
        position += done


def _check_case(parent: int, name: bytes) -> None:
    """Where `A` and `a` are one name, two entries would become one file, and one of them be lost."""
    try:
        other = os.stat(name.swapcase(), dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not os.path.samestat(other, os.stat(name, dir_fd=parent, follow_symlinks=False)):
        return
    if name not in names_in(parent):
        raise Refusal(
            "another entry has the same name but for upper and lower case, which this disk cannot keep"
        )

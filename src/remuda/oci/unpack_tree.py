"""Writes files, folders and links below one folder and nowhere else.

No archive can make a write land elsewhere, whatever it puts in the way or replaces between two entries: paths
are walked one component at a time and never through a link, and what is there already is removed, never
written through. The descriptors on the way to the folder used last stay open: archives list a folder's files
in a row, so most need no walk at all.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path as FilePath
from types import TracebackType
from typing import TypeVar

import structlog

from remuda.oci.disk import Writeback
from remuda.oci.unpack_rules import EntryPath, Refusal, shown

log = structlog.get_logger()

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NOT_A_FOLDER = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.EMLINK,
}  # The last is what a BSD says of a link.
WHILE_UNPACKING = 0o700  # Folders get their own mode at the end: it may forbid writing into them.


class OpenFolders:
    """Descriptors it returns are its own, and good until the next call."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.open(root, OPEN_FOLDER)
        self._walked: list[tuple[bytes, int]] = []

    def close(self) -> None:
        self._leave(0)
        os.close(self._root)

    def find(self, path: EntryPath) -> int | None:
        """The folder at `path`, or None if something else or nothing is there."""
        try:
            return self._walk(path, None)
        except OSError as error:
            if error.errno in NOT_A_FOLDER:
                return None
            raise

    def enter(self, path: EntryPath, on_made: Callable[[EntryPath], None]) -> int:
        """The folder at `path`, made with its parents where missing. Goes through no link and no file."""
        try:
            return self._walk(path, on_made)
        except OSError as error:
            if error.errno not in NOT_A_FOLDER:
                raise
            obstacle = path[: len(self._walked) + 1]
            raise Refusal(f"it lies below {joined(obstacle)}, which is a file or a link") from error

    def _walk(self, path: EntryPath, on_made: Callable[[EntryPath], None] | None) -> int:
        shared = 0
        for (name, _), wanted in zip(self._walked, path, strict=False):
            if name != wanted:
                break
            shared += 1
        self._leave(shared)
        folder = self._walked[-1][1] if self._walked else self._root
        for depth in range(shared, len(path)):
            name = path[depth]
            try:
                folder = os.open(name, OPEN_FOLDER, dir_fd=folder)
            except FileNotFoundError:
                if on_made is None:
                    raise
                os.mkdir(name, WHILE_UNPACKING, dir_fd=folder)
                on_made(path[: depth + 1])
                folder = os.open(name, OPEN_FOLDER, dir_fd=folder)
            self._walked.append((name, folder))
        return folder

    def _leave(self, depth: int) -> None:
        while len(self._walked) > depth:
            os.close(self._walked.pop()[1])


def joined(path: EntryPath) -> str:
    """A path for messages."""
    return shown(b"/".join(path))


def is_folder(parent: int, name: bytes) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def names_in(folder: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(folder)]


OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}
HOPS_MAX = 40  # Links that lead to links, as in the kernel.
COPY_BYTES = 1 << 20


def is_plain_file(parent: int, name: bytes) -> bool:
    """A file, not a link to one."""
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def link_or_copy(source: int, name: bytes, parent: int, new_name: bytes) -> None:
    """Make a hard link, or a copy where links are refused or a file has as many as it can."""
    try:
        os.link(name, new_name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        copy_file(source, name, parent, new_name)


def copy_file(source: int, name: bytes, parent: int, new_name: bytes) -> None:
    """Content, mode and time of a plain file. Both names are taken as they are, never as links."""
    with (
        open(os.open(name, OPEN_OLD, dir_fd=source), "rb") as old,
        open(os.open(new_name, OPEN_NEW, 0o600, dir_fd=parent), "wb") as new,
    ):
        shutil.copyfileobj(old, new, COPY_BYTES)
        new.flush()
        about = os.fstat(old.fileno())
        os.fchmod(new.fileno(), stat.S_IMODE(about.st_mode))
        os.utime(new.fileno(), ns=(about.st_mtime_ns, about.st_mtime_ns))


def resolved(path: EntryPath, links: Mapping[EntryPath, bytes]) -> EntryPath | None:
    """Where the link at `path` leads if the root is all there is; None when it goes in circles."""
    for _ in range(HOPS_MAX):
        text = links.get(path)
        if text is None:
            return path
        parts = [] if text.startswith(b"/") else list(path[:-1])
        for part in text.split(b"/"):
            if part == b"..":
                parts = parts[:-1]
            elif part not in (b"", b"."):
                parts.append(part)
        path = tuple(parts)
    return None


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
        self._folders: dict[EntryPath, tuple[int, int | None]] = {}  # Mode and time to give each at the end.
        self._copies: dict[
            EntryPath, bytes
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

    def add_folder(self, path: EntryPath, mode: int, mtime_ns: int) -> None:
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
        self, path: EntryPath, mode: int, mtime_ns: int, size: int, pieces: Iterable[tuple[int, memoryview]]
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

    def add_symlink(self, path: EntryPath, text: bytes, mtime_ns: int) -> None:
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

    def add_hardlink(self, path: EntryPath, target: EntryPath) -> None:
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

    def hide(self, path: EntryPath, content_only: bool) -> None:
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

    def _enter(self, path: EntryPath) -> int:
        return self._open.enter(path, self._note_unnamed)

    def _note_unnamed(self, path: EntryPath) -> None:
        self._folders[path] = UNNAMED_FOLDER, None

    def _note(self, path: EntryPath) -> None:
        if self._fresh:
            return
        while path and (key := b"/".join(path)) not in self._written:
            self._written.add(key)
            path = path[:-1]

    def _create(self, path: EntryPath, parent: int, make: Callable[[], T]) -> T:
        """Whatever stands in the way goes first: the last entry of a name wins, of whatever kind it is."""
        self._copies.pop(path, None)
        try:
            return make()
        except FileExistsError:
            _check_case(parent, path[-1])
            self._remove(path, parent)
            return make()

    def _remove(self, path: EntryPath, parent: int) -> None:
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

    def _clear(self, path: EntryPath, folder: int) -> None:
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

    def _forget_copies(self, path: EntryPath) -> None:
        for link in [link for link in self._copies if link[: len(path)] == path]:
            if b"/".join(link) not in self._written:
                del self._copies[link]

    def _copy_for_link(self, path: EntryPath) -> None:
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

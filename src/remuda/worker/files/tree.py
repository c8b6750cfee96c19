"""Folders whose content is reached without ever leaving them.

Every step of a path is opened relative to the folder before it and without following links, so that what
was looked at is what is used: swapping a folder for a link in between gains nothing. A link is read and its
steps are taken in the same way; one that leads out of the folder is refused. All of it blocks on the disk.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from remuda.core.errors import Invalid, NotFound, TooLarge
from remuda.worker.files import limits
from remuda.worker.files.keys import own_metadata

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a pipe of that name would hold the thread for ever.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_MODE: Final = 0o750
_LINK_OR_FILE: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


class NotAFolder(Invalid):
    """A part of the path is a file."""


class Tree:
    """A folder that is there, or will be."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def local_path(self, parts: Sequence[str]) -> str:
        return str(self.path.joinpath(*parts))

    @contextmanager
    def open_folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """A folder below; with `make` it is made where it is missing. NotFound, or Invalid."""
        with self._walk(make=make) as walk:
            todo = deque(parts)
            while todo:
                walk.enter(todo)
            yield walk.here

    @contextmanager
    def open_file(self, parts: Sequence[str]) -> Iterator[int]:
        """A regular file, for reading. NotFound, or Invalid for what is no file or leads outside."""
        with self._walk() as walk:
            descriptor = walk.file(deque(parts))
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise Invalid("not a regular file")
                yield descriptor
            finally:
                os.close(descriptor)

    def parts_of(self, path: str) -> tuple[str, ...] | None:
        """The way from here to an absolute path, as it is written; None: it does not lie below."""
        for base in {str(self.path), os.path.realpath(self.path)}:
            if path.startswith(f"{base}/"):
                return tuple(path.removeprefix(f"{base}/").split("/"))
        return None

    @contextmanager
    def _walk(self, *, make: bool = False) -> Iterator["_Walk"]:
        try:
            root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Invalid(f"the folder {self.path} cannot be used: {error.strerror}") from error
        walk = _Walk(root, frozenset({str(self.path), os.path.realpath(self.path)}), make=make)
        try:
            yield walk
        finally:
            walk.close()


class _Walk:
    """The folders from the root to where we are: `..` in a link goes back to the one we came through."""

    def __init__(self, root: int, names: frozenset[str], *, make: bool) -> None:
        self._folders = [root]
        self._names = names
        self._make = make
        self._links = 0

    @property
    def here(self) -> int:
        return self._folders[-1]

    def close(self) -> None:
        for descriptor in self._folders:
            os.close(descriptor)

    def enter(self, todo: deque[str]) -> None:
        """Take the first step. A link is replaced by its steps."""
        part = todo.popleft()
        if part in ("", "."):
            return
        if part == "..":
            if len(self._folders) == 1:
                raise Invalid("the path leads outside its folder")
            os.close(self._folders.pop())
            return
        try:
            self._folders.append(self._opened(part))
        except FileNotFoundError:
            raise NotFound("not found") from None
        except OSError as error:
            if error.errno not in _LINK_OR_FILE:
                raise
            todo.extendleft(reversed(self._steps_of(part)))

    def file(self, todo: deque[str]) -> int:
        while todo:
            if len(todo) > 1 or todo[0] in ("", ".", ".."):
                self.enter(todo)
                continue
            try:
                return os.open(todo[0], _FILE, dir_fd=self.here)
            except FileNotFoundError:
                raise NotFound("not found") from None
            except OSError as error:
                if error.errno not in _LINK_OR_FILE:
                    raise
                todo.extendleft(reversed(self._steps_of(todo.popleft())))
        raise Invalid("is a directory")

    def _opened(self, part: str) -> int:
        try:
            return os.open(part, _FOLDER, dir_fd=self.here)
        except FileNotFoundError:
            if not self._make:
                raise
        with suppress(FileExistsError):
            os.mkdir(part, _FOLDER_MODE, dir_fd=self.here)
        return os.open(part, _FOLDER, dir_fd=self.here)

    def _steps_of(self, part: str) -> list[str]:
        try:
            target = os.readlink(part, dir_fd=self.here)
        except OSError:  # It is no link.
            raise NotAFolder("a part of the path is not a folder") from None
        self._links += 1
        if self._links > limits.LINKS_MAX:
            raise Invalid("too many links")
        if not target.startswith("/"):
            return target.split("/")
        for name in self._names:
            if target == name or target.startswith(f"{name}/"):
                while len(self._folders) > 1:
                    os.close(self._folders.pop())
                return target.removeprefix(name).split("/")
        raise Invalid("the path leads outside its folder")


def list_files(tree: Tree, parts: Sequence[str]) -> list[str]:
    """The files at any depth below, as paths from there: content only, no checksums and no partial uploads.
    NotFound when it is no folder."""
    found: list[str] = []
    folders = [""]
    while folders:
        place = folders.pop()
        steps = [*parts, *(place.split("/") if place else ())]
        try:
            with tree.open_folder(steps) as folder:
                for name, mode in _entries(folder):
                    path = f"{place}/{name}" if place else name
                    if stat.S_ISDIR(mode):
                        folders.append(path)
                    elif stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _is_file(tree, [*steps, name])):
                        found.append(path)
        except NotFound:
            if not place:
                raise
        if len(found) + len(folders) > limits.LISTED_FILES_MAX:
            raise TooLarge(f"there are more than {limits.LISTED_FILES_MAX} files")
    return sorted(found)


def _entries(folder: int) -> list[tuple[str, int]]:
    names = [name for name in os.listdir(folder) if is_text(name)]
    hidden = own_metadata(frozenset(names))
    found = []
    for name in names:
        if name not in hidden:
            with suppress(FileNotFoundError):
                found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))
    return found


def is_text(name: str) -> bool:
    """Names that are not UTF-8 can be neither listed nor asked for."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_file(tree: Tree, parts: Sequence[str]) -> bool:
    try:
        with tree.open_file(parts):
            return True
    except (NotFound, Invalid, OSError):
        return False


def remove_empty_folders(tree: Tree, parts: Sequence[str]) -> None:
    """The folder, and those above it, as far as nothing is in them."""
    for depth in range(len(parts), 0, -1):
        try:
            with tree.open_folder(parts[: depth - 1]) as parent:
                os.rmdir(parts[depth - 1], dir_fd=parent)
        except (OSError, NotFound, NotAFolder, Invalid):
            return

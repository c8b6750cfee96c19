"""Folders below one root, opened one component at a time and never through a link.

The descriptors on the way to the folder used last stay open: archives list a folder's files in a row,
so most need no walk at all.
"""

import errno
import os
import stat
from collections.abc import Callable

from remuda.oci.unpack_errors import Refusal, shown
from remuda.oci.unpack_names import Path

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

    def find(self, path: Path) -> int | None:
        """The folder at `path`, or None if something else or nothing is there."""
        try:
            return self._walk(path, None)
        except OSError as error:
            if error.errno in NOT_A_FOLDER:
                return None
            raise

    def enter(self, path: Path, on_made: Callable[[Path], None]) -> int:
        """The folder at `path`, made with its parents where missing. Goes through no link and no file."""
        try:
            return self._walk(path, on_made)
        except OSError as error:
            if error.errno not in NOT_A_FOLDER:
                raise
            obstacle = path[: len(self._walked) + 1]
            raise Refusal(f"it lies below {joined(obstacle)}, which is a file or a link") from error

    def _walk(self, path: Path, on_made: Callable[[Path], None] | None) -> int:
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


def joined(path: Path) -> str:
    """A path for messages."""
    return shown(b"/".join(path))


def is_folder(parent: int, name: bytes) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def names_in(folder: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(folder)]

"""From a verified file in the blob store to one in the folder of models: whole, or not at all, and never in
place of one that a person has put there. Everything here blocks on the disk.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from remuda.core.errors import Conflict
from remuda.oci.disk import disk_trouble_explained
from remuda.oci.errors import ContentRefused
from remuda.worker.files.tree import Tree

_STORE: Final = "model-downloads"
_HIDDEN_STORE: Final = ".model-downloads"  # Where only the folder of models itself can be written.
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
_FICLONE: Final = 0x40049409
_COPY_BYTES: Final = 4 << 20
_MODE: Final = 0o644


def store_root(models: Path) -> Path:
    """On the file system of the folder of models, so that files need not be copied; beside that folder, so
    that no backend finds unfinished ones in it, unless what is beside it cannot be used."""
    folder = models.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    same = folder.stat().st_dev == folder.parent.stat().st_dev
    beside = folder.parent / _STORE
    if same and os.access(beside if beside.exists() else folder.parent, os.W_OK | os.X_OK):
        return beside
    return folder / _HIDDEN_STORE


class Copying:
    """How many bytes were copied or read, looked at by another thread."""

    def __init__(self) -> None:
        self.done = 0


def place(
    blob: Path,
    sha256: str,
    tree: Tree,
    parts: Sequence[str],
    *,
    replace: bool = False,
    copying: Copying | None = None,
) -> None:
    """Conflict when there is a file of that name by now, unless it is to be replaced."""
    path = tree.local_path(parts)
    hidden = f".{hashlib.sha256(parts[-1].encode()).hexdigest()[:16]}.partial"
    with (
        disk_trouble_explained(path, tree.path, blob.stat().st_size),
        tree.open_folder(parts[:-1], make=True) as folder,
    ):
        try:
            _unlink(folder, hidden)
            try:
                os.link(blob, hidden, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _copy(blob, sha256, folder, hidden, path, copying or Copying())
            _show(folder, hidden, parts[-1], path, replace=replace)
        finally:
            _unlink(folder, hidden)


def _show(folder: int, hidden: str, name: str, path: str, *, replace: bool) -> None:
    """Under its own name. A link never takes the place of anything; a rename does."""
    try:
        if not replace:
            os.link(hidden, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            return
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if _is_there(folder, name):
            raise _exists(path) from None
    os.rename(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)


def _copy(blob: Path, sha256: str, folder: int, hidden: str, path: str, copying: Copying) -> None:
    """It shares the blob's blocks where the file system can do that."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(hidden, flags, _MODE, dir_fd=folder)
    with blob.open("rb") as source, open(descriptor, "rb+") as target:
        try:
            fcntl.ioctl(target, _FICLONE, source.fileno())
        except OSError:
            while chunk := source.read(_COPY_BYTES):
                target.write(chunk)
                copying.done += len(chunk)
            target.flush()
            os.fsync(target.fileno())
        target.seek(0)
        state = hashlib.sha256()
        while chunk := target.read(_COPY_BYTES):
            state.update(chunk)
            copying.done += len(chunk)
        if state.hexdigest() != sha256:
            raise ContentRefused(f"{path} was not copied correctly", hint="check the disk")


def _unlink(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _exists(path: str) -> Conflict:
    return Conflict(f"{path} has just been put there", hint="try again")

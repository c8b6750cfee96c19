"""From a verified file in the blob store to one in the folder of models: whole, or not at all, and never in
place of another. Everything here blocks on the disk.
"""

import errno
import fcntl
import hashlib
import os
import shutil
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


def place(blob: Path, sha256: str, tree: Tree, parts: Sequence[str]) -> None:
    """Conflict when there is a file of that name by now."""
    path = tree.local_path(parts)
    with (
        disk_trouble_explained(path, tree.path, blob.stat().st_size),
        tree.open_folder(parts[:-1], make=True) as folder,
    ):
        try:
            os.link(blob, parts[-1], dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise _exists(path) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(blob, sha256, folder, parts[-1], path)


def _copy(blob: Path, sha256: str, folder: int, name: str, path: str) -> None:
    """Under a hidden name first. It shares the blob's blocks where the file system can do that."""
    hidden = f".{hashlib.sha256(name.encode()).hexdigest()[:16]}.partial"
    with suppress(FileNotFoundError):
        os.unlink(hidden, dir_fd=folder)
    descriptor = os.open(
        hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE, dir_fd=folder
    )
    try:
        with blob.open("rb") as source, open(descriptor, "rb+") as target:
            try:
                fcntl.ioctl(target, _FICLONE, source.fileno())
            except OSError:
                shutil.copyfileobj(source, target, _COPY_BYTES)
                target.flush()
                os.fsync(target.fileno())
            target.seek(0)
            if hashlib.file_digest(target, "sha256").hexdigest() != sha256:
                raise ContentRefused(f"{path} was not copied correctly", hint="check the disk")
        if _is_there(folder, name):
            raise _exists(path)
        os.rename(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(hidden, dir_fd=folder)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _exists(path: str) -> Conflict:
    return Conflict(f"{path} has just been put there by somebody else", hint="try again")

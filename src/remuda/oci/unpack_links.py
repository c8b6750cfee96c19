"""Links, and copies in their place where a file system refuses them."""

import errno
import os
import shutil
import stat
from collections.abc import Mapping

from remuda.oci.unpack_names import Path

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


def resolved(path: Path, links: Mapping[Path, bytes]) -> Path | None:
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

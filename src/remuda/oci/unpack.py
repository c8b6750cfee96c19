"""Unpacks image layers into a folder that they cannot leave. Synchronous: run it in a thread.

It writes into a folder its caller made and will rename into place or delete: after any failure what is there
is of no use. It follows no link, changes no owner, and never holds a layer in memory. What it made outlives a
power cut.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from remuda.oci.errors import DiskFull
from remuda.oci.layer_stream import ByteStream, Readable, watched_chunks
from remuda.oci.tar_reader import TarEntry, TarKind, TarReader
from remuda.oci.unpack_rules import (
    WHITEOUT,
    ArchiveRefused,
    Refusal,
    UnpackCancelled,
    UnpackFailed,
    UnpackLimits,
    check_symlink,
    components,
    hidden_by,
    is_bookkeeping,
)
from remuda.oci.unpack_tree import DirectoryTree
from remuda.wire.sizes import install_size


def fsync_tree(root: Path) -> None:
    """Return when everything below `root` is on the disk. OSError if the disk failed to take it.

    On Linux one call writes back the whole file system: for thousands of files far quicker than asking
    for each, although it may also write what others left there.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _synced_at_once(descriptor):
            _sync_one_by_one(root)
    finally:
        os.close(descriptor)


def _synced_at_once(descriptor: int) -> bool:
    if sys.platform != "linux":
        return False
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    if syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return True


def _sync_one_by_one(root: Path) -> None:
    for _, _, files, folder in os.fwalk(root, topdown=False):
        for name in files:
            _sync_file(name, folder)
        os.fsync(folder)


def _sync_file(name: str, folder: int) -> None:
    """Links are part of their folder; files that may not be read are opened for writing."""
    for access in (os.O_RDONLY, os.O_WRONLY):
        try:
            descriptor = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except PermissionError:
            continue
        except OSError:
            return  # A symbolic link.
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return


__all__ = [
    "ArchiveRefused",
    "DirectoryTree",
    "LayerSource",
    "UnpackCancelled",
    "UnpackFailed",
    "UnpackLimits",
    "fsync_tree",
    "unpack_image",
    "unpack_layer",
]

LayerSource = Path | Readable
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def unpack_image(
    layers: Iterable[LayerSource],
    target: Path,
    limits: UnpackLimits,
    on_bytes: Callable[[int], None],
    cancelled: Callable[[], bool],
) -> None:
    """Apply layers, lowest first, to the empty folder `target`; each is asked for when the last is done.

    `on_bytes` hears how many bytes of the layers, as stored, were taken since it was last called; `cancelled`
    is asked at least once per entry and per few hundred kilobytes.
    """

    def check_cancelled() -> None:
        if cancelled():
            raise UnpackCancelled

    with DirectoryTree(target) as tree:
        for layer in layers:
            unpack_layer(layer, tree, limits, on_bytes, cancelled)
        with _explained(tree, lambda: ""):
            tree.finish(check_cancelled)


def unpack_layer(
    layer: LayerSource,
    target: DirectoryTree,
    limits: UnpackLimits,
    on_bytes: Callable[[int], None],
    cancelled: Callable[[], bool],
) -> None:
    """Apply one layer, whatever its packing, on top of those before it. The caller ends with `target.finish`.

    A layer given as an open file is read to its end and left open.
    """
    if isinstance(layer, Path):
        with layer.open("rb", buffering=0) as opened:
            return unpack_layer(opened, target, limits, on_bytes, cancelled)

    def check_cancelled() -> None:
        if cancelled():
            raise UnpackCancelled

    chunks = watched_chunks(layer, limits, on_bytes, check_cancelled)
    reader = TarReader(ByteStream(chunks), limits)
    target.next_layer()
    with closing(chunks), _explained(target, reader.place):
        for entry in reader:
            check_cancelled()
            target.entries += 1
            if target.entries > limits.entries_max:
                raise Refusal(f"the image has more than {limits.entries_max} entries")
            _apply(entry, reader, target, limits)
    return None


def _apply(entry: TarEntry, reader: TarReader, target: DirectoryTree, limits: UnpackLimits) -> None:
    path = components(entry.name, limits)
    if not path and entry.kind is not TarKind.DIRECTORY:
        raise Refusal(f"it is a {entry.kind.value} without a name")
    if WHITEOUT in entry.name:
        if is_bookkeeping(path):
            return
        if hidden := hidden_by(path):
            target.hide(*hidden)
            return
    match entry.kind:
        case TarKind.DIRECTORY:
            target.add_folder(path, entry.mode, entry.mtime_ns)
        case TarKind.FILE:
            _claim(entry.size, target, limits)
            target.add_file(path, entry.mode, entry.mtime_ns, entry.size, reader.data())
        case TarKind.SYMLINK:
            check_symlink(path, entry.link, limits)
            target.add_symlink(path, entry.link, entry.mtime_ns)
        case TarKind.HARDLINK:
            target.add_hardlink(path, _hardlink_target(entry, limits))


def _claim(size: int, target: DirectoryTree, limits: UnpackLimits) -> None:
    """Before the first byte, so that a file that cannot be kept costs nothing."""
    if size > limits.file_bytes_max:
        raise Refusal(
            f"it is {install_size(size)} large; at most {install_size(limits.file_bytes_max)} are allowed"
        )
    target.bytes_claimed += size
    if target.bytes_claimed > limits.bytes_max:
        raise Refusal(f"with it the image unpacks to more than {install_size(limits.bytes_max)}")


def _hardlink_target(entry: TarEntry, limits: UnpackLimits) -> tuple[bytes, ...]:
    try:
        return components(entry.link, limits)
    except Refusal as refusal:
        raise Refusal(f"it is a hard link, and of its target one has to say: {refusal}") from refusal


@contextmanager
def _explained(target: DirectoryTree, place: Callable[[], str]) -> Iterator[None]:
    """The one place where failures learn which entry they are about."""
    try:
        yield
    except Refusal as refusal:
        raise ArchiveRefused(f"{place()}: {refusal}".removeprefix(": ")) from refusal
    except EOFError as error:
        raise ArchiveRefused(f"{place()}: the archive breaks off here") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _disk_full(target, place()) from error
        raise UnpackFailed(f"unpacking {place()} into {target.root} failed: {error.strerror}") from error


def _disk_full(target: DirectoryTree, place: str) -> DiskFull:
    usage = os.statvfs(target.root)
    free, done = install_size(usage.f_bavail * usage.f_frsize), install_size(target.bytes_written)
    return DiskFull(
        f"the disk of {target.root} is full: {free} are free, and {done} in {target.entries} entries were "
        f"unpacked before {place} found no room",
        hint="free some space or choose another folder; what was fetched is kept",
    )
